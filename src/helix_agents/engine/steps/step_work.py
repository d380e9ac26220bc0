"""A step's commit under construction: what it will append, write and announce, and how the run ends if it does."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.handoffs import Handoff
from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.entries import Change
from helix_agents.domain.errors import InvalidWriteError, StateSizeExceededError
from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunStatus
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.transcript import RUN_STOPPED
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, AppendToNonListError, StepWrites, WriteOp, apply_writes
from helix_agents.engine.desk import Failure, RestingReply, RestingResult
from helix_agents.engine.effects import OpenBatch, PlannedCall
from helix_agents.engine.log import log_event

CANCELLED = "framework_cancelled"

NOT_SUSPENDED: dict[str, Any] = {
    "suspension_context": None,
    "suspended_step_id": None,
    "suspended_awaiting_children": {},
}
"""The session fields that describe a suspension, with the values they have when it is not suspended."""


@dataclass(frozen=True, kw_only=True)
class Heir:
    """The agent that a step hands its conversation over to, with the hooks of the agents above it. State that the agent
    at work left alone was `left_by` another one, in that version of it."""

    agent: AnyAgent
    above: SomeHooks
    handoff: Handoff
    tool_call_id: ToolCallId
    input: Mapping[str, JSON]
    left_by: tuple[AnyAgent, int] | None = None


@dataclass
class StepWork:
    """What one commit is made of. `record` has the session fields that it changes, `new` this round's results in the
    model's order, `usage` what hooks counted, and `entries` what capabilities keep of a run that comes to rest.

    `heir` is the agent that takes over with this commit. `carried_over` turns the state into that agent's, as it is
    after the writes in `carried_after`. If it was made from the stored state, that of the version `carried_from`, it
    must not be stored over any other.
    """

    batch: OpenBatch
    step_id: StepId
    open_reply: AssistantMessage
    reply: RestingReply | None
    results: dict[ToolCallId, RestingResult]
    held: dict[ToolCallId, ToolMessage]
    writes: list[StepWrites]
    messages: list[Message]
    record: dict[str, Any]
    pending: tuple[PendingCall, ...] = ()
    stage: tuple[StagedChange, ...] = ()
    announced: bool = False
    suspended: bool = False
    stopped: bool = False
    ended: RunStatus | None = None
    reason: str | None = None
    failure: Failure | None = None
    usage: list[UsageEntry] = field(default_factory=list[UsageEntry])
    entries: tuple[Change, ...] = ()
    begun: dict[ToolCallId, ToolMessage] = field(default_factory=dict[ToolCallId, ToolMessage])
    heir: Heir | None = None
    carried_over: StepWrites = NO_WRITES
    carried_after: tuple[WriteOp, ...] | None = None
    carried_from: int | None = None
    new: tuple[RestingResult, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.results = dict(self.results)
        self._take_new()

    def _take_new(self) -> None:
        self.new = tuple(self.results[each] for call in self.batch.calls if (each := call.tool_call_id) in self.results)

    @property
    def ops(self) -> tuple[WriteOp, ...]:
        """All state writes of the commit, in order."""
        ops = tuple(op for writes in self.writes for op in writes.ops)
        return ops if self.carried_over is NO_WRITES else (*ops, *self.carried_over.ops)

    @property
    def ops_of_calls(self) -> tuple[WriteOp, ...]:
        """The state writes of the agent that did the step: of its calls and of hooks."""
        return tuple(op for writes in self.writes for op in writes.ops)

    @property
    def known(self) -> tuple[ToolMessage, ...]:
        """The results that calls have by now, from this round and earlier ones."""
        return tuple(
            self.result_of(call)
            for call in self.batch.calls
            if call.tool_call_id in self.results or call.tool_call_id in self.held
        )

    def result_of(self, call: PlannedCall) -> ToolMessage:
        """A call's result: from this round or an earlier one, else what is known about a call that was begun, else that
        it was not executed."""
        result = self.results.get(call.tool_call_id)
        if result is not None:
            return result.message
        return self.held.get(call.tool_call_id) or self.begun.get(call.tool_call_id) or _not_executed(call)

    def mark_last(self, key: str, value: JSON) -> None:
        """Add metadata to the commit's last message."""
        last = self.messages[-1]
        marked = self.messages[-1] = msgspec.structs.replace(last, metadata={**last.metadata, key: value})
        if isinstance(marked, ToolMessage) and (result := self.results.get(marked.tool_call_id)) is not None:
            self.results[marked.tool_call_id] = msgspec.structs.replace(result, message=marked)
            self._take_new()

    def settle(self, call: PlannedCall, result: RestingResult) -> None:
        """Add the result of a call that the commit itself settles."""
        self.results[call.tool_call_id] = result
        self.batch = msgspec.structs.replace(self.batch, settled=(*self.batch.settled, call.tool_call_id))
        self._take_new()

    def stay(self, reason: str, code: str) -> None:
        """Take the handoff back: its call failed."""
        heir, self.heir = self.heir, None
        assert heir is not None
        self.carried_over, self.carried_from = NO_WRITES, None
        result = self.results[heir.tool_call_id]
        message = msgspec.structs.replace(result.message, content=reason, error=True, code=code)
        self.messages = [message if each is result.message else each for each in self.messages]
        self.results[heir.tool_call_id] = msgspec.structs.replace(result, message=message)
        self._take_new()

    def fail(self, failure: Failure) -> None:
        """End the run here, as failed."""
        self.failure = failure
        self.ended, self.reason = "failed", failure.code
        self.suspended = self.announced = False
        self.pending = self.stage = ()
        self.record |= {
            **NOT_SUSPENDED,
            "status": "failed",
            "error": failure.error,
            "failure_reason": failure.code,
        }

    def drop_writes(self, refused: StateSizeExceededError | InvalidWriteError, state: Mapping[str, JSON]) -> bool:
        """Drop the state writes that the store refuses, because together they are too large or because one does not fit
        what is stored. The result of a call whose writes are dropped says so. `state` is the stored state that they
        would change.

        Returns whether a call is among them that would have finished the run.
        """
        before = self.new
        # What is carried over follows from the state, which is another one now.
        self.carried_after = None
        kept: list[StepWrites] = []
        for writes in self.writes:
            try:
                after = apply_writes(state, writes.ops)
            except AppendToNonListError as problem:
                self._refuse(writes, InvalidWriteError(refused.session_id, problem.key, str(problem)))
                continue
            if writes and isinstance(refused, StateSizeExceededError) and len(encode(after)) > refused.limit_bytes:
                self._refuse(writes, refused)
                continue
            kept.append(writes)
            state = after
        self.writes = kept
        return any(was.finishes and not is_now.finishes for was, is_now in zip(before, self.new, strict=True))

    def _refuse(self, writes: StepWrites, refused: StateSizeExceededError | InvalidWriteError) -> None:
        calls = {op.tool_call_id for op in writes.ops if op.tool_call_id is not None}
        if not calls:
            # These are a hook's writes, and there is no result that could report it.
            keys = tuple(dict.fromkeys(op.key for op in writes.ops))
            about = {"session_id": refused.session_id, "keys": keys, "reason": str(refused)}
            log_event("state.write_refused", logging.WARNING, **about)
        for call_id in calls & self.results.keys():
            self.results[call_id] = self._refused(self.results[call_id], refused)
        self._take_new()

    def _refused(self, result: RestingResult, refused: StateSizeExceededError | InvalidWriteError) -> RestingResult:
        """The result of a call whose writes are dropped, together with everything else it would have changed."""
        message = msgspec.structs.replace(result.message, content=str(refused), error=True, code=refused.code)
        self.messages = [message if each is result.message else each for each in self.messages]
        self.stage = tuple(
            msgspec.structs.replace(change, message=message) if change.message is result.message else change
            for change in self.stage
        )
        return msgspec.structs.replace(result, message=message, entries=(), finishes=False, output=None)


def _not_executed(call: PlannedCall) -> ToolMessage:
    return ToolMessage(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        content="This call was not executed.",
        error=True,
        code=RUN_STOPPED,
    )

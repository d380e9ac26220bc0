"""The four effects that a run asks of its runtime, and the records that pass between them and the loop.

The records carry names, ids and kinds, never texts, arguments or state, so a durable engine's history stays small. An
effect answers with a value. An exception from an effect means that the infrastructure failed and that the effect may be
repeated; the loop never catches it.
"""

from collections.abc import Iterable
from typing import Literal, Protocol, TypeAlias

from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.sessions import OpenCall

CallKind: TypeAlias = Literal[
    "server", "finish_with", "gated", "client", "child", "remote", "companion", "handoff", "finish", "rejected"
]
"""Who settles a call.

- `server`: a function of the agent
- `finish_with`: such a function that ends the run, and therefore runs after all others
- `gated`: a person, who must approve it first
- `client`: the client
- `child`, `remote`: a sub-agent here, or behind another service
- `companion`: a companion
- `handoff`: the commit of the step, once all others are settled
- `finish`, `rejected`: no one; the result is known as soon as the reply is planned
"""

DELEGATED: frozenset[CallKind] = frozenset(("child", "remote"))

ANSWERED_BY_SOMEBODY: frozenset[CallKind] = frozenset(("gated", "client"))


class PlannedCall(Record):
    """One call of a reply, as the model effect planned it.

    `timeout_ms` says how long the call may take. `attempts`, for runtimes that hand calls to other processes, says how
    many processes may try it before it is given up.
    """

    tool_call_id: ToolCallId
    tool_name: str
    kind: CallKind
    child_session_id: SessionId | None = None
    timeout_ms: int | None = None
    attempts: int | None = None


def in_order_of_work(calls: Iterable[PlannedCall | OpenCall]) -> tuple[ToolCallId, ...]:
    """The ids of calls in the order in which their state changes apply: the model's order, with `finish_with` tools
    last because they have seen what all others changed."""
    return tuple(call.tool_call_id for call in sorted(calls, key=lambda call: call.kind == "finish_with"))


class OpenBatch(Record):
    """The calls of one step, and which of them have their results."""

    step: int
    round: int = 0
    calls: tuple[PlannedCall, ...] = ()
    settled: tuple[ToolCallId, ...] = ()

    @property
    def unsettled(self) -> tuple[PlannedCall, ...]:
        return tuple(call for call in self.calls if call.tool_call_id not in self.settled)

    def settle(self, outcomes: "tuple[CallOutcome, ...]") -> "OpenBatch":
        """The batch with these outcomes recorded."""
        done = tuple(outcome.tool_call_id for outcome in outcomes if outcome.state == "settled")
        return OpenBatch(step=self.step, round=self.round, calls=self.calls, settled=(*self.settled, *done))

    def next_round(self) -> "OpenBatch":
        """The same batch for another look: an answer has arrived, or announced companions can now be spoken to."""
        return OpenBatch(step=self.step, round=self.round + 1, calls=self.calls, settled=self.settled)


class Position(Record):
    """Where a run stands in the store: the last committed step and the batch that is still open.

    `ended` is set if the run is over, or if another driver has replaced this attempt (`superseded`).
    """

    session_id: SessionId
    run_id: RunId
    attempt: int
    agent_type: str
    step: int
    open_batch: OpenBatch | None = None
    ended: RunStatus | Literal["superseded"] | None = None


class Ask(Record):
    """Ask the model for this step's reply."""

    step: int


class Reply(Record):
    """The model replied. The reply's text, arguments and usage stay behind the port."""

    calls: tuple[PlannedCall, ...] = ()


class Stopped(Record):
    """The run was asked to stop."""


class RunFailed(Record):
    """The step cannot be done; the code says why."""

    code: str


class Batch(Record):
    """Calls to run side by side, in no particular order."""

    step: int
    round: int
    calls: tuple[PlannedCall, ...]


class CallOutcome(Record):
    """The outcome of one call: it has a result, waits for an answer, or was stopped."""

    tool_call_id: ToolCallId
    state: Literal["settled", "waiting", "stopped"]


class DriveRun(Record):
    """A call waits for its child. The driver of the call must drive this attempt of the child's run, then ask again."""

    session_id: SessionId
    run_id: RunId
    attempt: int


class Within(Record):
    """The call, and its run, that a child works for. The child's effects need this wherever they run."""

    session_id: SessionId
    run_id: RunId
    attempt: int
    step: int
    round: int
    tool_call_id: ToolCallId
    timeout_ms: int | None = None
    within: "Within | None" = None


class Advance(Record, tag_field="outcome", tag="advance"):
    """All calls have their results. The commit decides whether the run continues, finishes or fails."""


class Suspend(Record, tag_field="outcome", tag="suspend"):
    """Calls wait for an answer."""


class Announce(Record, tag_field="outcome", tag="announce"):
    """The step has companion calls, which are carried out only after a commit has made the step durable. Other calls
    may be waiting for an answer beside them."""


class Stop(Record, tag_field="outcome", tag="stop"):
    """End the run as requested. The commit consumes the stop request and knows whether it interrupts or aborts."""


class Fail(Record, tag_field="outcome", tag="fail"):
    """End the run as failed."""

    code: str


StepOutcome: TypeAlias = Advance | Announce | Suspend | Stop | Fail


class CommitRequest(Record):
    """Make a step durable. Step and round identify the commit: repeating it returns the first answer."""

    batch: OpenBatch
    outcome: StepOutcome


class CommitAck(Record):
    """The commit's answer: continue with the next step, look at the batch again, the run ended with `status`, or
    another driver has taken over."""

    next: Literal["continue", "again", "ended", "superseded"]
    status: RunStatus | None = None


class RunEnd(Record):
    """How a run left its driver. `yielded` asks for a fresh driver at the position in the store.

    A driver that has the run record of its last commit at hand may attach it for callers that wait for the result.
    """

    status: RunStatus | Literal["superseded", "yielded"]
    run: RunRecord | None = None


class Ops(Protocol):
    """The effects of one run. One await is one effect."""

    async def open(self) -> Position:
        """Find where this run stands, and tell readers and hooks that it begins."""
        ...

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        """Build the request, stream the reply, plan its calls, and keep all of it until the commit."""
        ...

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        """Run calls side by side; the runtime decides how."""
        ...

    async def commit(self, request: CommitRequest) -> CommitAck:
        """Make the step durable, all of it or nothing."""
        ...

    def should_yield(self) -> bool:
        """Whether this driver wants a fresh one to take over at the next step. Not an effect."""
        ...

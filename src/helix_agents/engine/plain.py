"""The loop over effects that run anywhere: requests and answers are plain dictionaries, small and free of texts.

A durable engine keeps these dictionaries in its history and returns them on replay. This module is safe to load in
Temporal's sandbox: it does no I/O and does not import the effect bodies.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record, decode, decode_json, encode
from helix_agents.domain.runs import Fence
from helix_agents.engine.effects import (
    ANSWERED_BY_SOMEBODY,
    Ask,
    Batch,
    CallKind,
    CallOutcome,
    CommitAck,
    CommitRequest,
    DriveRun,
    Ops,
    PlannedCall,
    Position,
    Reply,
    RunEnd,
    RunFailed,
    Stopped,
    Within,
)
from helix_agents.engine.turn import run_turn

EFFECT_SEQUENCE = 4
"""Increased whenever the loop asks for different effects or asks in a different order. A history with another number is
not replayed; its run continues from the store, as its next attempt in a fresh workflow."""

Plain: TypeAlias = dict[str, Any]
EffectName: TypeAlias = Literal["open", "ask_model", "run_calls", "commit"]

R = TypeVar("R", bound=Record)

_INSTANT: frozenset[CallKind] = frozenset(("client", "rejected", "finish"))
"""Calls that run no user code; all of them in one batch form a single effect."""


class CallsRequest(Record):
    """Take calls of a batch as far as they can go. If `gave_up` is set, the call must not be run again, and it says
    why.

    With `hand_out`, the requester drives a call's child itself, and asks again with `driven` once the child has come to
    rest.
    """

    step: int
    round: int
    calls: tuple[PlannedCall, ...]
    gave_up: str | None = None
    hand_out: bool = False
    driven: bool = False

    @property
    def name(self) -> str:
        """A name that no other effect of the run has: call ids are unique within a round."""
        return f"calls:{self.step}.{self.round}:{self.calls[0].tool_call_id}"


class CallOutcomes(Record):
    """The outcomes of the requested calls, in the same order."""

    outcomes: tuple[CallOutcome, ...]


_ANSWERS: dict[str, type[Record]] = {
    "position": Position,
    "reply": Reply,
    "stopped": Stopped,
    "failed": RunFailed,
    "outcomes": CallOutcomes,
    "drive": DriveRun,
    "ack": CommitAck,
    "end": RunEnd,
}
_NAMES = {kind: name for name, kind in _ANSWERS.items()}


class Perform(Protocol):
    """How a runtime performs an effect: once if it can, again if it must. `name` is unique within the run."""

    async def __call__(self, effect: EffectName, name: str, request: Plain, /) -> Plain: ...


class DriveBeside(Protocol):
    """How a runtime drives the run of a child outside the effect of its parent's call."""

    async def __call__(self, run: DriveRun, /, within: Within) -> RunEnd: ...


class RunIsOver(Exception):  # noqa: N818  # nothing went wrong: the loop is left because there is nothing more to do
    """An effect found that this driver has nothing more to do."""

    def __init__(self, end: RunEnd) -> None:
        super().__init__(end)
        self.end = end


class PlainOps(Ops):
    """The four effects of a run, each sent out as a request and answered with a dictionary.

    Companion calls of one step run one after another, in the model's order, so that names are taken in that order
    wherever the calls run. With `drive`, children are driven beside the effects of their parent and not inside one.
    `within` is set for a child's run: the call of the parent that it works for.
    """

    def __init__(
        self,
        perform: Perform,
        *,
        should_yield: Callable[[], bool] = lambda: False,
        drive: DriveBeside | None = None,
        within: Within | None = None,
    ) -> None:
        self._perform = perform
        self._drive = drive
        self._within = within
        self._is_yielding = False
        self._should_yield = should_yield

    async def open(self) -> Position:
        self._position = _expect(await self._perform("open", "open", {}), Position)
        return self._position

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        answer = await self._perform("ask_model", f"ask_model:{ask.step}", to_plain(ask))
        return _expect(answer, Reply, Stopped, RunFailed)

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        groups, in_turn = _effects_of(batch)
        done = await self._side_by_side(batch, groups)
        for call in in_turn:
            done.extend(await self._run(batch, (call,)))
        if self._is_yielding:
            # A child wants a fresh driver, so everything above it needs one too. By now its siblings have come to rest.
            raise RunIsOver(RunEnd(status="yielded"))
        outcomes = {outcome.tool_call_id: outcome for outcome in done}
        waiting = (CallOutcome(tool_call_id=call.tool_call_id, state="waiting") for call in batch.calls)
        return tuple(outcomes.get(each.tool_call_id, each) for each in waiting)

    async def commit(self, request: CommitRequest) -> CommitAck:
        name = f"commit:{request.batch.step}.{request.batch.round}"
        return _expect(await self._perform("commit", name, to_plain(request)), CommitAck)

    def should_yield(self) -> bool:
        return self._should_yield()

    async def _side_by_side(self, batch: Batch, groups: list[tuple[PlannedCall, ...]]) -> list[CallOutcome]:
        if len(groups) == 1:
            return list(await self._run(batch, groups[0]))
        tasks = [asyncio.create_task(self._run(batch, calls)) for calls in groups]
        try:
            return [outcome for done in await asyncio.gather(*tasks) for outcome in done]
        except (Exception, asyncio.CancelledError):
            # Not `BaseException`: an engine that evicts a workflow closes its coroutines, which cannot await then.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _run(self, batch: Batch, calls: tuple[PlannedCall, ...]) -> tuple[CallOutcome, ...]:
        request = CallsRequest(step=batch.step, round=batch.round, calls=calls)
        match await self._perform_calls(request):
            case CallOutcomes(outcomes=outcomes):
                return outcomes
            case RunEnd(status="yielded"):
                self._is_yielding = True
                return ()
            case end:
                raise RunIsOver(end)

    async def _perform_calls(self, request: CallsRequest) -> CallOutcomes | RunEnd:
        if self._drive is not None and request.calls[0].kind == "child":
            return await drive_call(self._perform, request, partial(self._drive, within=self._call_within(request)))
        return _one_of(await self._perform("run_calls", request.name, to_plain(request)), CallOutcomes, RunEnd)

    def _call_within(self, request: CallsRequest) -> Within:
        at = self._position
        return call_within(request, at.session_id, Fence(run_id=at.run_id, attempt=at.attempt), self._within)


async def drive_call(
    perform: Perform, request: CallsRequest, drive: Callable[[DriveRun], Awaitable[RunEnd]]
) -> CallOutcomes | RunEnd:
    """Drive the child of a call until the call has its outcome or the child wants a fresh driver. `perform` performs
    effects of the run that made the call."""
    for asked in count():
        wanted = msgspec.structs.replace(request, hand_out=True, driven=asked > 0)
        answer = await perform("run_calls", f"{request.name}.{asked}", to_plain(wanted))
        match _one_of(answer, CallOutcomes, DriveRun, RunEnd):
            case DriveRun() as child:
                end = await drive(child)
                if end.status == "yielded":
                    return end
            case outcomes_or_end:
                return outcomes_or_end
    raise AssertionError("counting never ends")


def call_within(request: CallsRequest, session_id: SessionId, fence: Fence, above: Within | None) -> Within:
    """The call that the child of this request works for."""
    (call,) = request.calls
    return Within(
        session_id=session_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        step=request.step,
        round=request.round,
        tool_call_id=call.tool_call_id,
        timeout_ms=call.timeout_ms,
        within=above,
    )


def _effects_of(batch: Batch) -> tuple[list[tuple[PlannedCall, ...]], list[PlannedCall]]:
    """Split a batch into effects: first the groups that run side by side, then the calls that run one after another.

    Calls that wait for an answer need no effect in the first round: the commit announces them.
    """
    together: list[PlannedCall] = []
    groups: list[tuple[PlannedCall, ...]] = []
    companions: list[PlannedCall] = []
    for call in batch.calls:
        if call.kind in ANSWERED_BY_SOMEBODY and batch.round == 0:
            continue
        if call.kind == "companion":
            companions.append(call)
        elif call.kind in _INSTANT:
            together.append(call)
        else:
            groups.append((call,))
    return ([tuple(together)] if together else []) + groups, companions


async def run_plain_turn(ops: Ops) -> RunEnd:
    """Run the loop; leave it early if an effect finds that another driver owns the run or that it cannot be driven."""
    try:
        return await run_turn(ops)
    except RunIsOver as over:
        return over.end


def is_in_store(effect: EffectName, request: Plain) -> bool:
    """Whether a durable engine need not keep the answer of an effect. The commit of a whole step is in the store or is
    not, and a repeated request gets its answer from the session's position."""
    return effect == "commit" and request["outcome"]["outcome"] == "advance"


def is_for_child(effect: EffectName, request: Plain) -> bool:
    """Whether an effect is a delegated call that would drive its child itself; a runtime that drives the child
    separately uses `drive_call`."""
    return effect == "run_calls" and request["calls"][0]["kind"] == "child" and not request.get("hand_out")


def to_plain(record: Record) -> Plain:
    """A record as a dictionary that any engine can store; an answer names its type under `is`."""
    plain: Plain = decode_json(encode(record))
    name = _NAMES.get(type(record))
    return plain if name is None else {"is": name, **plain}


def from_plain(plain: Plain, kind: type[R]) -> R:
    """The request that a dictionary holds."""
    return decode(encode(plain), kind)


def answer_of(plain: Plain) -> Record:
    """The answer that a dictionary holds."""
    fields = dict(plain)
    return from_plain(fields, _ANSWERS[fields.pop("is")])


def _expect(plain: Plain, *kinds: type[R]) -> R:
    if plain["is"] == _NAMES[RunEnd]:
        raise RunIsOver(_one_of(plain, RunEnd))
    return _one_of(plain, *kinds)


def _one_of(plain: Plain, *kinds: type[R]) -> R:
    answer = answer_of(plain)
    assert isinstance(answer, kinds), answer
    return answer

"""The loop over effects that run anywhere: requests and answers as plain dictionaries, small and free of texts.

A durable engine keeps these dictionaries in its history and gives them back on replay. This module is safe to load in
Temporal's sandbox: it does no I/O and knows nothing of the bodies.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from helix_agents.domain.records import Record, decode, decode_json, encode
from helix_agents.engine.effects import (
    Ask,
    Batch,
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

EFFECT_SEQUENCE = 1
"""Raised whenever the loop asks for other effects, or in another order: a history of another number is not replayed.
A run that it belongs to goes on from the store, as its next attempt in a fresh workflow."""

Plain: TypeAlias = dict[str, Any]
EffectName: TypeAlias = Literal["open", "ask_model", "run_call", "commit"]

R = TypeVar("R", bound=Record)

_ANSWERS: dict[str, type[Record]] = {
    "position": Position,
    "reply": Reply,
    "stopped": Stopped,
    "failed": RunFailed,
    "outcome": CallOutcome,
    "drive": DriveRun,
    "ack": CommitAck,
    "end": RunEnd,
}
_NAMES = {kind: name for name, kind in _ANSWERS.items()}


class CallRequest(Record):
    """Bring one call of a batch as far as it goes; `gave_up` says why nobody is to run it again.

    Who asks to `hand_out` a child drives it, and asks again once it was `driven`.
    """

    step: int
    round: int
    call: PlannedCall
    gave_up: str | None = None
    hand_out: bool = False
    driven: bool = False


class Perform(Protocol):
    """How a runtime has an effect done: once if it can, again if it must. `name` is unlike that of any other effect of
    the run."""

    async def __call__(self, effect: EffectName, name: str, request: Plain, /) -> Plain: ...


class DriveChild(Protocol):
    """How a runtime drives the run of a child outside the effect of its parent's call."""

    async def __call__(self, run: DriveRun, within: Within, /) -> RunEnd: ...


class RunIsOver(Exception):  # noqa: N818  # nothing went wrong: the loop is left because there is nothing more to do
    """An effect found that this driver has nothing more to do."""

    def __init__(self, end: RunEnd) -> None:
        super().__init__(end)
        self.end = end


class PlainOps(Ops):
    """The four effects of a run, each a request that goes somewhere and an answer that comes back.

    Companions of one step take their names one after another; where their calls run in different processes they are
    asked for `companions_in_turn`. With `drive`, children are driven beside the effects of their parent and not inside
    one; the effects of a run that works for another one are those of a call `within` that one.
    """

    def __init__(
        self,
        perform: Perform,
        *,
        should_yield: Callable[[], bool] = lambda: False,
        companions_in_turn: bool = False,
        drive: DriveChild | None = None,
        within: Within | None = None,
    ) -> None:
        self._perform = perform
        self._drive = drive
        self._within = within
        self._should_yield = should_yield
        self._in_turn = companions_in_turn

    async def open(self) -> Position:
        self._position = _expect(await self._perform("open", "open", {}), Position)
        return self._position

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        answer = await self._perform("ask_model", f"ask_model:{ask.step}", to_plain(ask))
        return _expect(answer, Reply, Stopped, RunFailed)

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        later = [call for call in batch.calls if self._in_turn and call.kind == "companion"]
        done = await self._side_by_side(batch, [call for call in batch.calls if call not in later])
        for call in later:
            done.append(await self._run(batch, call))
        outcomes = tuple(outcome for outcome in done if outcome is not None)
        if len(outcomes) < len(done):
            # A child wants a fresh driver, and so does everything above it; its siblings have come to rest.
            raise RunIsOver(RunEnd(status="yielded"))
        return outcomes

    async def commit(self, request: CommitRequest) -> CommitAck:
        name = f"commit:{request.batch.step}.{request.batch.round}"
        return _expect(await self._perform("commit", name, to_plain(request)), CommitAck)

    def should_yield(self) -> bool:
        return self._should_yield()

    async def _side_by_side(self, batch: Batch, calls: list[PlannedCall]) -> list[CallOutcome | None]:
        if len(calls) == 1:
            return [await self._run(batch, calls[0])]
        tasks = [asyncio.create_task(self._run(batch, call)) for call in calls]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, batch: Batch, call: PlannedCall) -> CallOutcome | None:
        """What becomes of a call; None when its child wants a fresh driver."""
        name = f"call:{batch.step}.{batch.round}:{call.tool_call_id}"
        if self._drive is None or call.kind != "child":
            request = CallRequest(step=batch.step, round=batch.round, call=call)
            return _expect(await self._perform("run_call", name, to_plain(request)), CallOutcome)
        for asked in count():
            request = CallRequest(step=batch.step, round=batch.round, call=call, hand_out=True, driven=asked > 0)
            answer = await self._perform("run_call", f"{name}.{asked}", to_plain(request))
            match _expect(answer, CallOutcome, DriveRun):
                case DriveRun() as child:
                    end = await self._drive(child, self._call_within(batch, call))
                    if end.status == "yielded":
                        return None
                case outcome:
                    return outcome
        raise AssertionError("counting never ends")

    def _call_within(self, batch: Batch, call: PlannedCall) -> Within:
        at = self._position
        return Within(
            session_id=at.session_id,
            run_id=at.run_id,
            attempt=at.attempt,
            step=batch.step,
            round=batch.round,
            tool_call_id=call.tool_call_id,
            timeout_ms=call.timeout_ms,
            within=self._within,
        )


async def run_plain_turn(ops: Ops) -> RunEnd:
    """The loop, left early where an effect finds that another driver has the run or that it cannot be driven."""
    try:
        return await run_turn(ops)
    except RunIsOver as over:
        return over.end


def to_plain(record: Record) -> Plain:
    """A record as a dictionary that any engine can store; an answer says what it is."""
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
    answer = answer_of(plain)
    if isinstance(answer, RunEnd):
        raise RunIsOver(answer)
    assert isinstance(answer, kinds), answer
    return answer

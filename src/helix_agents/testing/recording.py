"""A runtime that watches the loop: it logs every effect, stops a run at any of them, and replays the log.

The log is what a durable engine would keep. The loop suits such an engine because, given the same results, it asks for
the same effects in the same order; `prove_replayable` shows this for a log.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from helix_agents.domain.records import Record, decode, encode
from helix_agents.domain.runs import Fence
from helix_agents.engine.effects import (
    Ask,
    Batch,
    CallOutcome,
    CommitAck,
    CommitRequest,
    Ops,
    Position,
    Reply,
    RunEnd,
    RunFailed,
    Stopped,
)
from helix_agents.engine.turn import run_turn
from helix_agents.runtimes.executor.owned_runs import LetGo
from helix_agents.runtimes.in_process import Executor

EffectKind: TypeAlias = Literal["open", "ask_model", "run_batch", "commit"]
Side: TypeAlias = Literal["before", "after"]
Request: TypeAlias = Ask | Batch | CommitRequest | None
Answer: TypeAlias = Position | Reply | Stopped | RunFailed | tuple[CallOutcome, ...] | CommitAck

T = TypeVar("T", bound=Answer)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class AskedFor:
    """An effect that the loop asked for."""

    kind: EffectKind
    request: Request


@dataclass(frozen=True, kw_only=True)
class Effect:
    """An effect and its result."""

    asked: AskedFor
    answer: Answer


@dataclass(kw_only=True)
class RunLog:
    """The effects of one attempt of a run, in order; `end` is set once the attempt has left its driver."""

    effects: list[Effect] = field(default_factory=list[Effect])
    end: RunEnd | None = None


class StoppedHereError(LetGo):
    """What a recorder raises instead of continuing: the run is released, as by a process that ends."""


class ReplayDivergedError(Exception):
    """The loop asked for an effect other than the one in its log."""

    def __init__(self, place: int, logged: AskedFor, asked: AskedFor) -> None:
        super().__init__(place, logged, asked)
        self.place, self.logged, self.asked = place, logged, asked

    def __str__(self) -> str:
        return f"effect {self.place} of the log is {self.logged}, but the loop asked for {self.asked}"


@dataclass(frozen=True, kw_only=True)
class StopAt:
    """A boundary: before or after the n-th effect, or the n-th of a kind, counted from 1 over all runs that a recorder
    watches."""

    effect: int
    side: Side
    kind: EffectKind | None = None


class Recorder:
    """Logs the effects of every run it is wrapped around.

    At the boundary `stop_at` it calls `on_stop`, which may kill or freeze the process, and then stops the run and every
    other one that reaches an effect later; if it `goes_on`, nothing is stopped.
    """

    def __init__(
        self, stop_at: StopAt | None = None, *, on_stop: Callable[[], object] | None = None, goes_on: bool = False
    ) -> None:
        self.logs: dict[Fence, RunLog] = {}
        self.kinds: list[EffectKind] = []
        self.has_stopped = False
        self._stop_at = stop_at
        self._on_stop = on_stop
        self._goes_on = goes_on

    def wrap(self, ops: Ops) -> Ops:
        """The same effects, watched."""
        return _WatchedOps(self, ops)

    async def watch(self, log: RunLog, asked: AskedFor, effect: Callable[[], Awaitable[T]]) -> T:
        """One effect: counted, done unless this is where to stop, and logged."""
        if self.has_stopped:
            raise StoppedHereError
        self.kinds.append(asked.kind)
        here = self._is_the_one(asked.kind)
        self._reach("before", here=here)
        answer = await effect()
        log.effects.append(Effect(asked=asked, answer=answer))
        self._reach("after", here=here)
        return answer

    def _is_the_one(self, kind: EffectKind) -> bool:
        """Whether the latest effect is the one to stop at."""
        at = self._stop_at
        if at is None or at.kind not in (None, kind):
            return False
        return at.effect == (len(self.kinds) if at.kind is None else self.kinds.count(kind))

    def _reach(self, side: Side, *, here: bool) -> None:
        if not here or self._stop_at is None or self._stop_at.side != side:
            return
        self.has_stopped = not self._goes_on
        if self._on_stop is not None:
            self._on_stop()
        if self.has_stopped:
            raise StoppedHereError


class _WatchedOps(Ops):
    def __init__(self, recorder: Recorder, ops: Ops) -> None:
        self._recorder = recorder
        self._ops = ops
        self._log = RunLog()

    async def open(self) -> Position:
        async def open_and_name() -> Position:
            position = await self._ops.open()
            self._recorder.logs[Fence(run_id=position.run_id, attempt=position.attempt)] = self._log
            if position.ended is not None:
                self._log.end = RunEnd(status=position.ended)
            return position

        return await self._recorder.watch(self._log, AskedFor(kind="open", request=None), open_and_name)

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        asked = AskedFor(kind="ask_model", request=ask)
        return await self._recorder.watch(self._log, asked, lambda: self._ops.ask_model(ask))

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        asked = AskedFor(kind="run_batch", request=batch)
        return await self._recorder.watch(self._log, asked, lambda: self._ops.run_batch(batch))

    async def commit(self, request: CommitRequest) -> CommitAck:
        async def commit_and_note_end() -> CommitAck:
            ack = await self._ops.commit(request)
            if ack.next == "ended" and ack.status is not None:
                self._log.end = RunEnd(status=ack.status)
            elif ack.next == "superseded":
                self._log.end = RunEnd(status="superseded")
            return ack

        asked = AskedFor(kind="commit", request=request)
        return await self._recorder.watch(self._log, asked, commit_and_note_end)

    def should_yield(self) -> bool:
        yields = self._ops.should_yield()
        if yields:
            self._log.end = RunEnd(status="yielded")
        return yields


class RecordingExecutor(Executor):
    """The in-process executor, watched by a recorder."""

    def __init__(self, *, recorder: Recorder, **settings: Any) -> None:
        super().__init__(**settings)
        self.recorder = recorder

    def _wrap(self, ops: Ops) -> Ops:
        return self.recorder.wrap(ops)


async def replay(log: RunLog, effects: int | None = None) -> RunEnd | AskedFor:
    """Run the loop against the first `effects` results of a log; returns how it ended, or what it asks for next.

    Raises:
        ReplayDivergedError: it asked for an effect other than the one in the log.
    """
    ops = _ReplayedOps(log, len(log.effects) if effects is None else effects)
    try:
        return await run_turn(ops)
    except _OutOfAnswersError as end:
        return end.asked


async def prove_replayable(log: RunLog) -> None:
    """Replay every prefix of a log: each time the loop asks for the effect that comes next in it, and ends as it did.

    Requests and results also go through JSON, as they do in a durable engine's history.

    Raises:
        ReplayDivergedError: it did not.
    """
    through_json = RunLog(effects=[_through_json(effect) for effect in log.effects], end=log.end)
    for candidate in (log, through_json):
        for place, effect in enumerate(candidate.effects):
            asked = await replay(candidate, place)
            if asked != effect.asked:
                assert isinstance(asked, AskedFor), f"the loop ended with {asked} before effect {place} of its log"
                raise ReplayDivergedError(place, effect.asked, asked)
        end = await replay(candidate)
        assert log.end is None or end == log.end, f"the run ended as {log.end}, its replay as {end}"


class _OutOfAnswersError(Exception):
    def __init__(self, asked: AskedFor) -> None:
        super().__init__(asked)
        self.asked = asked


class _ReplayedOps(Ops):
    def __init__(self, log: RunLog, effects: int) -> None:
        self._log = log
        self._effects = log.effects[:effects]
        self._place = 0

    async def open(self) -> Position:
        return self._answer(AskedFor(kind="open", request=None), Position)

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        return self._answer(AskedFor(kind="ask_model", request=ask), Reply, Stopped, RunFailed)

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        return self._answer(AskedFor(kind="run_batch", request=batch), tuple)

    async def commit(self, request: CommitRequest) -> CommitAck:
        return self._answer(AskedFor(kind="commit", request=request), CommitAck)

    def should_yield(self) -> bool:
        ended = self._log.end == RunEnd(status="yielded")
        return ended and self._place == len(self._log.effects)

    def _answer(self, asked: AskedFor, *kinds: type[Any]) -> Any:
        if self._place == len(self._effects):
            raise _OutOfAnswersError(asked)
        effect = self._effects[self._place]
        if effect.asked != asked:
            raise ReplayDivergedError(self._place, effect.asked, asked)
        assert isinstance(effect.answer, kinds)
        self._place += 1
        return effect.answer


def _through_json(effect: Effect) -> Effect:
    asked, answer = effect.asked, effect.answer
    request = None if asked.request is None else _copied(asked.request)
    copied = tuple(_copied(each) for each in answer) if isinstance(answer, tuple) else _copied(answer)
    return Effect(asked=AskedFor(kind=asked.kind, request=request), answer=copied)


def _copied(record: R) -> R:
    return decode(encode(record), type(record))

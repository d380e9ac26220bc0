"""The same conversation, wherever it is driven: each runtime answers the same, and leaves the same behind."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.sessions import SessionFilter
from helix_agents.llm.script import Step
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.dbos import DBOSAgentExecutor, instance
from helix_agents.runtimes.in_process import Executor
from helix_agents.runtimes.temporal import TemporalAgentExecutor
from helix_agents.testing import reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.recovery.random_talk import OPTIONS, ROOT, Talk, calls_of, parts_of
from tests.recovery.talk_plans import LONGEST_MS
from tests.scenarios.test_dbos import CONFIG

NAMES = count(1)
TALKS = 40
SECONDS = 60

OpenExecutor = Callable[..., Any]


class SameTalk(Talk):
    """A conversation in which nothing happens beside it and nobody dies, so that it goes the same way each time."""

    def __init__(self, seed: int, parts: Backend, clock: ManualClock, open_executor: OpenExecutor) -> None:
        super().__init__(seed, parts, clock)
        self._open = open_executor
        self.heard: list[str] = []

    async def tell(self, moves: list[int]) -> Any:
        """Make the moves, one after the other; what was answered, and what is left of everything."""
        parts = parts_of(self._parts)
        settings = {"agents": [self.agent], "janitor_seconds": None, "grace": 0.0, "options": OPTIONS}
        async with (
            asyncio.timeout(SECONDS),
            self.ends.listening(),
            self._open(**parts, **settings, webhooks=self.ends.webhooks) as helix,
        ):
            for number in moves:
                await self._make(partial(self._one_of(number), helix, number))
                await helix.idle()
                await self.check(helix)
                self.heard.append(await self._standing(helix))
            left = await self._left(helix)
            await self._check_told(helix)
            return [self.did, self.heard, left]

    def _one_of(self, number: int) -> Callable[[Any, int], Any]:
        moves = (
            *(self._execute, self._execute, self._resume, self._answer, self._answer_all, self._answer_all),
            *(self._stop, self._go_on_with_words, self._retry, self._rewind, self._answer_strangely),
            *(self._queue, self._wait_for_a_plan),
        )
        move = moves[number % len(moves)]
        self.did.append(move.__name__)
        return move

    async def _wait_for_a_plan(self, helix: Any, number: int) -> None:
        """Something is said when its time has come."""
        await self.plans.make(helix, number)
        self._clock.advance(LONGEST_MS)
        await helix.sweep()

    def lose_the_answer(self) -> None:
        """Which of two calls is lost side by side would be chance."""

    def _reply(self, request: ModelRequest) -> Step:
        said = super()._reply(request)
        if request.agent_type != "boss" or not hasattr(said, "calls"):
            return said
        # A companion that does not block works beside the conversation, and is heard of sooner or later.
        random = Random(f"{self._seed}/{len(request.messages)}")
        people = ("helper", "steady", "hand_in", "look", "skill")
        names = ("note", "spend", "mark", "shelve", "clear", "send", "pay", "locate", "fail", "wrong", *people)
        return reply("Well. ", calls=calls_of(random, names))

    async def _standing(self, helix: Any) -> str:
        handle = await helix.get_handle(self.agent, ROOT)
        return "nothing" if handle is None else type(await handle.result()).__name__

    async def _left(self, helix: Any) -> list[Any]:
        sessions = (await helix.sessions.list(SessionFilter(), limit=200)).items
        told: list[Any] = []
        for each in sessions:
            state = await helix.sessions.get(each.session_id)
            messages = await self._parts.state.load_transcript(each.session_id)
            runs = (await helix.sessions.runs(each.session_id, limit=200)).items
            told.append(
                [
                    each.agent_type,
                    state.status,
                    state.failure_reason,
                    _nameless(repr(state.custom_state)),
                    [_shown(row.message) for row in messages],
                    [(run.turn, run.status, run.step_count) for run in runs],
                ]
            )
        waiting = [(call.tool_name, call.kind, call.state) for call in await self._waiting(helix)]
        used = await self._parts.usage.get_usage_rollup(ROOT) if sessions else None
        return [sorted(told, key=repr), sorted(waiting), _nameless(encode(used).decode() if used else "")]


def _shown(message: Message) -> Any:
    match message:
        case UserMessage(content=content):
            return ("user", _nameless(str(content)))
        case AssistantMessage(text=text, tool_calls=calls, interrupted=interrupted):
            return ("assistant", text, [(call.name, call.arguments) for call in calls], interrupted)
        case ToolMessage(content=content, error=error, code=code):
            return ("result", _nameless(repr(content)), error, code)


def _nameless(text: str) -> str:
    """The text without what is made up anew each time."""
    text = re.sub(r"\b[a-z]+_[0-9a-hjkmnp-tv-z]{26}\b", "<id>", text)
    return re.sub(r"\bcall_\w+", "<call>", text)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="helix_agents")


@pytest.fixture(scope="module")
def system_database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A DBOS that stays while executors come and go."""
    url = f"sqlite:///{tmp_path_factory.mktemp('dbos') / 'dbos.db'}"
    asyncio.run(instance.acquire(instance.Wanted(system_database_url=url, config=CONFIG), "talks"))
    yield url
    asyncio.run(instance.release())


@pytest.fixture
def runtimes(system_database_url: str, temporal_address: str) -> dict[str, OpenExecutor]:
    def on_dbos(**settings: Any) -> Any:
        own = {"system_database_url": system_database_url, "dbos_config": CONFIG, "prefix": f"talk-{next(NAMES)}"}
        return DBOSAgentExecutor(**own, **settings)

    def on_temporal(**settings: Any) -> Any:
        queue = f"talk-{id(settings)}-{next(NAMES)}"
        return TemporalAgentExecutor(address=temporal_address, task_queue=queue, prefix=queue, **settings)

    return {"in process": Executor, "on DBOS": on_dbos, "on Temporal": on_temporal}


async def same(seed: int, runtimes: dict[str, OpenExecutor]) -> None:
    random = Random(seed)
    moves = [0, *(random.randrange(10_000) for _ in range(random.randrange(2, 6)))]
    told: dict[str, Any] = {}
    for name, open_executor in runtimes.items():
        clock = ManualClock()
        async with await open_backend("memory://", clock=clock) as parts:
            told[name] = await SameTalk(seed, parts, clock, open_executor).tell(moves)
    first = told.pop("in process")
    for name, other in told.items():
        assert other == first, f"seed {seed} {name}"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_talk_goes_the_same_way_on_every_runtime(seed: int, runtimes: dict[str, OpenExecutor]) -> None:
    await same(seed, runtimes)


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
async def test_many_talks_go_the_same_way_on_every_runtime(runtimes: dict[str, OpenExecutor]) -> None:
    begin = Random().randrange(1_000_000)
    for seed in range(begin, begin + TALKS):
        await same(seed, runtimes)

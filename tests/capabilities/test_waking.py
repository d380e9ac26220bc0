"""A watch that wakes: what changed while a session did nothing begins a turn of it, told exactly once."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, AnyAgent, ApprovalAnswer, Executor, PersistentAgent, ScriptedModel, Suspended, tool
from helix_agents.capabilities.client import open_state
from helix_agents.capabilities.settings import HOUR_MS, Limits
from helix_agents.capabilities.toolset import state_capabilities
from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.entries import EntryTransaction, Put
from helix_agents.domain.errors import AgentAlreadyRunningError
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing import call, reply
from helix_agents.testing.contracts.entry_handles import entries_of
from helix_agents.testing.contracts.executor.stage import until
from helix_agents.testing.contracts.processes import processes_for
from helix_agents.testing.seams import HoldingSeam
from helix_agents.testing.workers import Processes
from tests.capabilities import state_jobs
from tests.capabilities.worlds import World

BLOCKED_AFTER = 0.02
MOST_DEATHS = 30
MOST_STATEMENTS = 200
PATIENCE = 20.0
SESSION = "s-1"


@tool(require_approval=True)
async def publish() -> str:
    """Publish."""
    return "published"


def watcher(world: World, *script: Any, **fields: Any) -> AnyAgent:
    """An agent that says something for every turn it gets."""
    model = ScriptedModel([*script, *["heard"] * 300])
    bundle = state_capabilities(limits=world.limits, directory=world.folder / "files")
    return Agent(name="ann", model=model, capabilities=[bundle], **fields)


def watching(prefix: str = "config.", **inputs: Any) -> Any:
    return call("state__shared__watch", {"prefix": prefix, **inputs})


@asynccontextmanager
async def executor(world: World, *agents: AnyAgent, **options: Any) -> AsyncIterator[Executor]:
    """One whose janitor sweeps when a test says so."""
    async with Executor.open(world.url, agents=agents, janitor_seconds=None, **options) as helix:
        yield helix


async def write(world: World, key: str = "config.mode", value: Any = 1, who: str = "bob") -> None:
    async with world.open(who) as state:
        await state.shared.apply(key, lambda _: value)


async def news(backend: Backend, session_id: str = SESSION) -> list[dict[str, Any]]:
    """Everything the session was told of changes, in order."""
    found: list[dict[str, Any]] = []
    for row in await backend.state.load_transcript(session_id):
        message = row.message
        if isinstance(message, UserMessage) and message.metadata.get("helix") in ("news", "wakeup"):
            found.extend(json.loads(str(message.content).partition(": ")[2]))
    return found


async def has_heard(backend: Backend) -> bool:
    return bool(await news(backend))


async def turns(backend: Backend, session_id: str = SESSION) -> list[str]:
    return [run.status for run in reversed((await backend.state.list_runs(session_id, limit=200)).items)]


@pytest.fixture
async def backend(each_world: World) -> AsyncIterator[Backend]:
    async with await open_backend(each_world.url) as backend:
        yield backend


@asynccontextmanager
async def idle_watcher(world: World, *script: Any, **inputs: Any) -> AsyncIterator[Executor]:
    """An executor with a session that watches and has finished its turn."""
    ann = watcher(world, reply(calls=[watching(**inputs)]), "watching", *script)
    async with executor(world, ann) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
        yield helix


async def swept(helix: Executor) -> int:
    """Sweep, and let what began come to its end."""
    woken = (await helix.sweep()).woken
    await helix.idle()
    return woken


async def test_a_change_begins_a_turn_of_an_idle_session_once(each_world: World, backend: Backend) -> None:
    async with idle_watcher(each_world) as helix:
        assert await swept(helix) == 0
        await write(each_world)
        await write(each_world, "other")
        assert await swept(helix) == 1
        assert await swept(helix) == 0
        [told] = await news(backend)
        assert (told["key"], told["op"], told["owner_agent"]) == ("config.mode", "put", "bob")
        assert await turns(backend) == ["completed", "completed"]
        await write(each_world, value=2)
        await write(each_world, value=3)
        assert await swept(helix) == 1
        assert [each["version"] for each in await news(backend)] == [1, 2, 3]


async def test_what_other_sessions_of_the_agent_wrote_hides_no_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helix_agents.capabilities.watching.PAGE", 3)
    async with idle_watcher(world) as helix:
        for number in range(10):
            await write(world, f"config.{number}", who="ann")
        await write(world)
        assert await swept(helix) == 1


async def test_it_happens_by_itself_soon_after_the_change(each_world: World, backend: Backend) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), "watching")
    async with Executor.open(each_world.url, agents=[ann], janitor_seconds=60.0) as helix, asyncio.timeout(PATIENCE):
        await (await helix.execute(ann, "go", SESSION)).result()
        await write(each_world)
        await until(lambda: has_heard(backend))
        assert [told["key"] for told in await news(backend)] == ["config.mode"]


async def test_an_agent_that_comes_to_be_known_later_is_woken_too(each_world: World, backend: Backend) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), "watching")
    async with Executor.open(each_world.url, janitor_seconds=60.0) as helix, asyncio.timeout(PATIENCE):
        await (await helix.execute(ann, "go", SESSION)).result()
        await write(each_world)
        await until(lambda: has_heard(backend))


async def test_what_changed_while_a_turn_ended_is_not_forgotten(each_world: World, backend: Backend) -> None:
    """The model was asked before the change, and its turn ends without asking again."""
    holding, going = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        holding.set()
        await going.wait()
        return "held"

    ann = watcher(each_world, reply(calls=[watching()]), reply(calls=[call("hold", {})]), tools=[hold])
    async with executor(each_world, ann) as helix, asyncio.timeout(PATIENCE):
        handle = await helix.execute(ann, "go", SESSION)
        await holding.wait()
        await write(each_world)
        assert (await helix.sweep()).woken == 0
        going.set()
        await handle.result()
        assert len(await news(backend)) == 1
        assert await swept(helix) == 0


async def test_several_subscriptions_of_a_session_are_one_turn(each_world: World, backend: Backend) -> None:
    both = reply(calls=[watching("a."), watching("b.")])
    ann = watcher(each_world, both, "watching")
    async with executor(each_world, ann) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
        await write(each_world, "a.1")
        await write(each_world, "b.1")
        assert await swept(helix) == 1
        assert sorted(told["key"] for told in await news(backend)) == ["a.1", "b.1"]
        assert await turns(backend) == ["completed", "completed"]


async def test_a_suspended_session_keeps_what_it_waits_for_and_hears_the_change_when_it_goes_on(
    each_world: World, backend: Backend
) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), reply(calls=[call("publish", {}, id="c-1")]), tools=[publish])
    async with executor(each_world, ann) as helix:
        handle = await helix.execute(ann, "go", SESSION)
        assert isinstance(await handle.result(), Suspended)
        await write(each_world)
        assert await swept(helix) == 0
        assert [row.tool_call_id for row in (await helix.list_pending()).items] == ["c-1"]
        await helix.submit_tool_result(SESSION, "c-1", ApprovalAnswer(approved=True))
        await (await helix.resume(ann, SESSION)).result()
        assert [told["key"] for told in await news(backend)] == ["config.mode"]
        assert await swept(helix) == 0


async def test_a_watch_that_always_wakes_gives_up_what_the_session_waits_for(
    each_world: World, backend: Backend
) -> None:
    asks = reply(calls=[call("publish", {}, id="c-1")])
    ann = watcher(each_world, reply(calls=[watching(wake="always")]), asks, tools=[publish])
    async with executor(each_world, ann) as helix:
        assert isinstance(await (await helix.execute(ann, "go", SESSION)).result(), Suspended)
        await write(each_world)
        assert await swept(helix) == 1
        assert (await helix.list_pending()).items == ()
        assert [told["key"] for told in await news(backend)] == ["config.mode"]
        assert await turns(backend) == ["suspended_client_tool", "completed"]
        results = [row.message for row in await backend.state.load_transcript(SESSION)]
        answers = {each.tool_call_id: each for each in results if isinstance(each, ToolMessage)}
        assert answers["c-1"].code == "client_tool_abandoned"


@pytest.mark.parametrize("stop", ["interrupt", "pause", "fail"])
async def test_a_session_that_was_stopped_or_failed_stays_as_it_is(
    each_world: World, backend: Backend, stop: str
) -> None:
    asks = reply(calls=[call("publish", {}, id="c-1")])
    ann = watcher(each_world, reply(calls=[watching(wake="always")]), asks, tools=[publish])
    async with executor(each_world, ann) as helix:
        assert isinstance(await (await helix.execute(ann, "go", SESSION)).result(), Suspended)
        match stop:
            case "interrupt":
                await helix.interrupt(SESSION)
            case "fail":
                await helix.abort(SESSION)
            case _:
                await backend.state.compare_and_set_status(SESSION, ("active",), "paused")
        await write(each_world)
        assert await swept(helix) == 0
        assert await news(backend) == []


async def test_a_watch_that_never_wakes_waits_for_the_next_step(each_world: World, backend: Backend) -> None:
    async with idle_watcher(each_world, wake="never") as helix:
        await write(each_world)
        assert await swept(helix) == 0
        await (await helix.execute(next(iter(helix.agents)), "again", SESSION)).result()
        assert len(await news(backend)) == 1


async def test_clients_without_a_run_are_never_woken(each_world: World) -> None:
    async with each_world.open("ann") as plain, idle_watcher(each_world, prefix="other.") as helix:
        session = await plain.with_session()
        await session.call("state.shared.watch", wake="always")
        await write(each_world)
        assert await swept(helix) == 0


async def test_a_restore_and_falling_behind_wake_with_the_advice_to_read_again(
    each_world: World, backend: Backend
) -> None:
    async with idle_watcher(each_world) as helix:
        for number in range(5):
            await write(each_world, value=number)
        await entries_of(backend).prune_events(before_ms=0, keep=1)
        assert await swept(helix) == 1
        assert [told["type"] for told in await news(backend)] == ["resync_required"]
        assert await swept(helix) == 0


async def test_agents_that_answer_each_other_come_to_rest_and_nothing_is_lost(
    each_world: World, backend: Backend
) -> None:
    each_world.limits = Limits(wakes_per_hour=3)
    async with idle_watcher(each_world) as helix:
        for number in range(5):
            await write(each_world, value=number)
            assert await swept(helix) == int(number < 3)
        assert [told["version"] for told in await news(backend)] == [1, 2, 3]
        await (await helix.execute(next(iter(helix.agents)), "again", SESSION)).result()
        assert [told["version"] for told in await news(backend)] == [1, 2, 3, 4, 5]


async def test_where_nothing_may_wake_nothing_does(each_world: World, backend: Backend) -> None:
    each_world.limits = Limits(wakes_per_hour=0)
    async with idle_watcher(each_world) as helix:
        await write(each_world)
        assert await swept(helix) == 0
        assert await turns(backend) == ["completed"]


@pytest.mark.parametrize("ago", [HOUR_MS, -HOUR_MS])
async def test_after_an_hour_or_when_the_clock_was_set_back_it_may_wake_again(
    each_world: World, backend: Backend, ago: int
) -> None:
    each_world.limits = Limits(wakes_per_hour=1)
    async with idle_watcher(each_world) as helix:
        await write(each_world, value=1)
        assert await swept(helix) == 1
        await write(each_world, value=2)
        assert await swept(helix) == 0
        entries = entries_of(backend)
        [row] = (await entries.list_entries("sys.subscriptions", values=True)).items
        earlier = json.loads(row.value or "")
        earlier["woken_since"] -= ago
        put = Put(scope="sys.subscriptions", key=row.key, value=json.dumps(earlier))
        await entries.transact(EntryTransaction(changes=(put,), owner="test"))
        assert await swept(helix) == 1


async def test_the_subscription_of_a_session_that_is_gone_goes_with_it(each_world: World, backend: Backend) -> None:
    async with idle_watcher(each_world) as helix:
        await backend.state.delete_session(SESSION)
        await write(each_world)
        assert await swept(helix) == 0
        assert (await entries_of(backend).list_entries("sys.subscriptions")).items == ()


async def test_a_session_is_woken_only_where_the_agent_that_has_it_is_known(
    each_world: World, backend: Backend
) -> None:
    bob = Agent(name="bob", description="Listens.", model=ScriptedModel(["", "", "Mine.", "Heard."]))
    ann = watcher(each_world, reply(calls=[watching()]), reply(calls=[call("handoff__bob", {})]), handoffs=[bob])
    async with executor(each_world, ann) as helix:
        assert await (await helix.execute(ann, "go", SESSION)).output() == "Mine."
    await write(each_world)
    async with executor(each_world, watcher(each_world)) as helix:
        assert await swept(helix) == 0
    assert await turns(backend) == ["completed"]
    async with executor(each_world, ann) as helix:
        assert await swept(helix) == 1
    assert await turns(backend) == ["completed", "completed"]
    assert len(await news(backend)) == 1


async def test_sessions_that_are_over_take_up_no_room_for_subscriptions(each_world: World, backend: Backend) -> None:
    each_world.limits = Limits(subscriptions=2)
    ann = watcher(each_world, *[reply(calls=[watching()]), "watching"] * 4)
    async with executor(each_world, ann) as helix:
        for number in range(3):
            await (await helix.execute(ann, "go", f"s-{number}")).result()
            await backend.state.delete_session(f"s-{number}")
            await swept(helix)
        await (await helix.execute(ann, "go", SESSION, expires_in=timedelta(microseconds=1))).result()
        assert len(await subscriptions(backend)) == 1
        await backend.state.compare_and_set_status(SESSION, ("completed",), "paused")
        assert (await helix.sweep()).expired_sessions == 1
        await swept(helix)
        assert await subscriptions(backend) == []


async def test_a_subscription_outlives_its_session_if_it_was_meant_to(each_world: World, backend: Backend) -> None:
    async with each_world.open("ann") as plain, idle_watcher(each_world, durable=True) as helix:
        handle = await plain.with_session()
        await handle.call("state.shared.watch")
        await backend.state.delete_session(SESSION)
        await swept(helix)
        assert len(await subscriptions(backend)) == 2


async def subscriptions(backend: Backend) -> list[str]:
    return [row.key for row in (await entries_of(backend).list_entries("sys.subscriptions")).items]


async def child_of(backend: Backend) -> str:
    [ref] = await backend.state.get_sub_session_refs(SESSION)
    return ref.sub_session_id


async def test_a_sub_agent_that_waits_keeps_its_question_and_hears_the_change_when_it_goes_on(
    each_world: World, backend: Backend
) -> None:
    """Whatever it asked for: its parent drives it, so nothing begins a turn of it or gives up what it waits for."""
    asks = reply(calls=[call("publish", {}, id="c-1")])
    ann = watcher(each_world, reply(calls=[watching(wake="always")]), asks, "published", tools=[publish])
    boss = Agent(
        name="boss",
        model=ScriptedModel([call("subagent__ann", {"message": "go"}), "done"]),
        tools=[ann.as_tool(description="Watches.")],
    )
    async with executor(each_world, ann, boss) as helix:
        assert isinstance(await (await helix.execute(boss, "go", SESSION)).result(), Suspended)
        child = await child_of(backend)
        await write(each_world)
        assert await swept(helix) == 0
        [waiting] = (await helix.list_pending()).items
        assert await news(backend, child) == []
    async with executor(each_world, ann, boss) as another:
        await another.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
        assert await (await another.resume(boss, SESSION)).output() == "done"
        assert [told["key"] for told in await news(backend, child)] == ["config.mode"]
        assert await swept(another) == 0
        assert await turns(backend, child) == ["suspended_client_tool", "completed"]
        assert await subscriptions(backend) == [], "its parent is done with it"


@pytest.mark.parametrize("mode", ["blocking", "non_blocking"])
async def test_an_idle_companion_hears_the_change_when_it_is_spoken_to(
    each_world: World, backend: Backend, mode: Any
) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), "watching")
    spawn = call("companion__spawnAgent", {"agent": "ann", "name": "eve", "initialMessage": "go"})
    send = call("companion__sendMessage", {"name": "eve", "message": "again"})
    boss = Agent(
        name="boss",
        model=ScriptedModel([spawn, "one", send, "two", send, "three"]),
        persistent_agents=[PersistentAgent(ann, mode=mode)],
    )
    async with executor(each_world, ann, boss) as helix:
        await (await helix.execute(boss, "go", SESSION)).result()
        await helix.idle()
        child = await child_of(backend)
        await write(each_world)
        assert await swept(helix) == 0
        assert await turns(backend, child) == ["completed"]
    async with executor(each_world, ann, boss) as another:
        for _ in range(2):
            await (await another.execute(boss, "again", SESSION)).result()
            await another.idle()
            assert [told["key"] for told in await news(backend, child)] == ["config.mode"]
        assert await turns(backend, child) == ["completed"] * 3
        assert await swept(another) == 0


async def test_a_change_wakes_the_root_and_not_the_child_that_watches_the_same(
    each_world: World, backend: Backend
) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), "watching")
    bundle = ann.capabilities
    script = [reply(calls=[watching()]), call("subagent__ann", {"message": "go"}), "watching", "heard"]
    boss = Agent(
        name="boss", model=ScriptedModel(script), tools=[ann.as_tool(description="Watches.")], capabilities=bundle
    )
    async with executor(each_world, ann, boss) as helix:
        await (await helix.execute(boss, "go", SESSION)).result()
        await write(each_world)
        assert await swept(helix) == 1
        assert [told["key"] for told in await news(backend)] == ["config.mode"]
        assert await news(backend, await child_of(backend)) == []


async def test_a_process_that_does_not_know_the_agent_leaves_it_alone(each_world: World, backend: Backend) -> None:
    async with idle_watcher(each_world):
        await write(each_world)
        async with executor(each_world) as stranger:
            assert await swept(stranger) == 0
        assert await news(backend) == []


async def test_a_message_and_a_change_at_once_are_two_turns_or_one_and_neither_is_lost(
    each_world: World, backend: Backend
) -> None:
    async with idle_watcher(each_world) as helix:
        ann = next(iter(helix.agents))
        for number in range(5):
            await write(each_world, value=number)
            outcomes = await asyncio.gather(
                helix.execute(ann, f"message {number}", SESSION), helix.sweep(), return_exceptions=True
            )
            await helix.idle()
            if isinstance(outcomes[0], AgentAlreadyRunningError):
                await (await helix.execute(ann, f"message {number}", SESSION)).result()
            else:
                assert not isinstance(outcomes[0], BaseException), outcomes[0]
            await swept(helix)
        assert [told["version"] for told in await news(backend)] == [1, 2, 3, 4, 5]


async def test_a_turn_that_fails_was_told_and_is_not_begun_again_by_the_same_change(
    each_world: World, backend: Backend
) -> None:
    ann = watcher(each_world, reply(calls=[watching()]), "watching")
    async with executor(each_world, ann) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
    broken = Agent(name="ann", model=ScriptedModel([]), capabilities=ann.capabilities)
    async with executor(each_world, broken) as helix:
        await write(each_world)
        assert await swept(helix) == 1
        assert await swept(helix) == 0
        assert await turns(backend) == ["completed", "failed"]
        assert len(await news(backend)) == 1
    async with executor(each_world, ann) as helix:
        await (await helix.retry(ann, SESSION)).result()
        assert len(await news(backend)) == 1


async def test_of_two_who_look_at_once_one_begins_the_turn_wherever_the_other_is_held(
    each_world: World, backend: Backend
) -> None:
    """Each change is told once, and each begins one turn, however the two interleave."""
    each_world.limits = Limits(wakes_per_hour=MOST_STATEMENTS)
    async with idle_watcher(each_world) as passing:
        ann = next(iter(passing.agents))
        # Every second statement: what lies between two of them is short, and a turn for each takes its time.
        for turn, statement in enumerate(range(1, MOST_STATEMENTS, 2), start=1):
            await write(each_world, value=statement)
            seam = HoldingTheWriter() if each_world.url.startswith("sqlite") else HoldingSeam()
            async with (
                asyncio.timeout(PATIENCE),
                await open_backend(each_world.url, seam=seam) as parts,
                executor_on(parts, ann) as holding,
            ):
                seam.arm(after=statement)
                first = asyncio.ensure_future(holding.sweep())
                waiting = asyncio.ensure_future(seam.wait_until_held())
                await asyncio.wait({first, waiting}, return_when=asyncio.FIRST_COMPLETED)
                second = asyncio.ensure_future(passing.sweep())
                await asyncio.wait({second}, timeout=BLOCKED_AFTER)
                seam.release()
                rounds = await asyncio.gather(first, second)
                await waiting
                await asyncio.gather(holding.idle(), passing.idle())
            assert sum(each.woken for each in rounds) == 1
            assert [told["version"] for told in await news(backend)] == list(range(1, turn + 1))
            assert await turns(backend) == ["completed"] * (turn + 1)
            if not seam.has_held:
                return
    pytest.fail(f"the look did not end within {MOST_STATEMENTS} statements")


async def test_who_planned_a_turn_before_another_began_it_begins_none(each_world: World, backend: Backend) -> None:
    async with idle_watcher(each_world) as passing, await open_backend(each_world.url) as parts:
        start_run = parts.state.start_run

        async def after_the_other(start: StartRun) -> RunStartCommitted:
            assert await swept(passing) == 1
            return await start_run(start)

        parts.state.start_run = after_the_other  # pyright: ignore[reportAttributeAccessIssue]
        await write(each_world)
        async with executor_on(parts, next(iter(passing.agents))) as late:
            assert await swept(late) == 0
        assert len(await news(backend)) == 1
        assert await turns(backend) == ["completed", "completed"]


class HoldingTheWriter(HoldingSeam):
    """Holds what a thread writes; SQLite reads in the event loop, where nobody waits for a seam."""

    def __call__(self, statement: str, /) -> Awaitable[None] | None:
        return None if threading.current_thread() is threading.main_thread() else super().__call__(statement)


def executor_on(parts: Backend, agent: AnyAgent) -> Executor:
    given: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
    return Executor(**given, entries=parts.entries, agents=[agent], janitor_seconds=None)


@pytest.fixture
def processes(shared_url: str) -> Iterator[Processes]:
    with processes_for(shared_url, state_jobs.MODULE) as processes:
        yield processes


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can open."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/helix.db"


async def test_writers_and_wakers_die_and_every_change_is_told_once(shared_url: str, processes: Processes) -> None:
    """Processes that wake, drive the turn and write are killed at every second statement; the next one goes on."""
    ann = state_jobs.watcher()
    async with Executor.open(shared_url, agents=[ann], janitor_seconds=None) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
    changes = 0
    for statement in range(1, MOST_DEATHS, 2):
        # A writer that dies at this statement has written or has not; then one that lives.
        job = f"{state_jobs.MODULE}:write_changes"
        await processes.run(job, [{"url": shared_url, "who": "bob", "times": 1, "die_after": statement}])
        async with open_state(shared_url, agent="bob") as bob:
            await bob.shared.apply("bob.0", lambda value: (value or 0) + 1)
            changes = (await bob.shared.get("bob.0")).version
        wakers = [{"url": shared_url, "die_after": statement}, {"url": shared_url, "die_after": statement + 7}]
        await processes.run(f"{state_jobs.MODULE}:wake", wakers)
        [last] = await processes.run(f"{state_jobs.MODULE}:wake", [{"url": shared_url, "die_after": 0}])
        assert last.error is None, last
    async with await open_backend(shared_url) as backend:
        told = [each["version"] for each in await news(backend)]
        assert told == list(range(1, changes + 1))
        assert set(await turns(backend)) == {"completed"}

"""Callers go away and answers get lost at any moment: what this process has begun or claimed, it drives all the same."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count, repeat
from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.runs import RunRecord
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor import handle
from helix_agents.runtimes.in_process import Executor, drivers
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.contracts.executor.stage import Gate, PieceGate
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from tests.recovery.deaths import die_at, settings_on

SESSION = "s-1"


@pytest.mark.parametrize("look", [Executor.recover, Executor.sweep])
async def test_a_run_is_driven_whose_claimer_was_cancelled(
    look: Callable[[Executor], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch
):
    """While this process lives, nobody else finds a run that it has claimed."""
    agent = Agent(name="talker", model=ScriptedModel(["Said."]))
    async with await open_backend(f"memory://claimer-{look.__name__}") as parts, asyncio.timeout(20):
        left = await die_at(StopAt(effect=1, side="before"), parts, agent, SESSION)
        claim, answer = parts.state.claim_run, Gate()

        async def claim_slowly(*args: Any, **options: Any) -> RunRecord:
            run = await claim(*args, **options)
            await answer.wait()
            return run

        monkeypatch.setattr(parts.state, "claim_run", claim_slowly)
        async with Executor(**settings_on(parts, agent)) as helix:
            looking = asyncio.create_task(look(helix))
            await answer.until_reached()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            answer.opened.set()
            run = await helix.get_handle(agent, SESSION)
            assert run is not None
            assert run.run_id == left.run_id
            assert await run.output() == "Said."


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


async def test_companions_with_their_answers_go_on_though_the_store_did_not_say_that_it_began_one(
    monkeypatch: pytest.MonkeyPatch,
):
    eager = Agent(
        name="eager",
        description="Asks.",
        model=ScriptedModel([call("locate", {"city": "Rome"}), "Found."]),
        tools=[locate],
    )
    spawn = call("companion__spawnAgent", {"agent": "eager", "initialMessage": "Ask."})
    boss = Agent(
        name="boss",
        model=ScriptedModel([reply(calls=[spawn, spawn]), "Sent off."]),
        persistent_agents=[PersistentAgent(eager, mode="non_blocking")],
    )
    async with await open_backend("memory://unheard") as parts, asyncio.timeout(20):
        async with Executor(**settings_on(parts, boss)) as helix:
            assert await (await helix.execute(boss, "Go.", SESSION)).output() == "Sent off."
            await helix.idle()
            for waiting in (await helix.list_pending()).items:
                await helix.submit_tool_result(SESSION, waiting.tool_call_id, ToolAnswer(result="here"))
            start_run, starts = parts.state.start_run, count(1)

            async def start_unheard(start: StartRun) -> RunStartCommitted:
                started = await start_run(start)
                if next(starts) == 2:
                    raise StoreUnavailableError("memory", "it is away")
                return started

            monkeypatch.setattr(parts.state, "start_run", start_unheard)
            await helix.resume(boss, SESSION)
            await helix.idle()
        for ref in await parts.state.get_sub_session_refs(SESSION):
            run = await parts.state.get_current_run(ref.sub_session_id)
            assert run is not None
            assert (run.status, run.output) == ("completed", "Found.")


async def test_a_reader_of_a_run_whose_process_died_before_its_stream_ended_comes_to_an_end_though_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch,
):
    words = PieceGate(1)
    agent = Agent(name="talker", model=ScriptedModel(["Said."], pace=words))
    monkeypatch.setattr(handle, "LOOK_FOR_END", 0.01)
    async with await open_backend("memory://") as parts, await open_backend("memory://") as apart, asyncio.timeout(20):
        # Streams that do not share the store's commits end after them.
        settings = {**settings_on(parts, agent), "streams": apart.streams}
        at = StopAt(kind="commit", effect=1, side="after")
        async with (
            RecordingExecutor(recorder=Recorder(at), **settings) as dying,
            Executor(**settings) as second,
        ):
            await dying.execute(agent, "Go.", SESSION)
            await words.until_reached()
            run = await second.get_handle(agent, SESSION)
            assert run is not None
            get_run, looks = parts.state.get_run, count()

            async def get_run_or_not(run_id: str) -> RunRecord | None:
                if next(looks) == 2:
                    raise StoreUnavailableError("memory", "it is away")
                return await get_run(run_id)

            monkeypatch.setattr(parts.state, "get_run", get_run_or_not)
            words.opened.set()
            said = [chunk.delta async for chunk in run.stream() if isinstance(chunk, TextDelta)]
        assert "".join(said) == "Said."


async def test_a_companion_is_driven_that_was_begun_unheard_of_by_a_run_that_is_stopped_then(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(drivers, "backoff", lambda: repeat(0.0))
    eager = Agent(name="eager", description="Works.", model=ScriptedModel(["Done."]))
    spawn = call("companion__spawnAgent", {"agent": "eager", "initialMessage": "Work."})
    keeps = [PersistentAgent(eager, mode="non_blocking")]
    boss = Agent(name="boss", model=ScriptedModel([spawn, "Sent off."]), persistent_agents=keeps)
    async with await open_backend("memory://begun-unheard") as parts, asyncio.timeout(20):
        start_run, starts = parts.state.start_run, count(1)

        async def start_unheard(start: StartRun) -> RunStartCommitted:
            started = await start_run(start)
            if next(starts) == 2:
                await parts.state.set_interrupt_flag(SESSION, "enough")
                raise StoreUnavailableError("memory", "it is away")
            return started

        monkeypatch.setattr(parts.state, "start_run", start_unheard)
        async with Executor(**settings_on(parts, boss)) as helix:
            await (await helix.execute(boss, "Go.", SESSION)).result()
            await helix.idle()
            (ref,) = await parts.state.get_sub_session_refs(SESSION)
            companion = await parts.state.get_current_run(ref.sub_session_id)
            assert companion is not None
            assert companion.status != "running"

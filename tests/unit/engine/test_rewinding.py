"""What a rewind without a run leaves behind, and what somebody finds who comes while it is not done."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from helix_agents import Agent
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel

SESSION, ELSEWHERE = "s-1", "s-2"


@pytest.fixture
async def parts() -> AsyncIterator[Backend]:
    """Two sessions that were spoken to once; the stream of one has another name."""
    async with await open_backend("memory://") as parts:
        await parts.state.create_session(ELSEWHERE, CreateSession(agent_type="writer", stream_id="aside"))
        async with _executor(parts) as helix:
            for session_id in (SESSION, ELSEWHERE):
                agent = Agent(name="writer", model=ScriptedModel(["Well."]))
                await (await helix.execute(agent, "Go", session_id)).result()
        yield parts


def _executor(parts: Backend) -> Executor:
    return Executor(state=parts.state, streams=parts.streams, usage=parts.usage, janitor_seconds=None)


async def test_it_says_why_it_ended_and_leaves_no_lease(parts: Backend) -> None:
    async with _executor(parts) as helix:
        session = await helix.rewind(SESSION, BEGINNING)
    run = await parts.state.get_current_run(SESSION)
    assert run is not None
    assert run.owner is not None
    assert session.interrupt_context is not None
    assert (session.interrupt_context.reason, session.interrupt_context.run_id) == ("rewound", run.run_id)
    assert (run.status, run.completion_reason) == ("interrupted", "rewound")
    assert await parts.state.find_lease(run.owner) is None


@pytest.mark.parametrize("session_id", [SESSION, ELSEWHERE])
async def test_its_turn_of_the_stream_is_over(parts: Backend, session_id: str) -> None:
    async with _executor(parts) as helix:
        session = await helix.rewind(session_id, BEGINNING)
    run = await parts.state.get_current_run(session_id)
    info = await parts.streams.get_stream_info(session.stream_id or session_id)
    assert run is not None
    assert info is not None
    assert (info.run_id, info.status, info.end_status) == (run.run_id, "ended", "interrupted")


async def test_whoever_comes_while_it_is_not_done_lets_it_finish(
    parts: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, orphans = parts.state.settle_session, [1]

    async def look_first(request: SettleSession) -> Any:
        orphans[:] = [len(await parts.state.list_orphans())]
        return await settle(request)

    monkeypatch.setattr(parts.state, "settle_session", look_first)
    async with _executor(parts) as helix:
        session = await helix.rewind(SESSION, BEGINNING)
    assert (orphans, session.status) == ([0], "interrupted")


@pytest.mark.parametrize("then", ["paused", "taken over"])
async def test_what_happens_before_it_is_done_stands(
    parts: Backend, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    settle = parts.state.settle_session

    async def come_first(request: SettleSession) -> Any:
        if then == "paused":
            await parts.state.compare_and_set_status(SESSION, ["active"], "paused")
        else:
            run = await parts.state.get_current_run(SESSION)
            assert run is not None
            assert run.owner is not None
            await parts.state.release_lease(run.owner)
            await parts.state.claim_run(SESSION, run.fence, None)
        return await settle(request)

    monkeypatch.setattr(parts.state, "settle_session", come_first)
    async with _executor(parts) as helix:
        session = await helix.rewind(SESSION, BEGINNING)
    run = await parts.state.get_current_run(SESSION)
    assert run is not None
    expected = ("interrupted", "interrupted") if then == "paused" else ("active", "running")
    assert (session.status, run.status) == expected

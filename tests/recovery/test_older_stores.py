"""A file that an earlier version left in the middle of things: everything continues, nothing is lost or done twice."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helix_agents import ApprovalAnswer, Completed, Executor, Suspended, ToolAnswer, UserMessage
from helix_agents.domain.sessions import SessionFilter
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import assert_legal, transcript, until
from tests.support.older_store import FOLDER, QUEUED, SUSPENDED, agents

AN_HOUR_MS = 3_600_000


@pytest.fixture(params=sorted(FOLDER.glob("sqlite-*.db.gz")), ids=lambda path: path.name.partition(".")[0])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """The file, an hour after it was left."""
    (tmp_path / "helix.db").write_bytes(gzip.decompress(request.param.read_bytes()))
    clock = ManualClock()
    async with await open_backend(f"sqlite:///{tmp_path}/helix.db", clock=clock) as backend:
        died = await backend.state.get_current_run("die")
        assert died is not None
        clock.advance(died.started_at + AN_HOUR_MS - clock.now_ms())
        yield backend


async def said_to(helix: Executor, session_id: str) -> list[str]:
    """What users said in a session whose conversation is whole."""
    messages = await transcript(helix, session_id)
    assert_legal(messages)
    return [str(message.content) for message in messages if isinstance(message, UserMessage)]


async def done_in(helix: Executor, session_id: str) -> list[str]:
    return (await helix.sessions.get(session_id)).custom_state["done"]


@pytest.mark.may_block("unpacks a file")
async def test_a_file_that_an_earlier_version_left_is_continued(backend: Backend) -> None:
    boss, writer = agents()
    parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
    async with asyncio.timeout(30), Executor(**parts, agents=[boss, writer], janitor_seconds=None) as helix:
        streamed = {name: len(await backend.streams.get_all_chunks(name)) for name in SUSPENDED}
        assert all(streamed.values())
        assert (await helix.sessions.list(SessionFilter(user_id="ann", tags=("old",)))).total == len(SUSPENDED)
        for name in SUSPENDED:
            handle = await helix.get_handle(boss, name)
            assert handle is not None
            ended = await handle.result()
            assert isinstance(ended, Suspended)
            for waiting in ended.pending:
                answer = ApprovalAnswer(approved=True) if waiting.kind == "approval" else ToolAnswer(result="here")
                await helix.submit_tool_result(name, waiting.tool_call_id, answer)
            ended = await (await helix.resume(boss, name)).result()
            assert isinstance(ended, Completed)
            assert ended.output == f"{name}: done"

        async def is_through() -> bool:
            await helix.sweep()
            runs = [await helix.sessions.runs(name) for name in ("wait", "die")]
            return [page.items[0].status for page in runs] == ["completed"] * 2 and runs[0].total + runs[1].total == 7

        await until(is_through)
        assert await said_to(helix, "wait") == ["wait", *QUEUED]
        assert await said_to(helix, "die") == ["die", *QUEUED]
        assert await done_in(helix, "die") == ["begin", "middle", "end"]
        assert sorted(await done_in(helix, "approve")) == ["Tides", "draft"]
        children = (await helix.sessions.list(SessionFilter(agent_type="writer"))).items
        assert [child.status for child in children] == ["completed"] * 2
        assert await backend.state.list_orphans() == ()

        said = ["First", "Second", "Third"]
        for name, before in (("told", said[:1]), ("branch", said[:2]), ("orphan", said)):
            assert await said_to(helix, name) == before
            assert await helix.run(boss, "Next", name) == "Next: done"
            first = (await helix.sessions.checkpoints(name)).items[-1].checkpoint_id
            await helix.sessions.branch(name, f"{name}-again", checkpoint_id=first)
            await helix.sessions.delete(name)
            assert await helix.run(boss, "Other", f"{name}-again") == "Other: done"
        assert await said_to(helix, "orphan-again") == [*said, "Other"]

"""A session whose stream has another name is followed there."""

from helix_agents import Agent, ScriptedModel
from helix_agents.domain.chunks import Output
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.contracts.executor.stage import SESSION, chunks_of, completed


async def test_whoever_has_a_handle_reads_the_stream_of_another_name():
    agent = Agent(name="talker", model=ScriptedModel(["One.", "Two."]))
    async with (
        await open_backend("memory://") as parts,
        Executor(state=parts.state, streams=parts.streams, usage=parts.usage, janitor_seconds=None) as helix,
    ):
        await parts.state.create_session(SESSION, CreateSession(agent_type="talker", stream_id="aside"))
        for said in ("One.", "Two."):
            handle = await helix.execute(agent, "Go", SESSION)
            assert await completed(handle) == said
            assert [chunk.output for chunk in await chunks_of(handle) if isinstance(chunk, Output)] == [said]
        assert await parts.streams.get_stream_info(SESSION) is None
        info = await parts.streams.get_stream_info("aside")
        assert info is not None
        assert (info.status, info.output) == ("ended", "Two.")


async def test_a_stream_of_another_name_in_another_backend_is_active_as_soon_as_its_turn_has_begun():
    agent = Agent(name="talker", model=ScriptedModel(["One.", "Two."]))
    async with (
        await open_backend("memory://") as parts,
        await open_backend("memory://") as elsewhere,
        Executor(state=parts.state, streams=elsewhere.streams, usage=parts.usage, janitor_seconds=None) as helix,
    ):
        await parts.state.create_session(SESSION, CreateSession(agent_type="talker", stream_id="aside"))
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "One."
        handle = await helix.execute(agent, "Go on", SESSION)
        info = await elsewhere.streams.get_stream_info("aside")
        assert info is not None
        assert (info.status, info.run_id) == ("active", handle.run_id)
        assert await completed(handle) == "Two."

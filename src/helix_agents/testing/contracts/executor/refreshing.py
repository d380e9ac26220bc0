"""Scenarios of readers that come late, come again, or read from another process: all see the same conversation."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.errors import ModelUnavailableError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.ports.llm import ModelEvent
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    ended,
    lines,
    suspended,
    transcript,
    within,
)


class Draft(BaseModel):
    """What a reader sees grow."""

    lines: list[str] = []


class Summary(BaseModel):
    """The output."""

    title: str


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


Look = Callable[[], Awaitable[None]]


def _agent(look: Look) -> AnyAgent:
    """An agent that is observed at every moment: each piece of a reply, and each tool before and after it writes."""

    @tool
    async def add(ctx: ToolContext[Draft], text: str) -> str:
        """Add a line."""
        await look()
        ctx.state.lines.append(text)
        ctx.emit("added", text)
        return f"added {text}"

    @tool(require_approval=True)
    async def send(ctx: ToolContext[Draft]) -> str:
        """Send it."""
        await look()
        return "sent"

    async def pace(_: ModelEvent) -> None:
        await look()

    script = [
        reply("Two lines first.", calls=[call("add", {"text": "a"}), call("add", {"text": "b"})], thinking="Hm."),
        reply("Now ask.", calls=[call("send"), call("add", {"text": "c"}), call("locate", {"city": "Rome"})]),
        reply("Handing in.", calls=[finish({"title": "All"})]),
    ]
    model = ScriptedModel(script, pace=pace)
    return Agent(name="drafter", model=model, tools=[add, send, locate], state=Draft, output=Summary)


async def _all_chunks(handle: RunHandle[Any]) -> list[StreamChunk]:
    async def read() -> list[StreamChunk]:
        return [chunk async for chunk in handle.stream(from_sequence=0)]

    return await within(read())


class RefreshingContract(ScenarioContract):
    """A page that is loaded at any moment, and continues from there, ends up like one that was open all the time."""

    async def test_a_reader_who_comes_before_a_short_runs_stream_and_looks_after_its_end_misses_nothing(
        self, helix: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        streams = vars(helix)["_services"].streams
        open_reader = streams.create_resumable_reader
        handle = await helix.execute(Agent(name="brief", model=ScriptedModel(["Done."])), "Go", SESSION)

        async def come_too_early(*given: Any, **named: Any) -> None:
            monkeypatch.setattr(streams, "create_resumable_reader", open_reader)
            await handle.result()

        monkeypatch.setattr(streams, "create_resumable_reader", come_too_early)
        assert "Done." in [chunk.delta for chunk in await chunks_of(handle) if isinstance(chunk, TextDelta)]

    async def test_a_refresh_at_any_point_misses_nothing_and_repeats_nothing(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        taken: list[SessionSnapshot] = []
        async with open_executor() as reader:

            async def look() -> None:
                taken.append(await reader.sessions.snapshot(SESSION))

            await suspended(await helix.execute(_agent(look), "Write", SESSION))
            await look()
            await helix.submit_tool_result(SESSION, "call_2_1", ApprovalAnswer(approved=True))
            await look()
            await suspended(await helix.resume(_agent(look), SESSION))
            await look()
            await helix.submit_tool_result(SESSION, "call_2_3", ToolAnswer(result="41.9 N"))
            last = await helix.resume(_agent(look), SESSION)
            assert await completed(last) == Summary(title="All")
            await look()
            everything = await _all_chunks(last)
            final = lines(await transcript(reader))
        assert len(taken) > 30
        for snapshot in taken:
            later = [chunk for chunk in everything if chunk.sequence > snapshot.sequence]
            assert lines(snapshot.render(later)) == final, f"a refresh after chunk {snapshot.sequence}"

    async def test_a_reader_may_begin_after_any_chunk(self, helix: Executor, open_executor: OpenExecutor) -> None:
        async def nothing() -> None:
            pass

        handle = await helix.execute(_agent(nothing), "Write", SESSION)
        await suspended(handle)
        whole = await chunks_of(handle)
        numbers = [chunk.sequence for chunk in whole]
        assert numbers == list(range(1, len(whole) + 1))
        async with open_executor() as other:
            again = await other.get_handle(_agent(nothing), SESSION)
            assert again is not None
            for number in (0, 1, len(whole) // 2, len(whole) - 1):

                async def read(number: int = number) -> list[StreamChunk]:
                    return [chunk async for chunk in again.stream(from_sequence=number)]

                assert await within(read()) == whole[number:]

    async def test_a_handle_streams_its_own_turn(self, helix: Executor) -> None:
        agent = Agent(name="talker", model=ScriptedModel(["One.", "Two."]))
        first = await helix.execute(agent, "1", SESSION)
        await completed(first)
        second = await helix.execute(agent, "2", SESSION)
        chunks = await chunks_of(second)
        assert {chunk.run_id for chunk in chunks} == {second.run_id}
        assert chunks[0].sequence > 1
        assert {chunk.run_id for chunk in await chunks_of(first)} == {first.run_id}
        again = await helix.get_handle(agent, SESSION, first.run_id)
        assert again is not None
        assert await chunks_of(again) == await chunks_of(first)
        assert await helix.get_handle(agent, SESSION, "run_of_nobody") is None
        assert await helix.get_handle(agent, "another session", first.run_id) is None

    async def test_a_reader_in_another_process_follows_a_run_to_its_end(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = PieceGate(2)
        agent = Agent(name="talker", model=ScriptedModel(["A longer answer, in pieces."], pace=gate))
        handle = await helix.execute(agent, "1", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            seen = await other.get_handle(Agent(name="talker", model=ScriptedModel([])), SESSION)
            assert seen is not None
            pieces: list[str] = []

            async def read() -> None:
                async for piece in seen.text():
                    pieces.append(piece)
                    gate.opened.set()

            await within(read())
            assert "".join(pieces) == "A longer answer, in pieces."
            assert await completed(seen) == "A longer answer, in pieces."
        assert await completed(handle) == "A longer answer, in pieces."

    async def test_a_refresh_never_shows_what_a_failed_reply_said(self, open_executor: OpenExecutor) -> None:
        taken: list[SessionSnapshot] = []
        pieces = 0
        async with open_executor(options=EngineOptions(first_retry_seconds=0.001)) as helix:

            async def breaking(_: ModelEvent) -> None:
                nonlocal pieces
                pieces += 1
                taken.append(await helix.sessions.snapshot(SESSION))
                if pieces == 3:
                    raise ModelUnavailableError("scripted", "broken off")

            agent = Agent(name="talker", model=ScriptedModel(["A longer answer, in pieces."], pace=breaking))
            handle = await helix.execute(agent, "1", SESSION)
            await completed(handle)
            everything = await _all_chunks(handle)
            for snapshot in taken:
                later = [chunk for chunk in everything if chunk.sequence > snapshot.sequence]
                assert lines(snapshot.render(later)) == ["user: 1", "assistant: A longer answer, in pieces."]

    @pytest.mark.parametrize("output", [False, True])
    async def test_a_reader_who_comes_after_the_end_sees_all_of_it(self, helix: Executor, output: bool) -> None:
        script = [finish({"title": "x"})] if output else ["Done."]
        agent: AnyAgent = Agent(name="talker", model=ScriptedModel(script), output=Summary if output else None)
        handle = await helix.execute(agent, "1", SESSION)
        await ended(handle)
        snapshot = await helix.sessions.snapshot(SESSION)
        assert lines(snapshot.render()) == lines(await transcript(helix))
        assert snapshot.stream_status == "ended"

"""The client of an agent server, against servers that restart, lose answers and break off."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents import (
    Agent,
    AgentClient,
    AgentServer,
    ApprovalAnswer,
    AssistantMessage,
    Completed,
    DefinitionError,
    Executor,
    Failed,
    Image,
    Interrupted,
    NotQueued,
    QueuedTurnBegun,
    QueuedTurnChanged,
    QueuedTurnDropped,
    ScriptedModel,
    ServedAgent,
    Suspended,
    Text,
    ToolAnswer,
    UserMessage,
)
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import (
    AgentMismatchError,
    InvalidInputError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteUnavailableError,
    RunNotCompletedError,
    SessionNotFoundError,
    ToolOutputError,
)
from helix_agents.testing import finish
from tests.server.agents import gate
from tests.server.live import ANN, BEN, OPS, PATIENCE, Instance, LiveServer, agent_server, wait_until

DIRECTOR = ServedAgent("director")


class Report(BaseModel):
    title: str
    pages: int


@asynccontextmanager
async def served(app: Any, **settings: Any) -> AsyncIterator[AgentClient]:
    """A client of an application that listens in a thread."""
    server = await asyncio.to_thread(LiveServer(app).__enter__)
    try:
        async with AgentClient(server.url, token=ANN, **settings) as client:
            yield client
    finally:
        await asyncio.to_thread(server.__exit__)


@pytest.fixture
async def helix(server: LiveServer) -> AsyncIterator[AgentClient]:
    async with AgentClient(server.url, token=ANN) as client:
        yield client


async def test_a_conversation_reads_as_it_does_with_an_executor(helix: AgentClient, session_id: str) -> None:
    run = await helix.execute(DIRECTOR, "hello", session_id, tags=["read"], metadata={"from": "test"})
    text = "".join([piece async for piece in run.text()])
    assert await run.result() == Completed(output=text, session_id=session_id, run_id=run.run_id)
    said = [Text(text="search"), Image(url="https://example.com/boat.png", media_type="image/png")]
    second = await helix.execute(DIRECTOR, UserMessage(content=tuple(said), metadata={"my_own": 1}), session_id)
    assert "a file" in await second.output()
    assert (await second.usage()).sessions == 1
    stored = await helix.sessions.messages(session_id, limit=2, offset=0)
    assert isinstance(stored[0].message, AssistantMessage)
    [asked] = [each.message for each in await helix.sessions.messages(session_id) if each.sequence == 3]
    assert isinstance(asked, UserMessage)
    assert (asked.content, asked.metadata) == (tuple(said), {"my_own": 1})
    assert [each.run_id for each in await helix.sessions.runs(session_id)] == [second.run_id, run.run_id]
    [listed] = await helix.sessions.list(tag="read")
    assert (listed.session_id, listed.metadata) == (session_id, {"from": "test"})
    await helix.sessions.delete(session_id)
    await helix.sessions.delete(session_id)
    with pytest.raises(SessionNotFoundError):
        await helix.sessions.get(session_id)
    assert await helix.get_handle(DIRECTOR, session_id) is None


async def test_people_are_asked_and_their_answers_carry_on(helix: AgentClient, session_id: str) -> None:
    run = await helix.execute(DIRECTOR, "both", session_id, state={"published": ["r-0"]})
    result = await run.result()
    assert isinstance(result, Suspended)
    publish, locate = result.pending
    assert (publish.input, locate.tool_name) == ({"report_id": "r-1"}, "locate")
    with pytest.raises(RunNotCompletedError, match="submit_tool_result"):
        await run.output()
    assert {call.tool_call_id for call in await helix.list_pending()} >= set(result.tool_call_ids)
    with pytest.raises(RemoteRefusedError) as refused:
        await helix.submit_tool_result(session_id, publish.tool_call_id, ToolAnswer(result="no"))
    assert refused.value.refusal == "validation_error"
    answered = await helix.submit_tool_result(
        session_id, publish.tool_call_id, ApprovalAnswer(approved=True, edited_input={"report_id": "r-2"})
    )
    assert (answered.outcome, answered.continuation) == ("accepted", "wait")
    answered = await helix.submit_tool_result(session_id, locate.tool_call_id, ToolAnswer(result="at sea"))
    assert answered.continuation == "resume"
    assert "published r-2; at sea" in await (await helix.resume(DIRECTOR, session_id)).output()
    assert (await helix.sessions.get(session_id)).state == {"published": ["r-0", "r-2"]}
    again = await helix.submit_tool_result(session_id, locate.tool_call_id, ToolAnswer(result="there"))
    assert again.outcome == "already_completed"
    with pytest.raises(RemoteRefusedError, match="call_none"):
        await helix.submit_tool_result(session_id, "call_none", ApprovalAnswer(approved=True))


async def test_runs_fail_stop_and_are_retried_as_behind_an_executor(helix: AgentClient, session_id: str) -> None:
    failed = await (await helix.execute(DIRECTOR, "fail", session_id)).result()
    assert isinstance(failed, Failed)
    assert failed.code == "provider_refused"
    retried = await helix.retry(DIRECTOR, session_id)
    assert (await retried.result()).status == "failed"
    gate.shut(2)
    run = await helix.execute(DIRECTOR, "long tale", session_id)
    later = await helix.execute(DIRECTOR, "hello", session_id, if_running="enqueue")
    found = await helix.get_handle(DIRECTOR, session_id, later.run_id)
    assert found is not None
    assert found.run_id == later.run_id
    stopped = await run.interrupt("enough")
    assert stopped.run_id == run.run_id  # type: ignore[union-attr]
    assert await run.result() == Interrupted(session_id=session_id, run_id=run.run_id, reason="enough")
    gate.open()
    # A stop holds what waits until somebody goes on.
    last = await helix.execute(DIRECTOR, "search", session_id, if_running="enqueue")
    assert await later.output() == "You said: hello. And so on. "
    assert (await last.result()).status == "completed"
    assert type(await helix.interrupt(session_id)).__name__ == "NothingRunning"
    with pytest.raises(RemoteRefusedError) as refused:
        await helix.resume(DIRECTOR, session_id)
    assert refused.value.status == 409
    with pytest.raises(RemoteRefusedError) as mistaken:
        await helix.resume(ServedAgent("helper"), session_id)
    assert mistaken.value.refusal == "agent_mismatch"
    with pytest.raises(AgentMismatchError):
        await helix.get_handle(ServedAgent("helper"), session_id)


async def test_a_message_for_a_run_in_progress_is_answered_by_it(helix: AgentClient, session_id: str) -> None:
    gate.shut(2)
    run = await helix.execute(DIRECTOR, "search", session_id)
    sent = await helix.execute(DIRECTOR, "helo", session_id, if_running="steer")
    gone = await helix.execute(DIRECTOR, "bye", session_id, if_running="enqueue")
    later = await helix.execute(DIRECTOR, "later", session_id, if_running="enqueue")
    change = helix.sessions.change_queued
    edited = await change(session_id, sent.run_id, message="hello")
    assert isinstance(edited, QueuedTurnChanged)
    assert (edited.turn.messages[0].content, edited.turn.steers) == ("hello", True)
    assert await helix.sessions.drop_queued(session_id, gone.run_id) == QueuedTurnDropped(run_id=gone.run_id)
    assert isinstance(await change(session_id, later.run_id, first=True), QueuedTurnChanged)
    assert [turn.run_id for turn in await helix.sessions.queued(session_id)] == [sent.run_id, later.run_id]
    gate.open()
    said = "You said: hello. And so on. "
    assert await sent.result() == Completed(session_id=session_id, run_id=run.run_id, output=said)
    assert await run.output() == said
    assert {chunk.run_id async for chunk in sent.stream()} == {run.run_id}
    found = await helix.get_handle(DIRECTOR, session_id, sent.run_id)
    assert found is not None
    assert found.run_id == run.run_id
    assert await later.output() == "You said: later. And so on. "
    for left, became in (
        (sent.run_id, QueuedTurnBegun(run_id=run.run_id)),
        (later.run_id, QueuedTurnBegun(run_id=later.run_id)),
        (gone.run_id, NotQueued()),
    ):
        assert await change(session_id, left, steers=True) == became
        assert await helix.sessions.drop_queued(session_id, left) == became
    with pytest.raises(SessionNotFoundError):
        await helix.sessions.drop_queued("no-session", sent.run_id)


async def test_an_output_is_of_the_type_that_the_agent_or_its_name_says() -> None:
    script = [finish({"title": "Tides", "pages": 3})] * 3
    reporter = Agent(name="reporter", model=ScriptedModel(script), output=Report)
    server = AgentServer(Executor.open("memory://", agents=[reporter]), allow_unauthenticated=True)
    expected = Report(title="Tides", pages=3)
    async with served(server) as helix:
        assert await helix.run(reporter, "Write") == expected
        run = await helix.execute(ServedAgent("reporter", output=Report), "Write")
        drafts = [draft async for draft in run.partial_output()]
        assert drafts[-1] == {"title": "Tides", "pages": 3}
        assert await run.output() == expected
        run = await helix.execute(ServedAgent("reporter"), "Write")
        with pytest.raises(ToolOutputError, match="ServedAgent"):
            await run.output()


async def test_users_see_their_own_sessions_and_operators_all(server: LiveServer, session_id: str) -> None:
    async with AgentClient(server.url, token=ANN) as ann:
        await (await ann.execute(DIRECTOR, "publish", session_id)).result()
    async with AgentClient(server.url, token=BEN) as ben:
        with pytest.raises(RemoteRefusedError) as refused:
            await ben.execute(DIRECTOR, "hello", session_id)
        assert refused.value.status == 403
        with pytest.raises(SessionNotFoundError):
            await ben.sessions.get(session_id)
        assert session_id not in {call.session_id for call in await ben.list_pending(limit=200)}
    async with AgentClient(server.url, token=OPS) as ops:
        assert session_id in {call.session_id for call in await ops.list_pending(limit=200)}
    async with AgentClient(server.url, token="nobody") as nobody:
        with pytest.raises(RemoteRefusedError, match="401"):
            await nobody.execute(DIRECTOR, "hello")


# -- troubles


class Troubled:
    """A server whose answers get lost, or whose streams break off, as `trouble` says for each request."""

    def __init__(self, trouble: Callable[[str, int], str | None]) -> None:
        self.app = agent_server(executor={"janitor_seconds": None})
        self.drain = self.app.drain
        self.requests: list[str] = []
        self._trouble = trouble

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        self.requests.append(path)
        what = self._trouble(path, self.requests.count(path))
        if what == "refuse":
            await send({"type": "http.response.start", "status": 503, "headers": []})
            return await send({"type": "http.response.body", "body": b"{}"})
        if what == "lose":
            # It is done, and nobody hears of it.
            async def forget(_: Any) -> None:
                return

            await self.app(scope, receive, forget)
            raise ConnectionResetError
        if what == "cut":

            async def cut(message: Any) -> None:
                await send(message)
                if message.get("body"):
                    raise ConnectionResetError

            return await self.app(scope, receive, cut)
        return await self.app(scope, receive, send)


async def test_a_turn_whose_answer_was_lost_is_one_turn() -> None:
    troubled = Troubled(lambda path, n: {1: "refuse", 2: "lose"}.get(n) if path == "/execute" else None)
    async with served(troubled) as helix:
        run = await helix.execute(DIRECTOR, "hello")
        assert await run.output() == "You said: hello. And so on. "
        assert [each.run_id for each in await helix.sessions.runs(run.session_id)] == [run.run_id]
        assert (await helix.sessions.messages(run.session_id)).total == 2
    assert troubled.requests.count("/execute") == 3


async def test_a_resume_whose_answer_was_lost_finds_the_run_that_it_began() -> None:
    troubled = Troubled(lambda path, n: "lose" if (path, n) == ("/resume", 1) else None)
    async with served(troubled) as helix:
        [call] = (await (await helix.execute(DIRECTOR, "publish", "s")).result()).pending  # type: ignore[union-attr]
        await helix.submit_tool_result("s", call.tool_call_id, ApprovalAnswer(approved=True))
        gate.shut(2)
        resuming = asyncio.create_task(helix.resume(DIRECTOR, "s"))
        run = await asyncio.wait_for(resuming, PATIENCE)
        gate.open()
        assert await run.output() == "I was told: published r-1."
        assert (await helix.sessions.runs("s")).total == 2


async def test_what_is_continued_once_is_not_continued_again_because_its_answer_was_lost() -> None:
    lost = {"/retry", "/resume"}
    troubled = Troubled(lambda path, n: "lose" if path in lost and n == 1 else None)
    async with served(troubled) as helix:
        first = await helix.execute(DIRECTOR, "fail", "failing")
        assert (await first.result()).status == "failed"
        retried = await helix.retry(DIRECTOR, "failing")
        # It has failed again before the request is repeated, and could be retried once more.
        assert (await retried.result()).status == "failed"
        assert [each.run_id for each in await helix.sessions.runs("failing")] == [retried.run_id, first.run_id]
        waits = await helix.execute(DIRECTOR, "publish", "waiting")
        assert isinstance(await waits.result(), Suspended)
        # Said twice, the second message would give up what the first one is asked.
        said = await helix.resume(DIRECTOR, "waiting", mode="with_message", message="publish")
        assert isinstance(await said.result(), Suspended)
        assert [each.run_id for each in await helix.sessions.runs("waiting")] == [said.run_id, waits.run_id]
    assert (troubled.requests.count("/retry"), troubled.requests.count("/resume")) == (2, 2)


async def test_every_chunk_comes_once_however_often_the_stream_breaks_off() -> None:
    troubled = Troubled(lambda path, n: "cut" if path == "/sse" and n < 6 else "refuse" if n == 7 else None)
    async with served(troubled) as helix:
        run = await helix.execute(DIRECTOR, "long tale", "s")
        seen = [chunk async for chunk in run.stream()]
        assert troubled.requests.count("/sse") > 3
        numbers = [chunk.sequence for chunk in seen]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        text = "".join(chunk.delta for chunk in seen if isinstance(chunk, TextDelta))
        assert text == await run.output()
        rest = [chunk async for chunk in run.stream(from_sequence=numbers[2])]
        assert rest == seen[3:]


async def test_patience_has_an_end() -> None:
    troubled = Troubled(lambda path, n: "refuse" if path != "/execute" else None)
    async with served(troubled, patience=0.3) as helix:
        run = await helix.execute(DIRECTOR, "hello")
        for waiting in (run.output(), run.usage(), helix.sessions.get(run.session_id), anext(run.stream())):
            with pytest.raises(RemoteUnavailableError):
                await asyncio.wait_for(waiting, PATIENCE)
    async with AgentClient("http://127.0.0.1:9", patience=0.2) as helix:
        with pytest.raises(RemoteUnavailableError):
            await asyncio.wait_for(helix.execute(DIRECTOR, "hello"), PATIENCE)


def test_a_client_follows_a_run_across_kill_9(tmp_path: Path, port: int) -> None:
    held = tmp_path / "gate"
    settings: dict[str, Any] = {
        "environment": {"HELIX_TEST_GATE": str(held)},
        "arguments": ("--port", str(port), "--lease", "1", "--janitor", "0.2"),
    }
    seen: list[Any] = []
    ended: list[Any] = []

    async def follow() -> None:
        async with AgentClient(f"http://127.0.0.1:{port}", token=ANN) as helix:
            run = await helix.execute(DIRECTOR, "search", "s")
            async for chunk in run.stream():
                seen.append(chunk)
                if chunk.type == "tool_end":
                    held.touch()
            ended.extend((await run.result(), await helix.sessions.runs("s"), await helix.sessions.messages("s")))

    following = threading.Thread(target=lambda: asyncio.run(follow()))
    with Instance(f"sqlite:///{tmp_path}/helix.db", **settings) as first:
        assert first.url.endswith(f":{port}")
        following.start()
        wait_until(held.exists)
        first.kill()
    held.unlink()
    with Instance(f"sqlite:///{tmp_path}/helix.db", **settings) as second:
        assert second.url
        following.join(PATIENCE)
    result, runs, messages = ended
    assert result.output == "I was told: ['page 1 about tides', 'page 2 about tides']."
    assert (len(runs), messages.total) == (1, 4)
    numbers = [chunk.sequence for chunk in seen if chunk.sequence]
    assert numbers == sorted(set(numbers))


@pytest.fixture
def port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b'{"sessionId": 5}', b"{}"])
async def test_a_server_that_is_no_agent_server_is_found_out(body: bytes) -> None:
    async def nonsense(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

    async with served(nonsense) as helix:
        with pytest.raises(RemoteProtocolError):
            await helix.execute(DIRECTOR, "hello")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://example.com", "'ftp://example.com' is not an http or https address"),
        ("example.com", "write 'http://example.com', or https"),
        ("localhost:8700", "write 'http://localhost:8700', or https"),
        ("http://ann:secret@example.com", "the address of example.com has credentials in it; give them as token="),
        (5, "5 is not an http or https address"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_at_once(url: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=told) as refused:
        AgentClient(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (True, r"it is of type bool; give ApprovalAnswer\(approved=…\) or ToolAnswer\(result=…\)"),
        (ToolAnswer(result="Rome", error="no signal"), "it has a result and an error"),
        (ApprovalAnswer(approved=False, edited_input={"title": "Tides"}), "it denies the call and edits its input"),
    ],
)
async def test_an_answer_that_is_none_is_not_sent(answer: Any, told: str) -> None:
    async with AgentClient("http://127.0.0.1:9") as helix:
        with pytest.raises(InvalidInputError, match=told):
            await helix.submit_tool_result("s-1", "call_1_1", answer)


async def test_what_says_nothing_is_not_sent() -> None:
    async with AgentClient("http://127.0.0.1:9") as helix:
        with pytest.raises(InvalidInputError):
            await helix.execute(DIRECTOR, " ")
    with pytest.raises(DefinitionError):
        ServedAgent("reporter", output=object())  # type: ignore[call-overload]

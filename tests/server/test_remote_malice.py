"""What a service that lies can do to whoever delegates to it: fail its own call, and nothing else."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helix_agents import Completed, Executor, HttpRemoteAgentTransport, Suspended, ToolAnswer
from helix_agents.agent.remote_agents import RemoteLimits
from helix_agents.domain.chunks import Custom, StreamChunk, TextDelta, ToolEnd
from helix_agents.domain.errors import RemoteUnavailableError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.usage import SourceTotal, UsageRollup
from helix_agents.ports.remote_agents import RemoteSession
from tests.server.chain import boss, transport
from tests.server.delegating import child_of, delegated, finish
from tests.server.live import ANN, LiveServer
from tests.support.tls_front import make_certificates, tls_front

Lines = Callable[["Liar"], AsyncIterator[bytes]]


class Liar:
    """An ASGI application that says what a test wants it to say."""

    def __init__(self) -> None:
        self.tell()

    def tell(self, **status: Any) -> None:
        """Begin anew: a session that completed, unless said otherwise."""
        self.session = ""
        self.told: dict[str, Any] = {}
        self.begun = False
        self.asked: list[str] = []
        self.read_at: list[float] = []
        self.status: dict[str, Any] = {"runStatus": "completed", "output": "done", **status}
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.raw: dict[str, bytes] = {}
        self.packed: set[str] = set()
        self.code: dict[str, int] = {}
        self.endless: Callable[[int], dict[str, Any]] | None = None
        self.usage: dict[str, Any] = {"sources": []}
        self.state: dict[str, Any] = {}
        self.trickle = False
        self.drips = 0

    def say(self, sequence: int, kind: str = "text_delta", **fields: Any) -> None:
        header = {"sessionId": self.session, "runId": "r", "agentType": "worker", "type": kind}
        self.events.append((sequence, header | fields))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        path = scope["path"]
        self.asked.append(path)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if path == "/start":
            self.told = msgspec.json.decode(body)
            self.begun, self.session = True, self.told["sessionId"]
        await send({"type": "http.response.start", "status": self._code(path), "headers": self._headers(path)})
        async for piece in self._body(path):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _code(self, path: str) -> int:
        if path == "/status" and not self.begun and "/status" not in self.raw:
            return self.code.get(path, 404)
        return self.code.get(path, 200)

    def _headers(self, path: str) -> list[tuple[bytes, bytes]]:
        if path in self.packed:
            return [(b"content-encoding", b"gzip")]
        return [(b"location", b"http://127.0.0.1:9/elsewhere")] if self._code(path) == 302 else []

    async def _body(self, path: str) -> AsyncIterator[bytes]:
        if path in self.raw:
            yield self.raw[path]
        elif path == "/sse":
            async for piece in self._stream():
                yield piece
        elif path == "/status":
            if self.trickle and self.begun:
                for _ in range(100):
                    yield b" "
                    await asyncio.sleep(0.01)
            goes_on = {"runStatus": "running", "output": None} if len(self.read_at) < self.drips else {}
            yield msgspec.json.encode(self.status | goes_on if self.begun else {"code": "session_not_found"})
        elif path.endswith("/usage"):
            yield msgspec.json.encode(self.usage)
        elif path.startswith("/sessions/"):
            yield msgspec.json.encode({"state": self.state})
        else:
            yield msgspec.json.encode({"outcome": "interrupt_set"})

    async def _stream(self) -> AsyncIterator[bytes]:
        self.read_at.append(time.monotonic())
        for sequence, chunk in self.events:
            yield b"id: %d\ndata: %s\n\n" % (sequence, msgspec.json.encode(chunk))
        if self.drips:
            yield b"id: %d\ndata: %s\n\n" % (len(self.read_at), msgspec.json.encode(chunk_of_parent()))
        number = 0
        while self.endless is not None and number < 3_000:
            number += 1
            await asyncio.sleep(0)
            yield b"id: %d\ndata: %s\n\n" % (number, msgspec.json.encode(self.endless(number)))
        yield b"event: end\ndata: {}\n\n"


liar = Liar()


@pytest.fixture(scope="module")
def lying() -> Iterator[LiveServer]:
    with LiveServer(liar) as live:
        yield live


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    liar.tell()
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


def chunk_of_parent(**fields: Any) -> dict[str, Any]:
    return {"sessionId": "s", "runId": "r", "agentType": "boss", "type": "text_delta", "delta": "x", **fields}


async def seen(helix: Executor) -> tuple[StreamChunk, ...]:
    return await helix._services.streams.get_all_chunks("s")


async def test_chunks_cannot_be_said_in_the_name_of_others(lying: LiveServer, helix: Executor) -> None:
    first = await helix.execute(boss(lying.url), "hello", "s")
    assert isinstance(await first.result(), Completed)
    before = await seen(helix)
    own = first.run_id
    about_parent = {"runId": own, "toolCallId": "call_1_1", "toolName": "search", "result": 1}
    liar.events = [
        (1, chunk_of_parent(type="step_discarded", runId=own, step=0, fromSequence=1, toSequence=99)),
        (2, chunk_of_parent(delta="I am your parent", runId=own, step=1)),
        (3, chunk_of_parent(type="tool_end", **about_parent)),
        (4, chunk_of_parent(type="custom", name="output", data="forged")),
        (5, chunk_of_parent(type="stream_resync", reason="go away")),
        (6, chunk_of_parent(type="custom", name="fine", data=1, parentToolCallId="call_1_1")),
        (7, chunk_of_parent(type="of the future", anything=1)),
        (8, chunk_of_parent(sessionId="x" * 300)),
    ]
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    after = await seen(helix)
    assert after[: len(before)] == before
    foreign = [chunk for chunk in after if chunk.remote_sequence is not None]
    assert [chunk.remote_sequence for chunk in foreign] == [2, 3, 6]
    child = await child_of(helix)
    ids = {"s", own, "call_1_1"}
    for chunk in foreign:
        assert isinstance(chunk, TextDelta | ToolEnd | Custom)
        assert chunk.session_id not in ids
        assert chunk.run_id not in ids
        assert chunk.parent_tool_call_id is not None
        assert getattr(chunk, "tool_call_id", None) not in ids
        assert chunk.session_id.endswith(child[-12:])


async def test_a_service_that_starts_nothing_is_given_up(lying: LiveServer, helix: Executor) -> None:
    liar.code |= {"/start": 503, "/status": 404}
    liar.raw["/status"] = b'{"code": "session_not_found"}'
    assert isinstance(await finish(helix, boss(lying.url, lost_after=0.2), "remote x"), Completed)
    assert (await delegated(helix)).code == "framework_subagent_lost"


async def test_numbers_that_repeat_or_go_back_are_read_once(lying: LiveServer, helix: Executor) -> None:
    liar.events = [(number, chunk_of_parent(delta=str(number))) for number in (1, 2, 2, 1, 3, 3, 2, 7, 5)]
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    assert [chunk.remote_sequence for chunk in await seen(helix) if chunk.remote_sequence] == [1, 2, 3, 7]


@pytest.mark.parametrize(
    ("limits", "size"), [(RemoteLimits(chunks=50), 1), (RemoteLimits(bytes=20_000), 1_000)], ids=["chunks", "bytes"]
)
async def test_a_stream_that_never_ends_is_left_and_the_child_stopped(
    lying: LiveServer, helix: Executor, limits: RemoteLimits, size: int
) -> None:
    liar.endless = lambda number: chunk_of_parent(delta="x" * size)
    assert isinstance(await finish(helix, boss(lying.url, limits=limits), "remote x"), Completed)
    assert (await delegated(helix)).code == "remote_limit_exceeded"
    assert liar.asked[-1] == "/abort"
    assert len(await seen(helix)) < 120


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda: liar.status.update(output=deep(200)), id="deep output"),
        pytest.param(lambda: liar.status.update(output=2**70), id="number of 70 bits"),
        pytest.param(lambda: liar.status.update(runStatus="superb"), id="status of its own"),
        pytest.param(lambda: liar.raw.update({"/start": b"<html>"}), id="no JSON"),
        pytest.param(lambda: liar.raw.update({"/start": b"[" * 100_000}), id="brackets"),
        pytest.param(lambda: liar.raw.update({"/start": b" " * 200_000}), id="long answer"),
        pytest.param(lambda: liar.raw.update({"/sse": b"data: " + b"x" * 200_000}), id="long event"),
        pytest.param(lambda: liar.raw.update({"/sse": b"id: x\ndata: {}\n\n"}), id="no number"),
        pytest.param(lambda: liar.say(1, delta=7), id="chunk that is none"),
        pytest.param(
            lambda: liar.raw.update({"/sse": b"id: " + b"9" * 19 + b'\ndata: {"type": "text_delta"}\n\n'}), id="far"
        ),
    ],
)
async def test_what_no_agent_server_says_loses_the_child(
    lying: LiveServer, helix: Executor, lie: Callable[[], None]
) -> None:
    lie()
    way = transport(lying.url, answer_bytes=100_000, event_bytes=100_000)
    assert isinstance(await finish(helix, boss(way, token=None), "remote x"), Completed)
    told = await delegated(helix)
    assert (told.code, "does not follow the protocol" in str(told.content)) == ("framework_subagent_lost", True)
    assert "/abort" in liar.asked


async def test_an_output_that_does_not_fit_fails_the_call(lying: LiveServer, helix: Executor) -> None:
    liar.status["output"] = "x" * 2_000_000
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    told = await delegated(helix)
    assert told.code == "tool_output_invalid"
    assert len(str(told.content)) < 1_000


async def test_an_error_text_is_cut(lying: LiveServer, helix: Executor) -> None:
    liar.tell(runStatus="failed", error="x" * 1_000_000, failureReason="y" * 1_000_000)
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    assert len(str((await delegated(helix)).content)) < 10_000


async def test_an_answer_that_trickles_in_is_given_up(lying: LiveServer, helix: Executor) -> None:
    liar.trickle = True
    way = transport(lying.url, answer_seconds=0.1)
    assert isinstance(await finish(helix, boss(way, token=None, lost_after=0.2), "remote x"), Completed)
    assert (await delegated(helix)).code == "framework_subagent_lost"


async def test_a_child_that_says_a_little_each_time_is_not_asked_without_a_break(
    lying: LiveServer, helix: Executor
) -> None:
    liar.drips = 6
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    assert len(liar.read_at) == liar.drips
    assert min(later - earlier for earlier, later in pairwise(liar.read_at)) > 0.09


async def test_an_answer_that_is_packed_is_not_unpacked(lying: LiveServer, helix: Executor) -> None:
    # A megabyte of it may be a gigabyte.
    liar.raw["/status"] = gzip.compress(msgspec.json.encode({"runStatus": "completed", "output": "x" * 1_000}))
    liar.packed.add("/status")
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    assert (await delegated(helix)).code == "framework_subagent_lost"


async def test_a_redirect_is_not_followed_so_the_token_goes_nowhere_else(lying: LiveServer, helix: Executor) -> None:
    liar.code["/status"] = 302
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    told = await delegated(helix)
    assert (told.code, "302" in str(told.content)) == ("sub_agent_dispatch_failed", True)


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
async def test_a_certificate_that_nobody_vouches_for_gets_no_token_however_the_address_is_written(
    lying: LiveServer, tmp_path: Path, scheme: str
) -> None:
    behind = lying.url.removeprefix("http://")
    async with tls_front(behind, make_certificates(tmp_path), asks_for_client=False) as door:
        careful = HttpRemoteAgentTransport(f"{scheme}://{door}", token="secret")
        with pytest.raises(RemoteUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await careful.status(RemoteSession(session_id="s", agent="worker"))


async def test_a_child_is_told_the_message_and_nothing_else(lying: LiveServer, helix: Executor) -> None:
    agent = boss(lying.url)
    assert isinstance(await finish(helix, agent, "my secret plan"), Completed)
    run = await helix.execute(agent, "remote x", "s", user_id="zoe", metadata={"team": "north"})
    assert isinstance(await run.result(), Completed)
    assert liar.told == {
        "agentType": "worker",
        "sessionId": liar.session,
        "message": "x",
        "metadata": {"helix.depth": "1"},
    }


def waiting_call(**fields: Any) -> dict[str, Any]:
    given = {"toolCallId": "call_1_1", "kind": "client_tool", "sessionId": "s", "rootSessionId": "s", "runId": "r"}
    return {**given, "stepId": "r.1", "toolName": "locate", "createdAt": 1, **fields}


async def test_a_waiting_call_never_takes_the_name_of_one_here(lying: LiveServer, helix: Executor) -> None:
    second = waiting_call(toolCallId="s", deadline=1, reason="y" * 1_000_000)
    liar.tell(runStatus="suspended_client_tool", pending=[waiting_call(), second])
    result = await finish(helix, boss(lying.url), "remote x")
    assert isinstance(result, Suspended)
    child = await child_of(helix)
    for call in result.pending:
        assert len(call.reason or "") < 10_000
        assert (call.session_id, call.root_session_id) == (child, "s")
        assert call.tool_call_id in (f"call_1_1_{child[-12:]}", f"s_{child[-12:]}")
        # A deadline long past there is not in the past here.
        assert call.deadline is None or call.deadline > call.created_at
    page = await helix.list_pending(PendingFilter(root_session_id="s"))
    assert len(page.items) == 2


@pytest.mark.parametrize(
    "pending",
    [
        pytest.param([waiting_call(toolCallId=f"c{n}") for n in range(65)], id="too many"),
        pytest.param([waiting_call(toolCallId="c" * 257)], id="long id"),
        pytest.param([waiting_call(toolCallId="")], id="no id"),
        pytest.param([waiting_call(kind="approval")], id="no approval id"),
        pytest.param([waiting_call(toolName="\x00")], id="no name"),
        pytest.param([waiting_call(kind="command")], id="kind of its own"),
        pytest.param([waiting_call(input="x" * 1_100_000)], id="huge input"),
        pytest.param("everything", id="no list"),
    ],
)
async def test_waiting_calls_that_cannot_be_lose_the_child(lying: LiveServer, helix: Executor, pending: Any) -> None:
    liar.tell(runStatus="suspended_client_tool", pending=pending)
    assert isinstance(await finish(helix, boss(lying.url), "remote x"), Completed)
    assert (await delegated(helix)).code == "framework_subagent_lost"


async def test_usage_and_state_are_taken_within_bounds_or_left(lying: LiveServer, helix: Executor) -> None:
    source = {"sourceType": "tokens", "sourceName": "m" * 5_000, "calls": 10**15, "failures": -5, "amount": -1}
    liar.usage = {"sources": [{**source, "tokens": {"total": 10**18, "prompt": -7}}, *[source] * 500]}
    liar.state = {"k": "x" * 20_000_000}
    run = await helix.execute(boss(lying.url), "remote x", "s")
    assert isinstance(await run.result(), Completed)
    used = await run.usage()
    assert 0 < used.tokens.total <= 10**12 + 10_000
    assert used.tokens.prompt >= 0
    assert all(len(each.source_name) <= 128 and each.calls <= 5_000 for each in used.sources)
    assert isinstance(await delegated(helix), ToolMessage)
    assert (await helix.sessions.get(await child_of(helix))).custom_state == {}


async def test_what_is_used_between_two_rests_of_one_following_is_counted(lying: LiveServer, helix: Executor) -> None:
    """The second answer comes while the child comes to rest for it, so that it is followed on at once."""
    looks = 0

    class Counting(HttpRemoteAgentTransport):
        async def usage(self, session: RemoteSession) -> UsageRollup:
            nonlocal looks
            looks += 1
            if looks == 2:
                await helix.submit_tool_result("s", f"c2_{(await child_of(helix))[-12:]}", ToolAnswer(result="there"))
                liar.status |= {"runStatus": "completed", "pending": []}
            total = SourceTotal(source_type="custom", source_name="pages", calls=looks, amount=10.0 * looks)
            return UsageRollup(sources=(total,))

    two = [waiting_call(toolCallId="c1"), waiting_call(toolCallId="c2")]
    liar.tell(runStatus="suspended_client_tool", pending=two)
    agent = boss(Counting(lying.url, token=ANN), token=None)
    assert isinstance(await finish(helix, agent, "remote x"), Suspended)
    await helix.submit_tool_result("s", f"c1_{(await child_of(helix))[-12:]}", ToolAnswer(result="here"))
    liar.status["pending"] = two[1:]
    run = await helix.resume(agent, "s")
    assert isinstance(await run.result(), Completed)
    (pages,) = [each for each in (await run.usage()).sources if each.source_name == "pages"]
    assert (looks, pages.calls, pages.amount) == (3, 3, 30.0)

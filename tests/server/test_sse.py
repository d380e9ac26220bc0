"""Streams: exact continuation from any id, comments in silence, and readers that can hurt nobody but themselves."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from helix_agents import Executor
from helix_agents.backends.in_memory import InMemoryStreamManager
from helix_agents.domain.errors import HelixError, SessionCorruptError, SessionNotFoundError, StoreUnavailableError
from helix_agents.runtimes.executor.recovery import Recovered
from helix_agents.server import app
from helix_agents.server.executor_routes import ChunkSource
from helix_agents.server.limits import ServerLimits
from helix_agents.server.sse import EventStreamResponse, Leaving
from tests.server.agents import agents, gate, helper
from tests.server.live import ANN, LiveServer, agent_server, wait_until
from tests.server.page import events
from tests.server.test_executor_routes import chunks, settled, start


def test_last_event_id_continues_exactly_from_every_place(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "search")
    settled(ann, session_id)
    whole = chunks(ann, session_id)
    for place in range(len(whole)):
        response = ann.get("/sse", params={"sessionId": session_id}, headers={"last-event-id": str(place)})
        assert list(events(response.iter_lines())) == whole[place:]


def test_an_empty_cursor_is_none(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "search")
    settled(ann, session_id)
    where = {"sessionId": session_id}
    whole = ann.get("/sse", params=where).text
    assert ann.get("/sse", params=where, headers={"last-event-id": ""}).text == whole
    for odd in ("-1", "1.5", "one", "9" * 30):
        refused = ann.get("/sse", params=where, headers={"last-event-id": odd})
        assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")


@pytest.mark.parametrize("given", ["-1", "x", "1.5", "٣", "9" * 30])
def test_a_cursor_that_is_none_is_refused(ann: httpx2.Client, session_id: str, given: str) -> None:
    start(ann, session_id, "hello")
    response = ann.get("/sse", params={"sessionId": session_id, "fromSequence": given})
    assert response.status_code == 400


def test_a_cursor_from_another_stream_is_told_so_and_gets_everything(ann: httpx2.Client, session_id: str) -> None:
    start(ann, session_id, "hello")
    settled(ann, session_id)
    seen = chunks(ann, session_id, after=10_000)
    assert seen[0]["data"]["type"] == "stream_resync"
    assert len(seen) > 5


def test_a_reader_that_is_cut_off_again_and_again_misses_nothing(ann: httpx2.Client, session_id: str) -> None:
    gate.shut(after=2)
    start(ann, session_id, "long story")
    seen: list[Any] = []
    last = 0
    for allowed in range(4, 40, 4):
        gate.shut_after = allowed
        with ann.stream(
            "GET", "/sse", params={"sessionId": session_id}, headers={"last-event-id": str(last)}
        ) as response:
            event = next(events(response.iter_lines()))
            seen.append(event)
            last = int(event["id"])
    gate.open()
    settled(ann, session_id)
    rest = chunks(ann, session_id, after=last)
    assert [*seen, *rest] == chunks(ann, session_id)


def test_silence_is_filled_with_comments() -> None:
    limits = ServerLimits(keep_alive_seconds=0.02)
    with LiveServer(agent_server(limits=limits)) as live, live.client() as client:
        gate.shut()
        start(client, "s", "hello")
        with client.stream("GET", "/sse", params={"sessionId": "s"}) as response:
            lines = response.iter_lines()
            comments = [line for line in (next(lines) for _ in range(12)) if line == ": keep-alive"]
            gate.open()
            rest = list(lines)
        assert comments
        assert "event: end" in rest


def read_nothing(port: int, path: str) -> socket.socket:
    """A reader that opens a stream and then takes no byte."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    reader.connect(("127.0.0.1", port))
    reader.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ANN}\r\n\r\n".encode())
    return reader


def test_a_reader_that_stalls_never_touches_the_run_and_is_let_go() -> None:
    limits = ServerLimits(stalled_reader_seconds=0.3)
    with LiveServer(agent_server(limits=limits)) as live, live.client() as client:
        gate.shut(after=1)
        start(client, "s", "long " + "x" * 400_000)
        reader = read_nothing(live.port, "/sse?sessionId=s")
        wait_until(lambda: live.app.open_streams == 1)
        gate.open()
        assert settled(client, "s")["status"] == "completed"
        wait_until(lambda: live.app.open_streams == 0)
        reader.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only there a connection can be given a time to be read in")
@pytest.mark.parametrize("path", ["/sse?sessionId=s", "/sessions/s/messages"])
def test_the_connection_of_a_reader_that_stalls_is_closed_with_what_waits_in_it(path: str) -> None:
    """Under any server: nothing but the application knows how long readers may take."""
    limits = ServerLimits(stalled_reader_seconds=0.3)
    # Or all of it would find its place in the system, and wait there.
    with LiveServer(agent_server(limits=limits), send_buffer=4096) as live:
        with live.client() as client:
            start(client, "s", "long " + "x" * 400_000)
            settled(client, "s")
        wait_until(lambda: not live.connections)
        reader = read_nothing(live.port, path)
        wait_until(lambda: live.connections)
        wait_until(lambda: not live.connections)
        reader.close()


def test_readers_that_leave_never_touch_the_run(ann: httpx2.Client, session_id: str, server: LiveServer) -> None:
    gate.shut(after=3)
    start(ann, session_id, "long story")
    before = server.app.open_streams
    for _ in range(5):
        with ann.stream("GET", "/sse", params={"sessionId": session_id}) as response:
            next(response.iter_lines())
    wait_until(lambda: server.app.open_streams == before)
    gate.open()
    assert settled(ann, session_id)["status"] == "completed"


@contextmanager
def reading_what_waits(client: httpx2.Client) -> Iterator[None]:
    """While somebody reads the stream of a run that does not go on."""
    gate.shut()
    start(client, "s", "hello")
    with client.stream("GET", "/sse", params={"sessionId": "s"}) as response:
        lines = response.iter_lines()
        next(lines)
        yield


def test_too_many_streams_are_refused_and_places_come_free() -> None:
    limits = ServerLimits(open_streams=2, open_streams_per_user=2)
    with LiveServer(agent_server(limits=limits)) as live, live.client() as client:
        with (
            reading_what_waits(client),
            live.client() as other,
            other.stream("GET", "/sse", params={"sessionId": "s"}) as second,
        ):
            reading_too = second.iter_lines()
            next(reading_too)
            refused = client.get("/sse", params={"sessionId": "s"})
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
            assert refused.headers["retry-after"]
        wait_until(lambda: live.app.open_streams == 0)
        gate.open()
        assert chunks(client, "s")[-1]["event"] == "end"


def test_one_user_cannot_take_all_streams() -> None:
    limits = ServerLimits(open_streams=10, open_streams_per_user=1)
    with LiveServer(agent_server(limits=limits)) as live, live.client() as client:
        with reading_what_waits(client), live.client() as other:
            refused = other.get("/sse", params={"sessionId": "s"})
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        gate.open()


def test_a_server_that_leaves_ends_streams_with_a_cursor_and_starts_nothing_new() -> None:
    with LiveServer(agent_server(executor={"grace": 0.2})) as live, live.client() as client:
        gate.shut(after=3)
        start(client, "s", "long story")
        with client.stream("GET", "/sse", params={"sessionId": "s"}) as response, live.client() as other:
            seen = events(response.iter_lines())
            first = next(seen)
            live.app.drain()
            rest = list(seen)
            assert rest[-1]["event"] == "reconnect"
            known = [first, *rest[:-1]]
            assert rest[-1]["data"]["lastEventId"] == int(known[-1]["id"])
            refused = start(other, "new", "hello")
            assert (refused.status_code, refused.json()["code"]) == (503, "server_draining")
            assert refused.headers["retry-after"]
            assert other.get("/readyz").status_code == 503
            assert other.get("/healthz").status_code == 200
            assert other.get("/status", params={"sessionId": "s"}).status_code == 200
    gate.open()


def test_what_an_instance_leaves_is_gone_on_with_as_soon_as_it_is_read_elsewhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'helix.db'}"
    with LiveServer(agent_server(store)) as other, other.client() as elsewhere:
        with LiveServer(agent_server(store, executor={"grace": 0.0})) as leaves, leaves.client() as ann:
            gate.shut(after=3)
            start(ann, "s", "long story")
        gate.open()
        begun = time.monotonic()
        assert chunks(elsewhere, "s")[-1]["data"]["status"] == "completed"
        assert time.monotonic() - begun < 10, "the janitor comes every fifteen seconds"


class Recovering:
    """An executor whose looks for what others left take a while, and go wrong the first time."""

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds
        self.looks = 0

    async def sweep(self) -> None:
        raise RuntimeError("this time")

    async def recover(self) -> Recovered:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("and this time")
        await asyncio.sleep(self.seconds)
        return Recovered()


@pytest.mark.parametrize(
    ("seconds", "elsewhere", "least", "most"),
    [(0.0, True, 20, 1_000), (0.05, True, 2, 3), (0.0, False, 2, 3)],
    ids=["quick", "slow", "nobody waits"],
)
async def test_looking_for_what_others_left_goes_on_and_takes_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, elsewhere: bool, least: int, most: int
) -> None:
    monkeypatch.setattr(app, "TAKE_UP_SECONDS", 0.005)
    monkeypatch.setattr(app, "TAKE_UP_SHARE", 200)
    monkeypatch.setattr(app, "NOBODY_WAITS_SECONDS", 0.2)
    executor: Any = Recovering(seconds=seconds)
    gate: Any = SimpleNamespace(follows_others=elsewhere, open_streams=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await app._take_up(executor, gate)
    assert least <= executor.looks <= most


def test_only_who_reads_what_another_process_does_looks_for_what_others_left(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'helix.db'}"
    with (
        LiveServer(agent_server(store)) as drives,
        LiveServer(agent_server(store)) as reads,
        drives.client() as here,
        reads.client() as elsewhere,
    ):
        gate.shut(after=3)
        start(here, "s", "long story")
        path = "/sse?sessionId=s"
        with here.stream("GET", path) as one, elsewhere.stream("GET", path) as other:
            lines = one.iter_lines(), other.iter_lines()
            assert [next(each) for each in lines]
            assert (drives.app.open_streams, reads.app.open_streams) == (1, 1)
            assert (drives.app._gate.follows_others, reads.app._gate.follows_others) == (False, True)
            gate.open()
            assert [list(each)[-2:-1] for each in lines]
        wait_until(lambda: not reads.app._gate.follows_others)
        assert reads.app.open_streams == 0


def test_a_chat_that_the_server_leaves_is_told_to_reconnect() -> None:
    with LiveServer(agent_server(executor={"grace": 0.2})) as live, live.client() as client:
        gate.shut(after=3)
        body = {"id": "s", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "long story"}]}]}
        with client.stream("POST", "/chat", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            live.app.drain()
            text = "\n".join(lines)
        assert '"type":"error"' in text
        assert "reconnect" in text
        assert text.rstrip().endswith("[DONE]")
    gate.open()


async def test_what_was_read_and_not_sent_is_before_the_cursor_of_the_farewell() -> None:
    """A slow reader is told to reconnect from what it got, not from what was read for it."""

    class Numbers:
        said = 0

        async def frames(self) -> AsyncGenerator[bytes, None]:
            while True:
                self.said += 1
                yield b"%d " % self.said

        def farewell(self) -> bytes:
            return b"after %d" % self.said

    leaving, taking, sent = Leaving(), asyncio.Event(), b""

    async def send(message: Any) -> None:
        nonlocal sent
        if sent:
            leaving.set()
            await taking.wait()
        sent += message.get("body", b"")

    async def receive() -> Any:
        await asyncio.Event().wait()

    response = EventStreamResponse(Numbers(), limits=ServerLimits(), leaving=leaving)
    asyncio.get_running_loop().call_later(0.1, taking.set)
    await asyncio.wait_for(response({"type": "http"}, receive, send), 10)
    *numbers, _, last = sent.split()
    assert numbers == [b"%d" % number for number in range(1, len(numbers) + 1)]
    assert last == numbers[-1]


async def test_a_client_that_left_while_the_end_was_sent_counts_as_cut_off() -> None:
    class Last:
        async def frames(self) -> AsyncGenerator[bytes, None]:
            yield b"the end"

        def farewell(self) -> bytes:
            raise AssertionError("nobody is there to be told")

    left, cut = asyncio.Event(), 0

    async def send(message: Any) -> None:
        if message.get("body"):
            left.set()
            # A server takes what is sent to a client that left, and says nothing.
            await asyncio.sleep(0)

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    def when_cut() -> None:
        nonlocal cut
        cut += 1

    response = EventStreamResponse(Last(), limits=ServerLimits(), leaving=Leaving(), when_cut=when_cut)
    await asyncio.wait_for(response({"type": "http"}, receive, send), 10)
    assert cut == 1


def test_a_stream_has_no_head_to_wait_behind(ann: httpx2.Client, session_id: str) -> None:
    gate.shut()
    start(ann, session_id, "hello")
    for path in (f"/sse?sessionId={session_id}", f"/chat/{session_id}/stream"):
        assert ann.head(path).status_code == 405
        assert ann.head("/healthz").status_code == 200


async def test_a_reader_of_a_session_without_a_stream_waits_at_leisure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child speaks in the stream of its root, so a reader that asks for the child's own has long to wait."""
    gate.shut(after=1, only="Let")
    async with Executor.open("memory://", agents=agents) as helix:
        run = await helix.execute(agents[0], "delegate", "root")
        said = run.stream()
        child = await anext(chunk.session_id async for chunk in said if chunk.session_id != "root")
        looks = 0
        look = InMemoryStreamManager.create_resumable_reader

        async def counted(streams: InMemoryStreamManager, stream_id: str, **options: Any) -> Any:
            nonlocal looks
            looks += stream_id == child
            return await look(streams, stream_id, **options)

        monkeypatch.setattr(InMemoryStreamManager, "create_resumable_reader", counted)
        handle = await helix.get_handle(helper, child)
        assert handle is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(handle.stream())
        assert 1 <= looks <= 8
        gate.open()


async def test_a_reader_that_the_next_turn_overtakes_is_told_to_read_on() -> None:
    async with Executor.open("memory://", agents=agents, janitor_seconds=None) as helix:
        first = await helix.execute(agents[0], "1", "s")
        await first.result()
        await (await helix.execute(agents[0], "2", "s")).result()
        latest = (await helix.sessions.runs("s", limit=1)).items[0]

        async def current_run(_: str) -> Any:
            return latest

        call: Any = SimpleNamespace(current_run=current_run, gate=SimpleNamespace(limits=ServerLimits()))
        source = ChunkSource(call, first, 0)
        seen = [frame async for frame in source.frames()]
        assert b"event: reconnect" in seen[-1]
        assert f'"lastEventId":{len(seen) - 1},'.encode() in seen[-1]
        assert b"event: end" not in b"".join(seen)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (StoreUnavailableError("the store", "away"), {"code": "store_unavailable", "retryable": True}),
        (SessionCorruptError("session", "a row is missing"), {"code": "session_corrupt", "retryable": False}),
        (SessionNotFoundError("s-1"), {"code": "session_not_found", "retryable": False}),
    ],
    ids=["away", "corrupt", "deleted"],
)
async def test_a_stream_that_breaks_says_whether_it_helps_to_come_back(
    problem: HelixError, told: dict[str, Any]
) -> None:
    async def broken(**_: Any) -> AsyncGenerator[Any]:
        raise problem
        yield

    run: Any = SimpleNamespace(session_id="s-1", stream=broken)
    call: Any = SimpleNamespace()
    [frame] = [each async for each in ChunkSource(call, run, 0).frames()]
    _, _, data = frame.decode().partition("data: ")
    assert {name: json.loads(data)[name] for name in told} == told


@pytest.mark.parametrize("path", ["/sse?sessionId=s-1", "/chat/s-1/stream"])
def test_a_reader_whose_store_goes_away_is_let_go_and_told_why_when_it_comes_back(tmp_path: Path, path: str) -> None:
    store = tmp_path / "helix.db"
    with LiveServer(agent_server(f"sqlite:///{store}", executor={"lease_ms": 600})) as live, live.client() as ann:
        gate.shut(after=2)
        start(ann, "s-1", "long story")
        with ann.stream("GET", path) as reading:
            lines = reading.iter_lines()
            next(lines)
            store.rename(tmp_path / "elsewhere.db")
            # Ends by itself, though its run neither ends nor says another word.
            list(lines)
        refused = ann.get(path)
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (
            503,
            "store_unavailable",
            True,
        )
        assert "file of the store was deleted, moved or replaced" in refused.json()["detail"]
        gate.open()

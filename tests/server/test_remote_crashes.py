"""Services that delegate to each other lose connections and processes; no work, no word and no answer is lost."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helix_agents import Completed, Executor
from helix_agents.domain.chunks import StreamChunk, SubagentStart, TextDelta
from helix_agents.domain.messages import ToolMessage
from helix_agents.engine.remote.stops import (
    ABANDONED,
    GIVEN_UP_AFTER_MS,
    OPEN,
    REMOTE,
    STOP_ABANDONED,
    id_there,
    pay_stops,
)
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.backend import open_backend
from helix_agents.testing.recording import StopAt
from helix_agents.testing.service_process import free_port
from tests.recovery.deaths import die_at, settings_on
from tests.server.agents import gate
from tests.server.chain import boss
from tests.server.delegating import child_of, eventually, status_at
from tests.server.live import Instance, LiveServer, wait_until
from tests.server.page import Page
from tests.server.test_executor_routes import chunks, start, status


class Cutter:
    """A TCP proxy, in threads, that cuts answers: each of the first connections after a number of bytes of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cuts: list[int] = []
        self.cut_all = False
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut_now()

    def cut_now(self) -> None:
        """Cut whatever is connected."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                if self.cut_all:
                    here.close()
                    continue
                cut = self.cuts[self.connections] if self.connections < len(self.cuts) else None
                self.connections += 1
                threading.Thread(target=self._serve, args=(here, cut), daemon=True).start()

    def _serve(self, here: socket.socket, cut: int | None) -> None:
        with here, socket.create_connection(("127.0.0.1", self._port)) as there:
            self._open += (here, there)
            up = threading.Thread(target=_pump, args=(here, there, None), daemon=True)
            up.start()
            _pump(there, here, cut)
            for each in (here, there):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            up.join()


def _pump(source: socket.socket, sink: socket.socket, left: int | None) -> None:
    with suppress(OSError):
        while left is None or left > 0:
            data = source.recv(65_536 if left is None else min(left, 65_536))
            if not data:
                return
            sink.sendall(data)
            left = None if left is None else left - len(data)


@pytest.fixture
def cutter(remote: LiveServer) -> Iterator[Cutter]:
    cutter = Cutter(remote.port)
    yield cutter
    cutter.close()


def told(chunks: tuple[StreamChunk, ...]) -> list[int]:
    return [chunk.remote_sequence for chunk in chunks if chunk.remote_sequence is not None]


# An answer to `status` has about 500 bytes; the stream of this child some thousand, fewer the more text is joined.
@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([0, 20, 300], id="before anything is known"),
        pytest.param([5_000, 100, 5_000, 400, 5_000, 900, 5_000, 1_500, 5_000, 2_500], id="early in the stream"),
        pytest.param([5_000, 5_000, 701, 5_000, 777, 5_000, 811, 5_000, 903], id="within events"),
        pytest.param([5_000, 5_000, 13_000, 100, 5_000, 200, 100_000, 300], id="around its end"),
    ],
)
async def test_a_connection_that_is_cut_anywhere_loses_and_repeats_no_chunk(
    remote: LiveServer, cutter: Cutter, cuts: list[int]
) -> None:
    cutter.cuts = cuts
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        run = await helix.execute(boss(cutter.url), "remote long search", "s")
        assert isinstance(await run.result(), Completed)
        seen = await helix._services.streams.get_all_chunks("s")
        whole = await remote_chunks(remote, id_there(await child_of(helix)))
        assert told(seen) == whole
        assert cutter.connections > len(cuts)


async def test_a_new_message_after_a_crash_finds_what_a_remote_child_had_come_to(remote: LiveServer) -> None:
    agent = boss(remote.url)
    async with await open_backend("memory://left-remote") as parts:
        died = StopAt(kind="run_batch", effect=1, side="after")
        await die_at(died, parts, agent, "s", "remote find it")
        async with Executor(**settings_on(parts, agent)) as second:
            assert isinstance(await (await second.execute(agent, "never mind", "s")).result(), Completed)
        (ref,) = await parts.state.get_sub_session_refs("s")
        messages = [each.message for each in await parts.state.load_transcript("s")]
        (result,) = [each for each in messages if isinstance(each, ToolMessage)]
        assert (ref.status, ref.result, result.error) == ("completed", result.content, False)
        assert str(result.content).startswith("You said: find it.")


async def remote_chunks(live: LiveServer, session: str) -> list[int]:
    async with httpx2.AsyncClient(base_url=live.url, headers={"authorization": "Bearer token-of-ann"}) as client:
        text = (await client.get(f"/sse?sessionId={session}")).text
    frames = [frame for frame in text.split("\n\n") if "data: " in frame and "event: " not in frame]
    return [int(line.removeprefix("id: ")) for frame in frames for line in frame.splitlines() if line[:4] == "id: "]


# ---------------------------------------------------------------------------------------------------------
# Processes that die
# ---------------------------------------------------------------------------------------------------------

Begin = Callable[..., Instance]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins `name` on a store of its own; the same name again is another process on the same store and port."""
    begun: list[Instance] = []
    ports: dict[str, int] = {}

    def one_more(name: str, below: str | None = None, agent: str = "worker") -> Instance:
        port = ports.setdefault(name, free_port())
        environment = {
            "HELIX_TEST_GATE": str(tmp_path / "shut"),
            "HELIX_TEST_JOURNAL": str(tmp_path / "journal"),
            "HELIX_TEST_AGENT": agent,
            **(
                {}
                if below is None
                else {"HELIX_TEST_BELOW": f"http://127.0.0.1:{ports.setdefault(below, free_port())}"}
            ),
        }
        instance = Instance(
            f"sqlite:///{tmp_path / name}.db",
            agents="tests.server.chain:agents",
            environment=environment,
            arguments=("--port", str(port), "--lease", "1", "--janitor", "0.2"),
        )
        begun.append(instance)
        return instance

    yield one_more
    for instance in begun:
        instance.__exit__()


def come_to(client: httpx2.Client, session: str, *wanted: str) -> Any:
    def look() -> Any:
        with suppress(httpx2.TransportError):
            found = status(client, session)
            return found if found.get("runStatus") in wanted else None
        return None

    return wait_until(look)


def shown(client: httpx2.Client, session: str) -> list[dict[str, Any]]:
    return [event["data"] for event in chunks(client, session) if "event" not in event]


def each_once(seen: list[dict[str, Any]]) -> None:
    numbers = [(chunk["runId"], chunk["remoteSequence"]) for chunk in seen if "remoteSequence" in chunk]
    assert numbers, seen
    assert max(Counter(numbers).values()) == 1
    order = [chunk["remoteSequence"] for chunk in seen if "remoteSequence" in chunk]
    assert order == sorted(order)
    assert sum(chunk["type"] == "subagent_start" and chunk["sessionId"] == "s" for chunk in seen) == 1
    assert sum(chunk["type"] == "subagent_end" and chunk["sessionId"] == "s" for chunk in seen) == 1


def begin_a_story(begin: Begin, shut: Path) -> tuple[Instance, Instance]:
    """A child that has been asked for a long story and holds its tongue, and the parent that follows it."""
    child, parent = begin("child"), begin("parent", below="child", agent="boss")
    assert child.url
    shut.touch()
    with parent.client() as client, child.client() as there:
        assert start(client, "s", "remote long story", agentType="boss").is_success
        wait_until(lambda: there.get("/sessions").json()["total"])
    return child, parent


def the_story_is_told_once(client: httpx2.Client) -> dict[str, Any]:
    done = come_to(client, "s", "completed")
    story = "You said: long story. " + "And so on. " * 20
    assert done["output"] == f"I was told: {story}."
    seen = shown(client, "s")
    each_once(seen)
    assert "".join(each["delta"] for each in seen if "remoteSequence" in each and "delta" in each) == story
    return done


def test_a_parent_that_is_killed_while_its_child_works_goes_on_where_it_was(begin: Begin, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    _, parent = begin_a_story(begin, shut)
    parent.kill()
    shut.unlink()
    with begin("parent", below="child", agent="boss").client() as client:
        assert the_story_is_told_once(client)["attempt"] > 1


def test_what_a_killed_parent_heard_of_a_call_inside_is_shown_by_a_page_that_is_loaded_later(
    begin: Begin, tmp_path: Path
) -> None:
    shut = tmp_path / "shut"
    child, parent = begin("child"), begin("parent", below="child", agent="boss")
    assert child.url
    with parent.client() as client:
        page = Page(client, "s")
        page.say("remote publish").decide("publish", True)
        shut.touch()
        with page.posting() as parts:
            wait_until(lambda: next(parts)["type"] == "tool-output-available")
        parent.kill()
    shut.unlink()
    with begin("parent", below="child", agent="boss").client() as client:
        assert come_to(client, "s", "completed")["attempt"] > 1
        anew = Page(client, "s", client.get("/sessions/s/snapshot").json()["messages"])
        assert (anew.tool("publish")["state"], anew.tool("publish")["output"]) == ("output-available", "published r-1")


def test_a_child_that_is_killed_at_work_is_followed_when_it_is_back(begin: Begin, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    child, parent = begin_a_story(begin, shut)
    child.kill()
    shut.unlink()
    assert begin("child").url
    with parent.client() as client:
        the_story_is_told_once(client)


def test_three_services_in_a_chain_each_killed_once_and_an_approval_at_the_bottom(begin: Begin, tmp_path: Path) -> None:
    shut, journal = tmp_path / "shut", tmp_path / "journal"
    shut.touch()
    bottom, middle = begin("bottom"), begin("middle", below="bottom")
    root = begin("root", below="middle", agent="boss")
    assert bottom.url
    assert middle.url
    with root.client() as client:
        assert start(client, "s", "remote remote publish", agentType="boss").is_success
        with bottom.client() as there:
            wait_until(lambda: there.get("/sessions").json()["total"])
        bottom.kill()
        shut.unlink()
        bottom = begin("bottom")
        (waiting,) = come_to(client, "s", "suspended_awaiting_children")["pending"]
        assert (waiting["toolName"], waiting["input"]) == ("publish", {"report_id": "r-1"})
        middle.kill()
        middle = begin("middle", below="bottom")
        answer = {"sessionId": "s", "kind": "approval-response", "approved": True}
        answer |= {"toolCallId": waiting["toolCallId"], "approvalId": waiting["approvalId"]}
        assert client.post("/submit-tool-result", json=answer).json()["outcome"] == "accepted"
        root.kill()
    root = begin("root", below="middle", agent="boss")
    with root.client() as client:
        assert client.post("/submit-tool-result", json=answer).json()["outcome"] == "already_completed"
        client.post("/resume", json={"sessionId": "s"})
        done = come_to(client, "s", "completed", "failed")
        assert done["output"] == "I was told: I was told: I was told: published r-1..."
        each_once(shown(client, "s"))
    assert journal.read_text().splitlines() == ["r-1"]


# ---------------------------------------------------------------------------------------------------------
# Stops that are owed
# ---------------------------------------------------------------------------------------------------------


async def test_a_stop_that_the_service_did_not_hear_is_paid_when_it_is_back(remote: LiveServer, cutter: Cutter) -> None:
    options = EngineOptions(cancel_grace_seconds=0.2)
    async with Executor.open("memory://", janitor_seconds=60, options=options) as helix:
        gate.shut(after=2)
        run = await helix.execute(boss(cutter.url), "remote long story", "s")
        async for chunk in run.stream():
            if isinstance(chunk, TextDelta) and chunk.remote_sequence is not None:
                break
        cutter.cut_all = True
        cutter.cut_now()
        await helix.interrupt("s")
        await run.result()
        child = await child_of(helix)
        assert (await helix.sessions.get(child)).metadata[REMOTE] == OPEN
        assert (await status_at(remote, child))["runStatus"] == "running"
        cutter.cut_all = False

        async def is_paid() -> bool:
            return REMOTE not in (await helix.sessions.get(child)).metadata

        await eventually(is_paid)
        assert (await status_at(remote, child))["runStatus"] in ("running", "interrupted")

        async def is_stopped() -> bool:
            return (await status_at(remote, child))["runStatus"] == "interrupted"

        await eventually(is_stopped)


async def test_a_stop_is_tried_less_and_less_often_and_given_up_after_a_day(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        run = await helix.execute(boss("http://127.0.0.1:9", lost_after=0.05), "remote search", "s")
        assert isinstance(await run.result(), Completed)
        store = helix._services.store
        began = now = store.now_ms()
        monkeypatch.setattr(store, "now_ms", lambda: now)
        waits: list[int] = []
        abandoned = 0
        while not abandoned:
            paid = await pay_stops(helix._services)
            abandoned = paid.abandoned
            waits.append(paid.next_in_ms or 0)
            now += paid.next_in_ms or 0
            assert len(waits) < 400
        assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
        assert max(waits) == 300_000
        assert now - began >= GIVEN_UP_AFTER_MS
        assert [
            record.levelname for record in caplog.records if getattr(record, "event", "") == "subagent.stop_abandoned"
        ] == ["ERROR"]
        listed = (await helix.sessions.list(STOP_ABANDONED)).items
        assert [(item.session_id, item.metadata[REMOTE]) for item in listed] == [(await child_of(helix), ABANDONED)]
        assert (await helix.sweep()).stops_abandoned == 0


async def test_deleting_a_session_deletes_what_it_has_elsewhere(
    remote: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        run = await helix.execute(boss(remote.url), "remote search", "s")
        chunks = [chunk async for chunk in run.stream()]
        (child,) = [chunk.child_session_id for chunk in chunks if isinstance(chunk, SubagentStart)]
        await helix.sessions.delete("s")
    async with httpx2.AsyncClient(base_url=remote.url, headers={"authorization": "Bearer token-of-ann"}) as client:
        assert (await client.get(f"/status?sessionId={id_there(child)}")).status_code == 404
    assert "subagent.delete_failed" not in caplog.text

"""Snapshots, briefings, notices and sessions: told from durable facts, exactly."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from helix_agents import Agent, Executor, ScriptedModel
from helix_agents.capabilities.housekeeping import sweep_state
from helix_agents.capabilities.notifying import deliver_notices
from helix_agents.capabilities.settings import Limits
from helix_agents.domain.capability_errors import SessionNotFound
from helix_agents.testing import call, reply
from tests.capabilities.test_agent_tools import bundle_of
from tests.capabilities.worlds import World


async def test_the_same_window_gives_the_same_bytes_and_two_windows_neither_overlap_nor_leave_a_hole(
    each_world: World,
) -> None:
    async with each_world.open("ann") as plain, each_world.open("bob") as bob:
        state = await plain.with_session()
        await state.persistent.set("a", 1)
        await bob.shared.set("b", 1, expected_version=0)
        await bob.persistent.set("private", 1)
        first = await state.call("state.briefing.generate", detail_level="detailed")
        assert await state.call("state.briefing.generate", detail_level="detailed") == first
        assert [change["key"] for change in first["briefing"]["state_changes"]] == ["a", "b"]
        await state.call("session.end")
        await bob.shared.set("c", 1, expected_version=0)
        second = await plain.call("state.briefing.generate", detail_level="detailed")
        assert second["briefing"]["window"]["from"] == first["briefing"]["window"]["to"]
        assert [change["key"] for change in second["briefing"]["state_changes"]] == ["c"]
        assert all(change["source"].startswith("revision:") for change in second["briefing"]["state_changes"])


async def test_files_that_were_made_changed_and_deleted_are_reported(world: World) -> None:
    watched = world.folder / "watched"
    for name in ("changed", "deleted", "same"):
        (watched / name).write_text(name)
    async with world.open("ann") as plain:
        state = await plain.with_session()
        await state.call("session.end")
        (watched / "changed").write_text("something else")
        (watched / "deleted").unlink()
        (watched / "made").write_text("new")
        found = (await plain.call("state.briefing.generate", detail_level="detailed"))["briefing"]
        assert [(change["path"].rpartition("/")[2], change["change"]) for change in found["filesystem_changes"]] == [
            ("changed", "modified"),
            ("deleted", "deleted"),
            ("made", "created"),
        ]
        assert "3 files changed" in found["summary"]


async def test_a_briefing_tells_of_runs_and_of_what_waits(world: World) -> None:
    script = [reply(calls=[call("state__backup__create", {}), call("alerts__send", {"message": "help"})])]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(world)])
    async with Executor.open(world.url, agents=[ann]) as executor:
        await (await executor.execute(ann, "go", "s-1")).result()
    async with world.open("ann") as state:
        found = (await state.call("state.briefing.generate"))["briefing"]
        assert (found["process_events"], found["pending_approvals"], found["alerts"]) == (1, 1, 1)
        assert found["summary"].startswith("Since your last activity: 1 approval waits, 1 alert is open, 1 run changed")
        made = await state.call("state.snapshot.create")
        seen = (await state.call("state.snapshot.load", snapshot_id=made["snapshot_id"]))["snapshot"]
        assert [waiting["tool_name"] for waiting in seen["approvals"]] == ["state__backup__create"]
        assert seen["agents"]["ann"] == {"sessions": 1, "running": 0}
        assert "help" not in json.dumps(seen)
    async with world.open("bob") as other:
        assert (await other.call("state.briefing.generate"))["briefing"]["pending_approvals"] == 0


async def test_snapshots_in_one_second_have_names_of_their_own_and_old_ones_go(world: World) -> None:
    world.limits = Limits(snapshots=3)
    async with world.open() as state:
        names = [(await state.call("state.snapshot.create"))["snapshot_id"] for _ in range(5)]
        assert len(set(names)) == 5
        listed = (await state.call("state.snapshot.list"))["snapshots"]
        assert [each["snapshot_id"] for each in listed] == names[:1:-1]
        assert len(world.files("snapshots")) == 3
        world.files("snapshots")[0].unlink()
        assert sum(each.get("missing", False) for each in (await state.call("state.snapshot.list"))["snapshots"]) == 1


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes notices; refuses the first one it is sent."""

    received: list[dict[str, Any]] = []
    refused = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not Receiver.refused:
            Receiver.refused = 1
            self.send_error(503)
            return
        Receiver.received.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def webhook() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    Receiver.received, Receiver.refused = [], 0
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


async def test_a_notice_reaches_every_webhook_at_least_once(world: World, webhook: str) -> None:
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        await state.shared.set("a", "secret", expected_version=0)
        await state.shared.set("b", "secret", expected_version=0)
        assert await deliver_notices(state.gateway) == 1
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        assert await deliver_notices(state.gateway) == 1
        assert await deliver_notices(state.gateway) == 0
    assert sorted(notice["inputs"]["key"] for notice in Receiver.received) == ["a", "b"]
    assert "secret" not in json.dumps(Receiver.received)


async def test_the_janitor_delivers_notices_of_agents(world: World, webhook: str) -> None:
    Receiver.refused = 1
    script = [reply(calls=[call("state__shared__set", {"key": "c", "value": 1, "expected_version": 0})]), "done"]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(world, webhooks=[webhook])])
    async with Executor.open(world.url, agents=[ann], janitor_seconds=None) as executor:
        await (await executor.execute(ann, "go", "s-1")).result()
        await executor.sweep()
    assert [notice["agent"] for notice in Receiver.received] == ["ann"]


async def test_a_session_ends_when_it_is_not_used_and_leaves_nothing(each_world: World) -> None:
    each_world.limits = Limits(session_idle_ms=1_000)
    async with each_world.open() as plain:
        state = await plain.with_session()
        await state.session.set("k", "secret")
        store = plain.gateway.store
        later = store.now_ms() + 5_000
        store.now_ms = lambda: later
        with pytest.raises(SessionNotFound):
            await state.session.get("k")
        assert (await sweep_state(plain.gateway))["sessions_ended"] == 1
        assert (await store.usage(f"session:{state.caller.session_id}")).keys == 0


async def test_many_calls_on_one_connection_all_get_their_answers(each_world: World) -> None:
    async with each_world.open() as state:
        answers = await asyncio.gather(*(state.persistent.set(f"k{number}", number) for number in range(100)))
        assert answers == [1] * 100
        assert (await state.persistent.list())["count"] == 100
        await state.gateway.flush()
        assert len(await state.gateway.store.list_audit(limit=1_000)) == 101

"""Snapshots, briefings, notices and sessions: told from durable facts, exactly."""

import asyncio
import contextlib
import http.server
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, ApprovalAnswer, Executor, ScriptedModel, ask_human, tool
from helix_agents.capabilities import housekeeping
from helix_agents.capabilities.alerts import close_alerts
from helix_agents.capabilities.approval_rows import ApprovalRow
from helix_agents.capabilities.approvals import decide_approval
from helix_agents.capabilities.housekeeping import sweep_as_guest, sweep_state
from helix_agents.capabilities.notifying import PUT_OFF_MS, deliver_notices
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import ALERTS, APPROVALS, JOURNAL, OUTBOX, SESSIONS
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.toolset import StateCapabilities
from helix_agents.capabilities.watching import subscriptions_of
from helix_agents.domain.capability_errors import ApprovalPending, InvalidInput, QuotaExceeded, SessionNotFound
from helix_agents.domain.entries import EntryPage, EntryTransaction, Put, Transacted, session_scope
from helix_agents.domain.errors import ModelRefusedError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.records import encode
from helix_agents.testing import call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import Gate, until
from tests.capabilities.test_agent_tools import bundle_of
from tests.capabilities.worlds import World

LOOK = call("state__briefing__generate", {"detail_level": "detailed"})


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


async def briefings(helix: Executor, session_id: str) -> list[tuple[list[str], list[str]]]:
    """What every briefing of a session told: keys and files that changed."""
    found: list[tuple[list[str], list[str]]] = []
    for each in reversed((await helix.sessions.messages(session_id)).items):
        if isinstance(each.message, ToolMessage) and each.message.tool_name == "state__briefing__generate":
            told: Any = each.message.content
            files = [Path(change["path"]).name for change in told["briefing"]["filesystem_changes"]]
            found.append(([change["key"] for change in told["briefing"]["state_changes"]], files))
    return found


async def test_the_window_of_a_run_begins_where_the_last_one_was_done_in_which_its_agent_acted(
    each_world: World,
) -> None:
    look, watched = reply(calls=[LOOK]), each_world.folder / "watched"
    script = [look, "Seen.", "Nothing to do.", look, ModelRefusedError("scripted", "no"), look, "Seen.", look, "Seen."]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(each_world, briefing_roots=[watched])])
    async with Executor.open(each_world.url, agents=[ann]) as helix, each_world.open("bob") as bob:
        for name in ("a", "b", "c", "d", None):
            if name is not None:
                await bob.shared.set(name, 1, expected_version=0)
                (watched / name).write_text(name)
            await (await helix.execute(ann, "go", "s-1")).result()
        runs = [run.status for run in reversed((await helix.sessions.runs("s-1")).items)]
        assert runs == ["completed", "completed", "failed", "completed", "completed"]
        assert await briefings(helix, "s-1") == [
            (["a"], ["a"]),
            (["b", "c"], ["b", "c"]),
            (["b", "c", "d"], ["b", "c", "d"]),
            ([], []),
        ]


async def test_who_waited_for_a_person_is_told_what_happened_meanwhile(each_world: World) -> None:
    look, ask = reply(calls=[LOOK]), reply(calls=[call("state__backup__create", {})])
    ann = Agent(name="ann", model=ScriptedModel([look, ask, look, "Seen."]), capabilities=[bundle_of(each_world)])
    async with Executor.open(each_world.url, agents=[ann]) as helix, each_world.open("bob") as bob:
        await bob.shared.set("before", 1, expected_version=0)
        await (await helix.execute(ann, "go", "s-1")).result()
        await bob.shared.set("meanwhile", 1, expected_version=0)
        await helix.submit_tool_result("s-1", "call_2_1", ApprovalAnswer(approved=False, reason="Not now."))
        await (await helix.resume(ann, "s-1")).result()
        assert await briefings(helix, "s-1") == [(["before"], []), (["meanwhile"], [])]


async def test_a_message_in_the_middle_of_a_turn_does_not_hide_that_its_agent_acted(each_world: World) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    look = reply(calls=[LOOK])
    model = ScriptedModel([look, call("work"), "Seen.", look, "Seen."])
    ann = Agent(name="ann", model=model, tools=[work], capabilities=[bundle_of(each_world)])
    async with Executor.open(each_world.url, agents=[ann]) as helix, each_world.open("bob") as bob:
        await bob.shared.set("before", 1, expected_version=0)
        first = await helix.execute(ann, "go", "s-1")
        await gate.until_reached()
        await helix.execute(ann, "quickly", "s-1", if_running="steer")
        gate.opened.set()
        await first.result()
        await (await helix.execute(ann, "go", "s-1")).result()
        assert await briefings(helix, "s-1") == [(["before"], []), ([], [])]


@pytest.mark.parametrize("together", [False, True])
async def test_who_takes_over_and_does_nothing_misses_nothing_of_what_happened_before(
    each_world: World, together: bool
) -> None:
    look, over = reply(calls=[LOOK]), reply(calls=[call("handoff__bob", {})])
    bob = Agent(
        name="bob",
        description="Helps.",
        model=ScriptedModel(lambda said: look if (said.session_id, said.step) == ("s-2", 1) else "Mine."),
        capabilities=[bundle_of(each_world)],
    )
    script = [reply(calls=[call("handoff__bob", {}), LOOK])] if together else [look, over]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(each_world)], handoffs=[bob])
    async with Executor.open(each_world.url, agents=[ann, bob]) as helix, each_world.open("eve") as eve:
        await eve.shared.set("before", 1, expected_version=0)
        assert await (await helix.execute(ann, "go", "s-1")).output() == "Mine."
        await (await helix.execute(bob, "go", "s-2")).result()
        assert await briefings(helix, "s-1") == [(["before"], [])]
        assert await briefings(helix, "s-2") == [(["before"], [])]


async def test_of_many_changes_the_first_are_shown_and_all_are_counted(each_world: World) -> None:
    async with each_world.open("ann") as ann, each_world.open("bob") as bob:
        for number in range(30):
            for _ in range(2):
                await bob.shared.apply(f"k{number}", lambda value: (value or 0) + 1)
                await ann.persistent.set(f"k{number}", number)
        found = (await ann.call("state.briefing.generate", detail_level="detailed"))["briefing"]
        assert found["counts"]["state_changes"] == 120
        assert "120 state entries changed" in found["summary"]
        shown = [(change["source"], change["scope"]) for change in found["state_changes"]]
        assert shown == [(f"revision:{n + 1}", ("shared", "persistent")[n % 2]) for n in range(50)]


async def test_where_no_state_may_be_kept_the_system_is_well_all_the_same(world: World) -> None:
    world.limits = Limits(persistent_bytes=0, shared_bytes=0)
    async with world.open() as state:
        health = await state.call("system.health")
        quotas = [each["detail"] for each in health["checks"] if each["name"].startswith("quota")]
        assert (health["status"], quotas) == ("ok", ["0 of 0 bytes"] * 2)


async def test_who_was_never_active_is_told_as_far_back_as_changes_are_known(each_world: World) -> None:
    day = 24 * 60 * 60 * 1000
    clock = ManualClock(20_000 * day)
    each_world.limits = Limits(event_age_ms=7 * day)
    async with each_world.open("ann", clock=clock) as ann, each_world.open("bob", clock=clock) as bob:
        await bob.shared.set("long ago", 1, expected_version=0)
        clock.advance(10 * day + 5)
        await bob.shared.set("now", 1, expected_version=0)
        first = await ann.call("state.briefing.generate", detail_level="detailed")
        assert first["briefing"]["since"] == "2024-10-07T00:00:00.000Z"
        assert first["briefing"]["window"] == {"from": 1, "to": 2}
        assert [change["key"] for change in first["briefing"]["state_changes"]] == ["now"]
        clock.advance(day // 2)
        assert await ann.call("state.briefing.generate", detail_level="detailed") == first


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


async def test_a_file_whose_name_is_no_text_is_reported_too(world: World) -> None:
    odd = os.fsencode(world.folder / "watched") + b"/odd-\xff"
    async with world.open("ann") as plain:
        state = await plain.with_session()
        await asyncio.to_thread(os.close, os.open(odd, os.O_CREAT))
        found = (await plain.call("state.briefing.generate", detail_level="detailed"))["briefing"]
        assert [change["path"].rpartition("/")[2] for change in found["filesystem_changes"]] == [r"odd-\xff"]
        assert (await state.call("session.end"))["ended"]
        again = (await plain.call("state.briefing.generate", detail_level="detailed"))["briefing"]
        assert again["filesystem_changes"] == []


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


async def test_every_run_in_the_window_is_told_with_how_it_ended(each_world: World) -> None:
    ann = Agent(name="ann", model=ScriptedModel(["one", "two"]), capabilities=[bundle_of(each_world)])
    bob = Agent(name="bob", model=ScriptedModel(["other"]))
    async with Executor.open(each_world.url, agents=[ann, bob]) as helix, each_world.open("ann") as state:
        await (await helix.execute(ann, "go", "s-1")).result()
        await (await helix.execute(ann, "again", "s-1")).result()
        await (await helix.execute(bob, "go", "s-2")).result()
        await (await helix.execute(ann, "and again", "s-1")).result()
        found = (await state.call("state.briefing.generate", detail_level="detailed"))["briefing"]
        events = found["process_events"]
        assert [(each["session_id"], each["turn"], each["status"]) for each in events] == [
            ("s-1", 1, "completed"),
            ("s-1", 2, "completed"),
            ("s-1", 3, "failed"),
        ]
        runs = [run.run_id for run in reversed((await helix.sessions.runs("s-1")).items)]
        assert [each["source"] for each in events] == [f"run:{run_id}" for run_id in runs]
        assert "3 runs changed" in found["summary"]


async def test_the_counts_of_any_history_are_those_of_a_recount(each_world: World) -> None:
    """What others keep for themselves is never counted, and no window takes from another."""
    chance = random.Random(7)
    async with each_world.open("ann") as plain, each_world.open("bob") as bob:
        for _ in range(10):
            expected = dict.fromkeys(("state_changes", "alerts", "unread_messages"), 0)
            expected["alerts"] = len((await plain.call("alerts.list"))["alerts"])
            state = await plain.with_session()
            for number in range(chance.randrange(12)):
                match chance.choice(("mine", "shared", "private", "alert", "deleted")):
                    case "mine":
                        await state.persistent.set(f"k{number}", number)
                        expected["state_changes"] += 1
                    case "shared":
                        await bob.shared.apply(f"k{number}", lambda value: (value or 0) + 1)
                        expected["state_changes"] += 1
                    case "private":
                        await bob.persistent.set(f"k{number}", "secret")
                    case "alert":
                        await state.call("alerts.send", message="help")
                        expected["alerts"] += 1
                    case _:
                        expected["state_changes"] += await state.persistent.delete(f"k{number}")
            found = (await state.call("state.briefing.generate"))["briefing"]
            assert {name: found[name] for name in expected} == expected
            await state.call("session.end")


async def test_a_snapshot_has_every_part_of_the_system_and_no_value(each_world: World) -> None:
    script = [reply(calls=[call("state__backup__create", {})])]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(each_world)])
    async with each_world.open("ann") as state:
        await state.persistent.set("mine", "secret")
        await state.shared.set("ours", "secret", expected_version=0)
        await state.call("state.shared.watch")
        await state.call("alerts.send", message="secret", severity="critical")
        for _ in range(2):
            await (await state.with_session()).session.set("mine", "secret")
        async with Executor.open(each_world.url, agents=[ann]) as helix:
            await (await helix.execute(ann, "secret", "s-1")).result()
        made = await state.call("state.snapshot.create")
        seen = (await state.call("state.snapshot.load", snapshot_id=made["snapshot_id"]))["snapshot"]
    assert seen["agents"] == {"ann": {"sessions": 1, "running": 0}}
    assert [(row["session_id"], row["run_status"]) for row in seen["sessions"]] == [("s-1", "suspended_client_tool")]
    assert seen["resources"]["runs"] == {"suspended_client_tool": 1}
    assert seen["resources"]["usage"]["tokens"] == 1
    assert [row["tool_name"] for row in seen["approvals"]] == ["state__backup__create"]
    assert [row["severity"] for row in seen["alerts"]] == ["critical"]
    assert seen["health"]["status"] == "ok"
    limits = {row["scope"]: (row["keys"], row["limit_bytes"]) for row in seen["state"]}
    assert limits == {"agent:ann": (1, 100_000_000), "session": (2, None), "shared": (1, 500_000_000)}
    assert [row["agent"] for row in seen["subscriptions"]] == ["ann"]
    assert "secret" not in json.dumps(seen)


async def test_an_alert_is_open_until_a_person_closes_it_and_the_log_says_who_did(each_world: World) -> None:
    async with each_world.open("ann") as state:
        first, second = [(await state.call("alerts.send", message=text))["alert_id"] for text in ("one", "two")]
        assert await close_alerts(state.gateway, [first, "alert_nobody_sent", first], by="ada") == [first]
        assert [alert["alert_id"] for alert in (await state.call("alerts.list"))["alerts"]] == [second]
        assert (await state.call("state.briefing.generate"))["briefing"]["alerts"] == 1
        assert await close_alerts(state.gateway, [first], by="bob") == []
        lines = [json.loads(row.entry) for row in await state.gateway.store.list_audit()]
        assert [(line["agent"], line["alerts"]) for line in lines if line["status"] == "closed"] == [("ada", [first])]


async def test_of_alerts_that_nobody_closes_the_newest_of_each_agent_stay_and_none_is_refused(world: World) -> None:
    world.limits, clock = Limits(alerts=2, keys=2), ManualClock(1_800_000_000_000)
    async with world.open("ann", clock=clock) as ann, world.open("bob", clock=clock) as bob:
        await bob.call("alerts.send", message="quiet")
        for number in range(5):
            clock.advance(1)
            await ann.call("alerts.send", message=str(number))
        assert (await sweep_state(ann.gateway))["alerts_dropped"] == 3
        assert [alert["message"] for alert in (await ann.call("alerts.list"))["alerts"]] == ["4", "3"]
        assert [alert["message"] for alert in (await bob.call("alerts.list"))["alerts"]] == ["quiet"]
        assert (await sweep_state(ann.gateway))["alerts_dropped"] == 0


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


async def test_several_snapshots_that_are_too_many_go_with_their_files_and_one_notice_is_left(world: World) -> None:
    async with world.open() as state:
        for _ in range(4):
            await state.call("state.snapshot.create")
        world.limits = Limits(snapshots=2)
    async with world.open() as state:
        before = await state.gateway.store.usage(OUTBOX)
        await state.gateway.call(state.caller, "state.snapshot.create", {}, once="the fifth")
        listed = (await state.call("state.snapshot.list"))["snapshots"]
        assert [each.get("missing", False) for each in listed] == [False, False]
        assert len(world.files("snapshots")) == 2
        assert (await state.gateway.store.usage(OUTBOX)).keys == before.keys + 1


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes notices; refuses the first one it is sent, or more."""

    received: list[dict[str, Any]] = []
    refuses = 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if Receiver.refuses:
            Receiver.refuses -= 1
            self.send_error(503)
            return
        Receiver.received.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Moved(Receiver):
    """Sends everybody on, and is polite to whoever comes there."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(302)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


@contextlib.contextmanager
def served(handler: type[Receiver]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def webhook() -> Iterator[str]:
    Receiver.received, Receiver.refuses = [], 1
    with served(Receiver) as address:
        yield address


@pytest.fixture
def moved_webhook() -> Iterator[str]:
    with served(Moved) as address:
        yield address


async def test_a_notice_reaches_every_webhook_at_least_once(
    world: World, webhook: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "helix_agents")
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        await state.shared.set("a", "secret", expected_version=0)
        await state.shared.set("b", "secret", expected_version=0)
        assert await deliver_notices(state.gateway) == 1
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        assert await deliver_notices(state.gateway) == 1
        assert await deliver_notices(state.gateway) == 0
    assert sorted(notice["inputs"]["key"] for notice in Receiver.received) == ["a", "b"]
    assert all(f"state.notification id='{notice['id']}'" in caplog.text for notice in Receiver.received)
    assert "secret" not in json.dumps(Receiver.received)


async def test_who_knows_no_address_leaves_notices_for_one_to_those_who_do(world: World, webhook: str) -> None:
    Receiver.refuses = 0
    async with world.open() as state:
        await state.shared.set("only logged", 1, expected_version=0)
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        await state.shared.set("told", 1, expected_version=0)
    async with world.open() as sweeping:
        assert (await sweep_state(sweeping.gateway))["notices_delivered"] == 1
    async with world.open(settings={"webhooks": (webhook,)}) as state:
        assert await deliver_notices(state.gateway) == 1
    assert [notice["inputs"]["key"] for notice in Receiver.received] == ["told"]


async def test_an_address_that_talks_nonsense_is_tried_once_a_round_and_holds_up_no_other(
    world: World, webhook: str
) -> None:
    Receiver.refuses = 0
    met: list[bytes] = []
    nonsense = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                other, _ = nonsense.accept()
                met.append(other.recv(65_536))
                other.sendall(b"nonsense\r\n\r\n")
                other.close()

    threading.Thread(target=talk, daemon=True).start()
    addresses = (f"http://127.0.0.1:{nonsense.getsockname()[1]}/", "http://127.0.0.1:9/", webhook)
    async with world.open(settings={"webhooks": addresses}) as state:
        for key in ("a", "b"):
            await state.shared.set(key, 1, expected_version=0)
        assert await deliver_notices(state.gateway) == 0
    nonsense.close()
    assert len(met) == 1
    # Notices of the same millisecond have no order.
    assert sorted(notice["inputs"]["key"] for notice in Receiver.received) == ["a", "b"]


async def test_notices_that_nobody_takes_are_put_off_and_hold_up_no_later_ones(world: World, webhook: str) -> None:
    clock = ManualClock(1_000_000)
    Receiver.refuses = 3
    async with world.open(settings={"webhooks": (webhook,)}, clock=clock) as state:
        for key in "abcde":
            await state.shared.set(key, 1, expected_version=0)
            clock.advance(1)
        assert await deliver_notices(state.gateway, limit=3) == 0
        assert await deliver_notices(state.gateway, limit=3) == 2
        clock.advance(PUT_OFF_MS)
        assert await deliver_notices(state.gateway, limit=3) == 3
    assert [notice["inputs"]["key"] for notice in Receiver.received] == ["d", "e", "a", "b", "c"]


async def test_an_address_that_has_moved_has_not_taken_a_notice(world: World, moved_webhook: str) -> None:
    async with world.open(settings={"webhooks": (moved_webhook,)}) as state:
        await state.shared.set("a", 1, expected_version=0)
        assert await deliver_notices(state.gateway) == 0
        assert (await state.gateway.store.usage(OUTBOX)).keys == 1


async def test_what_is_remembered_too_long_is_forgotten_however_much_there_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helix_agents.capabilities.paging.MOST_LISTED", 3)
    clock = ManualClock(1_000_000)
    async with world.open(clock=clock) as state:
        store = state.gateway.store
        for number, name in enumerate("abcdefghij"):
            if number == 5:
                clock.advance(world.limits.remembered_ms + 1)
            # The younger ones come first in the order of their keys.
            put = Put(scope=JOURNAL, key=f"{number < 5}-{name}", value="1")
            await store.transact(EntryTransaction(changes=(put,), owner="ann"))
        assert (await sweep_state(state.gateway))["answers_forgotten"] == 5
        assert (await store.usage(JOURNAL)).keys == 5


async def test_what_is_remembered_is_gone_through_once_an_hour_and_not_in_every_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_800_000_000_000)
    async with world.open(clock=clock) as state:
        store = state.gateway.store
        list_entries = store.list_entries
        looked: list[str] = []

        async def look(scope: str, **options: Any) -> EntryPage:
            looked.append(scope)
            return await list_entries(scope, **options)

        monkeypatch.setattr(store, "list_entries", look)
        for minutes, looks in ((0, 1), (1, 1), (58, 1), (1, 2), (-120, 3)):
            clock.advance(minutes * 60_000)
            await sweep_state(state.gateway)
            assert looked.count(JOURNAL) == looks


async def test_who_may_not_know_the_limits_lets_go_of_nothing_while_an_executor_looks_after_it(world: World) -> None:
    clock = ManualClock(1_800_000_000_000)
    strict, generous = Limits(alerts=1, events=1, remembered_ms=1), Limits()

    async with world.open(clock=clock, settings={"limits": strict}) as state:
        store = state.gateway.store
        executor = StateCapabilities(world.settings(limits=generous))

        async def kept() -> tuple[int, int, int]:
            for scope in (JOURNAL, ALERTS):
                put = Put(scope=scope, key=f"{clock.now_ms()}", value="{}")
                await store.transact(EntryTransaction(changes=(put,), owner="ann"))
            await state.shared.apply("k", lambda value: (value or 0) + 1)
            clock.advance(10)
            done = await sweep_as_guest(state.gateway)
            assert done["notices_delivered"] == 1
            counts = [(await store.usage(scope)).keys for scope in (JOURNAL, ALERTS)]
            return counts[0], counts[1], len((await store.list_events(0)).events)

        await executor.sweep(store, nobody_is_over)
        assert await kept() == (1, 1, 1)
        clock.advance(housekeeping.GONE_AFTER_MS // 2)
        await executor.sweep(store, nobody_is_over)
        clock.advance(housekeeping.GONE_AFTER_MS - 1_000)
        assert await kept() == (2, 2, 2)
        # A week after the last executor, somebody has to.
        clock.advance(2_000)
        assert await kept() == (0, 1, 1)


async def nobody_is_over(_: SessionId) -> bool:
    return False


async def test_a_request_that_nobody_decided_in_time_waits_no_more(world: World) -> None:
    clock = ManualClock(1_800_000_000_000)
    async with world.open(clock=clock) as state:
        await state.persistent.set("k", 1)
        with pytest.raises(ApprovalPending):
            await state.call("state.backup.create")
        told = await state.call("state.briefing.generate")
        assert told["briefing"]["pending_approvals"] == 1
        clock.advance(world.limits.approval_hold_ms)
        # Who asks again is not sent to one that nobody can decide any more.
        with pytest.raises(ApprovalPending) as again:
            await state.call("state.backup.create")
        await decide_approval(state.gateway, again.value.context["approval_id"], approved=False, by="ada")
        assert (await sweep_state(state.gateway))["approvals_expired"] == 1
        told = await state.call("state.briefing.generate")
        assert told["briefing"]["pending_approvals"] == 0
        asked = (await state.call("approvals.list"))["approvals"]
        assert [each["status"] for each in asked] == ["rejected", "expired"]
        assert (await sweep_state(state.gateway))["approvals_expired"] == 0


async def test_who_asks_looks_at_open_requests_alone_and_decided_ones_go_in_time(each_world: World) -> None:
    clock = ManualClock(1_800_000_000_000)
    async with each_world.open(clock=clock) as state:
        store = state.gateway.store
        asked: list[str] = []
        for approved in (True, False, None):
            with pytest.raises(ApprovalPending) as pending:
                await state.call("state.backup.create")
            asked.append(pending.value.context["approval_id"])
            if approved is not None:
                await decide_approval(state.gateway, asked[-1], approved=approved, by="ada", reason="so")
            clock.advance(1)
        assert [entry.key async for entry in every_entry(store, APPROVALS)] == asked[2:]
        shown = (await state.call("approvals.list"))["approvals"]
        assert [(each["approval_id"], each["status"]) for each in shown] == list(
            zip(reversed(asked), ("pending", "rejected", "executed"), strict=True)
        )
        [one] = (await state.call("approvals.list", approval_id=asked[0]))["approvals"]
        assert one["status"] == "executed"
        with pytest.raises(InvalidInput, match="decided already"):
            await decide_approval(state.gateway, asked[0], approved=True, by="ada")
        clock.advance(each_world.limits.remembered_ms)
        await sweep_state(state.gateway)
        # The one that nobody decided was over just now.
        assert [each["approval_id"] for each in (await state.call("approvals.list"))["approvals"]] == asked[2:]
        decided = [row.entry for row in await store.list_audit() if "rejected" in row.entry]
        assert len(decided) == 1


async def test_requests_that_an_older_version_left_among_the_open_ones_are_put_away(world: World) -> None:
    async with world.open() as state:
        old = ApprovalRow(
            digest="d",
            agent="ann",
            face="mcp",
            capability="state.backup.create",
            inputs={},
            status="executed",
            requested_at="",
            expires_at=0,
            result={"backup_id": "b"},
        )
        put = Put(scope=APPROVALS, key="approval-1", value=encode(old).decode())
        await state.gateway.store.transact(EntryTransaction(changes=(put,), owner="ann"))
        await sweep_state(state.gateway)
        assert (await state.gateway.store.usage(APPROVALS)).keys == 0
        [shown] = (await state.call("approvals.list", approval_id="approval-1"))["approvals"]
        assert shown["result"] == {"backup_id": "b"}


async def test_the_janitor_delivers_notices_of_agents(world: World, webhook: str) -> None:
    Receiver.refuses = 0
    script = [reply(calls=[call("state__shared__set", {"key": "c", "value": 1, "expected_version": 0})]), "done"]
    ann = Agent(name="ann", model=ScriptedModel(script), capabilities=[bundle_of(world, webhooks=[webhook])])
    async with Executor.open(world.url, agents=[ann], janitor_seconds=None) as executor:
        await (await executor.execute(ann, "go", "s-1")).result()
        await executor.sweep()
    assert [notice["agent"] for notice in Receiver.received] == ["ann"]


class Slow(Receiver):
    """Takes a notice, and leaves whoever sent it without an answer, or without the whole of it."""

    taken = threading.Event()
    goes_on = threading.Event()
    begins = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if Slow.begins:
            self.send_response(200)
            self.send_header("content-length", "10")
            self.end_headers()
            self.wfile.flush()
        Slow.taken.set()
        Slow.goes_on.wait(60)


@pytest.fixture
def slow() -> Iterator[str]:
    Slow.taken.clear()
    Slow.goes_on.clear()
    with served(Slow) as address:
        yield address
        Slow.goes_on.set()


async def test_the_status_of_an_answer_counts_even_if_the_rest_of_it_never_comes(world: World, slow: str) -> None:
    Slow.begins = True
    async with world.open(settings={"webhooks": (slow,)}) as state:
        await state.shared.set("a", 1, expected_version=0)
        assert await deliver_notices(state.gateway) == 1


async def test_an_address_that_does_not_answer_holds_up_no_round_of_the_janitor(
    world: World, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helix_agents.capabilities.notifying.TIMEOUT_SECONDS", 60.0)
    Slow.begins = False
    writes = call("state__shared__set", {"key": "c", "value": 1, "expected_version": 0})
    ann = Agent(
        name="ann",
        model=ScriptedModel([reply(calls=[writes]), reply(calls=[call("ask_human", {"question": "Which?"})])]),
        capabilities=[bundle_of(world, webhooks=[slow])],
        tools=[ask_human(deadline=0.05)],
    )
    async with asyncio.timeout(20), Executor.open(world.url, agents=[ann], janitor_seconds=0.01) as executor:
        await (await executor.execute(ann, "go", "s-1")).result()
        assert await asyncio.to_thread(Slow.taken.wait, 20)
        await (await executor.execute(ann, "go", "s-2")).result()
        late = PendingFilter(session_id="s-2", states=("expired", "consumed", "dropped"))

        async def is_late() -> bool:
            return (await executor.list_pending(late)).total > 0

        await until(is_late)
        Slow.goes_on.set()


async def test_a_session_ends_when_it_is_not_used_and_leaves_nothing(each_world: World) -> None:
    each_world.limits = Limits(session_idle_ms=1_000)
    async with each_world.open() as plain:
        state = await plain.with_session()
        await state.session.set("gone", "secret")
        await state.session.clear()
        await state.session.set("k", "secret")
        store = plain.gateway.store
        later = store.now_ms() + 5_000
        store.now_ms = lambda: later
        with pytest.raises(SessionNotFound):
            await state.session.get("k")
        assert (await sweep_state(plain.gateway))["sessions_ended"] == 1
        async with store.dump([f"session:{state.caller.session_id}"]) as dump:
            assert [row async for rows in dump.rows() for row in rows] == []


async def test_a_session_that_is_only_read_lives_on(world: World) -> None:
    clock = ManualClock(1_800_000_000_000)
    async with world.open(clock=clock) as plain:
        state = await plain.with_session()
        await state.session.set("k", 1)
        for read in (lambda: state.session.get("k"), state.session.keys) * 3:
            clock.advance(world.limits.session_idle_ms * 3 // 4)
            assert (await sweep_state(plain.gateway))["sessions_ended"] == 0
            assert await read()


async def test_nobody_ends_the_session_of_another_agent(world: World) -> None:
    async with world.open("ann") as ann, world.open("bob") as bob:
        mine = await ann.with_session()
        await mine.session.set("k", 1)
        assert await bob.in_session(str(mine.caller.session_id)).call("session.end") == {"ended": False}
        assert await mine.session.get("k") == 1


async def test_a_session_that_ends_takes_no_other_ones_subscriptions_along(world: World) -> None:
    async with world.open() as plain:
        one, other = await plain.with_session(), await plain.with_session()
        for session in (one, other):
            await session.call("state.shared.watch", prefix="k")
        await one.call("session.end")
        [left] = await subscriptions_of(plain.gateway.store, "ann")
        assert left[1].session_id == other.caller.session_id


async def test_a_session_that_is_ended_meanwhile_is_not_brought_back_by_a_write(
    each_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with each_world.open() as plain, each_world.open() as elsewhere:
        session = await plain.with_session()
        session_id = str(session.caller.session_id)
        store = plain.gateway.store
        transact = store.transact

        async def late(request: EntryTransaction) -> Transacted:
            await elsewhere.in_session(session_id).call("session.end")
            return await transact(request)

        monkeypatch.setattr(store, "transact", late)
        with pytest.raises(SessionNotFound):
            await session.session.set("k", 1)
        monkeypatch.undo()
        for scope in (SESSIONS, session_scope(session_id)):
            assert (await store.usage(scope)).keys == 0


async def test_a_session_has_no_more_keys_than_it_may(each_world: World) -> None:
    each_world.limits = Limits(keys=2)
    async with each_world.open() as plain:
        state = await plain.with_session()
        for key in ("a", "b", "a"):
            await state.session.set(key, 1)
        with pytest.raises(QuotaExceeded, match="no more than 2"):
            await state.session.set("c", 1)
        assert await state.session.keys() == ["a", "b"]


async def test_a_session_that_is_used_while_idle_ones_are_ended_lives_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.limits = Limits(session_idle_ms=1_000)
    clock = ManualClock(1_800_000_000_000)
    async with world.open(clock=clock) as plain:
        store = plain.gateway.store
        used, idle = await plain.with_session(), await plain.with_session()
        reading = store.list_entries

        async def read_and_linger(scope: str, **options: Any) -> EntryPage:
            page = await reading(scope, **options)
            if scope == SESSIONS:
                # Ending many sessions takes a while: one of this page is used before it comes to its turn.
                clock.advance(900)
                await used.session.set("k", 1)
                clock.advance(200)
            return page

        monkeypatch.setattr(store, "list_entries", read_and_linger)
        assert (await sweep_state(plain.gateway))["sessions_ended"] == 1
        assert await used.session.get("k") == 1
        with pytest.raises(SessionNotFound):
            await idle.session.get("k")


async def test_many_calls_on_one_connection_all_get_their_answers(each_world: World) -> None:
    async with each_world.open() as state:
        answers = await asyncio.gather(*(state.persistent.set(f"k{number}", number) for number in range(100)))
        assert answers == [1] * 100
        assert (await state.persistent.list())["count"] == 100
        await state.gateway.flush()
        assert len(await state.gateway.store.list_audit(limit=1_000)) == 101

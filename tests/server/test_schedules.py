"""Schedules over HTTP: their user sets, reads and stops them, and nobody is spoken for by somebody else."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest

from helix_agents import AgentServer, Executor
from helix_agents.runtimes.executor.turns import Turns, WantedTurn
from helix_agents.server.auth import bearer_tokens
from helix_agents.server.limits import ServerLimits
from tests.server.agents import agents
from tests.server.live import ANN, BEN, OPS, PATIENCE, TOKENS, LiveServer, agent_server, bearer, wait_until
from tests.server.test_executor_routes import settled, start

HOURLY: dict[str, Any] = {"agentType": "director", "message": "hello", "everyMs": 3_600_000}
LONG_AGO = 1_000_000_000_000
THEN = "20010909T014640Z"


def put(client: httpx2.Client, name: str, **body: Any) -> httpx2.Response:
    return client.put(f"/schedules/{name}", json=body or HOURLY)


def last_of(client: httpx2.Client, name: str) -> dict[str, Any]:
    """What happened the last time it was due, as soon as it was."""
    return wait_until(lambda: client.get(f"/schedules/{name}").json().get("last"))


def said_in(client: httpx2.Client, session_id: str) -> list[str]:
    items = client.get(f"/sessions/{session_id}/messages").json()["items"]
    return [each["message"]["content"] for each in items if each["message"]["role"] == "user"]


def test_a_schedule_is_set_read_paused_and_deleted_by_its_user(ann: httpx2.Client) -> None:
    before = time.time() * 1000
    made = put(ann, "round%2Ftrip", **HOURLY, tags=["t"], metadata={"k": "v"}, ifBusy="skip").json()
    assert made["scheduleId"] == "round/trip"
    assert (made["userId"], made["agentType"], made["everyMs"]) == ("ann", "director", 3_600_000)
    assert (made["tags"], made["metadata"], made["ifBusy"], made["times"]) == (["t"], {"k": "v"}, "skip", 0)
    assert [message["content"] for message in made["messages"]] == ["hello"]
    assert made["nextAt"] >= before + 3_600_000 - 1
    # The same again changes nothing, not even its next time; a new text keeps that, too.
    assert put(ann, "round%2Ftrip", **HOURLY, tags=["t"], metadata={"k": "v"}, ifBusy="skip").json() == made
    changed = put(ann, "round%2Ftrip", **{**HOURLY, "message": "search"}).json()
    assert (changed["messages"][0]["content"], changed["nextAt"], changed["tags"]) == ("search", made["nextAt"], [])
    paused = ann.post("/schedules/round%2Ftrip/pause", json={}).json()
    assert (paused["paused"], "nextAt" in paused) == (True, False)
    assert ann.get("/schedules/round%2Ftrip").json() == paused
    resumed = ann.post("/schedules/round%2Ftrip/resume", json={}).json()
    assert (resumed["paused"], resumed["nextAt"] >= made["nextAt"]) == (False, True)
    assert ann.delete("/schedules/round%2Ftrip").status_code == 204
    for answer in (ann.get("/schedules/round%2Ftrip"), ann.delete("/schedules/round%2Ftrip")):
        assert (answer.status_code, answer.json()["code"]) == (404, "schedule_not_found")


def test_a_turn_that_is_due_is_its_users_own(ann: httpx2.Client, ben: httpx2.Client) -> None:
    put(ann, "due", agentType="director", message="hello", at=LONG_AGO)
    last = last_of(ann, "due")
    assert last["sessionId"] == f"due.{THEN}"
    assert settled(ann, last["sessionId"])["status"] == "completed"
    assert said_in(ann, last["sessionId"]) == ["hello"]
    assert ben.get(f"/sessions/{last['sessionId']}").status_code == 404
    over = ann.get("/schedules/due").json()
    assert (over["times"], "nextAt" in over) == (1, False)


def test_by_the_calendar(ann: httpx2.Client) -> None:
    made = put(ann, "cal", agentType="director", message="x", cron="0 7 * * 1-5", timezone="Europe/Berlin").json()
    assert (made["cron"], made["timezone"], made["nextAt"] > time.time() * 1000) == (
        "0 7 * * 1-5",
        "Europe/Berlin",
        True,
    )
    ann.delete("/schedules/cal")


def test_nobody_else_reads_changes_or_stops_a_schedule(server: LiveServer, ann: httpx2.Client) -> None:
    made = put(ann, "anns")
    assert made.status_code == 200
    for token in (BEN, OPS):
        with server.client(token) as other:
            for answer in (
                other.get("/schedules/anns"),
                other.delete("/schedules/anns"),
                other.post("/schedules/anns/pause", json={}),
                other.post("/schedules/anns/resume", json={}),
            ):
                assert (answer.status_code, answer.json()["code"]) == (404, "schedule_not_found")
            taken = put(other, "anns")
            assert (taken.status_code, taken.json()["code"]) == (403, "not_the_owner")
    assert ann.get("/schedules/anns").json() == made.json()
    ann.delete("/schedules/anns")


def test_users_list_their_own_and_an_operator_lists_all_without_what_they_say(server: LiveServer) -> None:
    with server.client(ANN) as ann, server.client(BEN) as ben, server.client(OPS) as ops:
        for client, name in ((ann, "l-1"), (ben, "l-2"), (ann, "l-3")):
            put(client, name)

        def listed(client: httpx2.Client, **asked: Any) -> list[str]:
            items = client.get("/schedules", params={"limit": 200, **asked}).json()["items"]
            assert not any("messages" in each or "metadata" in each for each in items)
            return [each["scheduleId"] for each in items if each["scheduleId"].startswith("l-")]

        assert (listed(ann), listed(ben), listed(ops)) == (["l-1", "l-3"], ["l-2"], ["l-1", "l-2", "l-3"])
        assert (listed(ops, userId="ben"), listed(ann, userId="ann")) == (["l-2"], ["l-1", "l-3"])
        assert ann.get("/schedules", params={"userId": "ben"}).json()["code"] == "forbidden"
        page = ann.get("/schedules", params={"limit": 1, "offset": 1}).json()
        assert (len(page["items"]), page["offset"], page["limit"]) == (1, 1, 1)
        for client, name in ((ann, "l-1"), (ben, "l-2"), (ann, "l-3")):
            client.delete(f"/schedules/{name}")


def test_a_schedule_says_nothing_in_somebody_elses_session(ann: httpx2.Client, ben: httpx2.Client) -> None:
    start(ben, "bens own", "hello")
    settled(ben, "bens own")
    refused = put(ann, "spy", **HOURLY, sessionId="bens own")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    # Ben takes the id that the schedule's next session is going to have.
    start(ben, f"guessed.{THEN}", "hello")
    settled(ben, f"guessed.{THEN}")
    put(ann, "guessed", agentType="director", message="my secret", at=LONG_AGO)
    last = last_of(ann, "guessed")
    assert "does not belong to user 'ann'" in last["error"]
    assert "runId" not in last
    assert said_in(ben, f"guessed.{THEN}") == ["hello"]


@asynccontextmanager
async def beside_a_program(**settings: Any) -> AsyncIterator[tuple[Executor, httpx.AsyncClient]]:
    settings.setdefault("authenticate", bearer_tokens(TOKENS))
    async with Executor.open("memory://", agents=agents, janitor_seconds=None) as helix:
        server = AgentServer(helix, sweep_on_start=False, **settings)
        transport = httpx.ASGITransport(server)
        async with (
            asyncio.timeout(PATIENCE),
            server.lifespan(),
            httpx.AsyncClient(transport=transport, base_url="http://here", headers=bearer(ANN)) as http,
        ):
            yield helix, http


async def test_a_session_that_is_taken_before_the_turn_is_due_is_left_alone_whoever_is_busy_in_it() -> None:
    async with beside_a_program() as (helix, http):
        director = helix.agents.get("director")
        body = {"agentType": "director", "message": "my secret", "sessionId": "later", "at": LONG_AGO}
        assert (await http.put("/schedules/s", json=body)).status_code == 200
        # A call waits in it, so that a turn that is due would be queued.
        await (await helix.execute(director, "publish", "later", user_id="ben")).result()
        await helix.sweep()
        last = (await http.get("/schedules/s")).json()["last"]
        assert "does not belong" in last["error"]
        assert await helix.sessions.queued("later") == ()
        # Nor is a turn taken for the schedule's that somebody else began with its key.
        await (
            await helix.execute(
                director, "x", "k.20010909T014640Z", user_id="ben", idempotency_key=f"schedule:k:{LONG_AGO}"
            )
        ).result()
        assert (await http.put("/schedules/k", json={**HOURLY, "everyMs": None, "at": LONG_AGO})).status_code == 200
        await helix.sweep()
        assert "runId" not in (await http.get("/schedules/k")).json()["last"]


@pytest.mark.parametrize("order", ["hello", "publish"])
async def test_a_session_that_is_taken_between_a_look_and_the_start_is_left_alone(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free, and waiting for somebody, so that the turn would be queued."""
    async with beside_a_program() as (helix, http):
        looked = Turns._check_user  # pyright: ignore[reportPrivateUsage]

        async def look_and_lose(turns: Turns, wanted: WantedTurn) -> None:
            await looked(turns, wanted)
            if wanted.new.only_own:
                await (await helix.execute(helix.agents.get("director"), order, "mine", user_id="ben")).result()

        monkeypatch.setattr(Turns, "_check_user", look_and_lose)
        await http.put("/schedules/s", json={**HOURLY, "everyMs": None, "at": LONG_AGO, "sessionId": "mine"})
        await helix.sweep()
        assert "does not belong" in (await http.get("/schedules/s")).json()["last"]["error"]
        assert (await helix.sessions.queued("mine"), (await helix.sessions.runs("mine")).total) == ((), 1)


async def test_a_schedule_of_a_program_is_nobodys_unless_it_names_its_user() -> None:
    async with beside_a_program() as (helix, http):
        await helix.schedules.set("ours", "director", "hello", every=3600)
        await helix.schedules.set("hers", "director", "hello", every=3600, user_id="ann")
        assert [each["scheduleId"] for each in (await http.get("/schedules")).json()["items"]] == ["hers"]
        assert (await http.get("/schedules/ours")).status_code == 404
        assert (await http.put("/schedules/ours", json=HOURLY)).json()["code"] == "not_the_owner"
        assert (await http.post("/schedules/hers/pause", json={})).json()["paused"] is True
        everybody = await http.get("/schedules", headers=bearer(OPS))
        assert [each["scheduleId"] for each in everybody.json()["items"]] == ["hers", "ours"]


async def test_on_a_server_that_is_open_to_everybody_schedules_are_everybodys() -> None:
    async with beside_a_program(authenticate=None, allow_unauthenticated=True) as (helix, http):
        await helix.schedules.set("ours", "director", "hello", every=3600, user_id="ann")
        await http.put("/schedules/mine", json=HOURLY)
        assert [each["scheduleId"] for each in (await http.get("/schedules")).json()["items"]] == ["mine", "ours"]
        assert (await http.post("/schedules/ours/pause", json={})).json()["paused"] is True


async def test_a_deletion_never_meets_the_schedule_of_another_user_that_took_the_id() -> None:
    async with beside_a_program() as (helix, _):
        anns = helix.schedules.of_user("ann")
        await anns.set("s", "director", "hello", every=3600)
        find = anns.find

        async def find_and_lose(schedule_id: str) -> Any:
            found = await find(schedule_id)
            if found is not None:
                await helix.schedules.delete("s")
                await helix.schedules.of_user("ben").set("s", "director", "bens", every=3600)
            return found

        anns.find = find_and_lose
        assert await anns.delete("s") is False
        kept = await helix.schedules.find("s")
        assert kept is not None
        assert kept.user_id == "ben"


def test_a_user_has_only_so_many_schedules() -> None:
    limited = agent_server(limits=ServerLimits(schedules_per_user=2))
    with LiveServer(limited) as live, live.client(ANN) as ann, live.client(BEN) as ben:
        assert [put(ann, name).status_code for name in ("a", "b", "c")] == [200, 200, 409]
        assert put(ann, "c").json()["code"] == "too_many_schedules"
        assert put(ann, "a", **{**HOURLY, "message": "search"}).status_code == 200
        assert put(ben, "d").status_code == 200
        ann.delete("/schedules/a")
        assert put(ann, "c").status_code == 200
    with LiveServer(agent_server(limits=ServerLimits(schedules_per_user=0))) as live, live.client() as ann:
        assert (put(ann, "a").status_code, put(ann, "a").json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        ({"agentType": "helper"}, 404, "no agent"),
        ({"message": " "}, 400, "empty"),
        ({"everyMs": 59_999}, 400, "60000"),
        ({"everyMs": None}, 400, "does not say when"),
        ({"cron": "0 7 * * *"}, 400, "both"),
        ({"everyMs": None, "cron": "* * * * * *"}, 400, "Expected five fields such as `0 7 * * 1-5` - at `$.cron`"),
        ({"everyMs": None, "cron": "61 7 * * *"}, 400, "not a cron expression"),
        ({"everyMs": None, "cron": "² 7 * * *"}, 400, "cron"),
        ({"everyMs": None, "cron": "0 7 * * *", "timezone": "Mars/Base"}, 400, "no timezone"),
        ({"timezone": "Europe/Berlin"}, 400, "goes with a cron"),
        ({"at": 10**17}, 400, "at"),
        ({"sessionId": ".."}, 400, "session id"),
        ({"metadata": {"helix.trace": "x"}}, 400, "reserved"),
        ({"ifBusy": "wait"}, 400, "ifBusy"),
        ({"userId": "ben"}, 400, "userId"),
        ({"budget": {"tokens": 1}}, 400, "budget"),
    ],
)  # fmt: skip
def test_what_cannot_be_scheduled_is_refused_with_a_reason(
    ann: httpx2.Client, change: dict[str, Any], status: int, told: str
) -> None:
    refused = put(ann, "wrong", **{**HOURLY, **change})
    assert (refused.status_code, told in refused.json()["detail"]) == (status, True), refused.json()
    assert ann.get("/schedules/wrong").status_code == 404


def test_a_page_of_another_site_pauses_nothing(ann: httpx2.Client) -> None:
    put(ann, "guarded")
    for how in ("pause", "resume"):
        assert ann.post(f"/schedules/guarded/{how}").status_code == 415
    assert ann.get("/schedules/guarded").json()["paused"] is False
    ann.delete("/schedules/guarded")


def test_an_id_that_would_leave_no_room_for_the_time_is_refused(ann: httpx2.Client) -> None:
    refused = put(ann, "x" * 201)
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")

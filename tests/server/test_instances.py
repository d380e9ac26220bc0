"""Several instances on one store: begun here, read there, answered there; one dies, another goes on, nothing twice."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.live import Instance, wait_until
from tests.server.page import Page, events
from tests.server.test_executor_routes import chunks, settled, start, status

Begin = Callable[..., Instance]


@pytest.fixture(params=["postgres", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes share."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path / 'helix.db'}"


@pytest.fixture
def shut(tmp_path: Path) -> Path:
    """While this file exists, models hold their tongues."""
    return tmp_path / "shut"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """One line for each time the tool that publishes really ran."""
    return tmp_path / "journal"


@pytest.fixture
def begin(store: str, shut: Path, journal: Path) -> Iterator[Begin]:
    begun: list[Instance] = []

    def one_more(*arguments: str) -> Instance:
        environment = {"HELIX_TEST_GATE": str(shut), "HELIX_TEST_JOURNAL": str(journal)}
        begun.append(Instance(store, environment=environment, arguments=arguments))
        return begun[-1]

    yield one_more
    for instance in begun:
        instance.__exit__()


def published(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def read_first(client: httpx2.Client, session_id: str) -> tuple[Any, Iterator[dict[str, Any]]]:
    opened = client.stream("GET", "/sse", params={"sessionId": session_id})
    response = opened.__enter__()
    return opened, events(response.iter_lines())


def test_begun_on_one_instance_read_and_approved_on_another(begin: Begin, journal: Path) -> None:
    a, b = begin(), begin("--console")
    with a.client() as on_a, b.client() as on_b:
        assert [each.get("/console").status_code for each in (on_a, on_b)] == [404, 200]
        start(on_a, "s", "publish")
        assert chunks(on_b, "s")[-1]["data"]["status"] == "suspended_client_tool"
        page = Page(on_b, "s", on_b.get("/sessions/s/snapshot").json()["messages"])
        page.decide("publish", True).post()
        assert page.text.endswith("published r-1.")
        assert chunks(on_a, "s") == chunks(on_b, "s")
        assert status(on_a, "s") == status(on_b, "s")
    assert published(journal) == ["r-1"]


def test_an_instance_that_is_killed_is_replaced_and_readers_miss_and_repeat_nothing(
    begin: Begin, shut: Path, journal: Path
) -> None:
    a, b = begin("--lease", "1"), begin("--lease", "1", "--janitor", "0.2")
    with a.client() as on_a, b.client() as on_b:
        # A: asked for approval, answered on B, which goes on; then a second turn begins on A and A dies in it.
        page = Page(on_a, "s").say("publish")
        Page(on_b, "s", page.messages).decide("publish", True).post()
        shut.touch()
        start_turn = {"id": "m-2", "role": "user", "parts": [{"type": "text", "text": "search"}]}
        opened = on_a.stream("POST", "/chat", json={"id": "s", "message": start_turn})
        opened.__enter__()
        wait_until(lambda: status(on_b, "s")["runStatus"] == "running")
        before = status(on_b, "s")
        cursor = on_b.get("/sessions/s/snapshot").json()["streamSequence"]
        with b.client() as reader:
            opened_b, reading = read_first(reader, "s")
            first = [next(reading) for _ in range(min(cursor, 3))]
            a.kill()
            shut.unlink()
            rest = list(reading)
            opened_b.__exit__(None, None, None)
        now = settled(on_b, "s")
        assert (now["status"], now["turn"]) == ("completed", 3)
        assert now["runId"] == before["runId"]
        assert now["attempt"] > before["attempt"]
        assert [*first, *rest] == chunks(on_b, "s")
        ids = [int(event["id"]) for event in [*first, *rest] if "event" not in event]
        assert ids == sorted(set(ids))
        shown = on_b.get("/sessions/s/snapshot").json()["messages"]
        assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
        assert shown[-1]["parts"][-1]["text"].startswith("I was told: ['page 1 about tides'")
    assert published(journal) == ["r-1"]


def begun_behind(shut: Path, client: httpx2.Client) -> Page:
    """A page that has asked and been told nothing yet, and that does not listen any more."""
    shut.touch()
    page = Page(client, "s", [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]}])
    with page.posting() as parts:
        page.read(iter([next(parts)]))
    return page


def test_an_answer_that_ended_meanwhile_is_sent_by_another_instance_to_a_page_that_missed_it(
    begin: Begin, shut: Path
) -> None:
    a, b = begin(), begin()
    with a.client() as on_a, b.client() as on_b:
        page = begun_behind(shut, on_a)
        stored = page.snapshot()
        assert stored["active"]
        shut.unlink()
        settled(on_a, "s")
        again = Page(on_b, "s", stored["messages"])
        assert again.reconnect() == 200
        assert again.messages == again.snapshot()["messages"]
        assert again.text.endswith("And so on. ")
        # Loaded anew there, it shows all there is.
        assert again.reconnect() == 204


def test_a_page_whose_instance_was_killed_gets_the_end_from_another(begin: Begin, shut: Path) -> None:
    a, b, c = begin(), begin(), begin()
    with a.client() as on_a, b.client() as on_b, c.client() as on_c:
        page = begun_behind(shut, on_b)
        with on_a.stream("GET", "/chat/s/stream") as response:
            assert response.status_code == 200
            a.kill()
        shut.unlink()
        settled(on_b, "s")
        page.client = on_c
        assert page.reconnect() == 200
        assert page.text.endswith("And so on. ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_instance_that_is_asked_to_leave_hands_over_at_once(begin: Begin, shut: Path, number: int) -> None:
    a, b = begin("--grace", "0.5"), begin("--janitor", "0.2")
    shut.touch()
    with a.client() as on_a, b.client() as on_b:
        start(on_a, "s", "long story")
        opened, reading = read_first(on_a, "s")
        next(reading)
        a.process.send_signal(number)
        told = list(reading)
        opened.__exit__(None, None, None)
        assert told[-1]["event"] == "reconnect"
        cursor = told[-1]["data"]["lastEventId"]
        assert a.end() == 0
        shut.unlink()
        # The lease was released: nobody waits the fifteen seconds until it would have run out.
        rest = chunks(on_b, "s", after=cursor)
        assert (rest[-1]["event"], rest[-1]["data"]["status"]) == ("end", "completed")
        assert status(on_b, "s")["attempt"] == 2


def test_a_drained_instance_answers_new_starts_with_come_back_later(begin: Begin, shut: Path) -> None:
    a = begin("--grace", "20")
    shut.touch()
    with a.client() as client, a.client() as other:
        start(client, "s", "hello")
        client.get("/healthz")
        a.terminate()
        refused = wait_until(lambda: r if (r := start(other, "new", "hello")).status_code == 503 else None)
        assert refused.json()["code"] == "server_draining"
        assert refused.headers["retry-after"]
        assert other.get("/readyz").json() == {"status": "draining"}
        shut.unlink()
    assert a.end() == 0

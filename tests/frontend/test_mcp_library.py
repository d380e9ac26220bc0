"""MCP's own clients for JavaScript, unmodified, against a server process."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.frontend.conftest import ChatClient, Library, Site, Tabs
from tests.frontend.site import LINE
from tests.server.live import wait_until

COMPANIONS = ["session__pending", "session__answer", "session__continue", "session__stop"]
Connect = Callable[..., ChatClient]


@pytest.fixture(params=["v1", "v2", "v2 modern"])
def mode(request: pytest.FixtureRequest) -> str:
    """Which client, and which era of the protocol it speaks."""
    return request.param


@pytest.fixture
def connect(site: Site, library: Callable[[str], Library], mode: str) -> Iterator[Connect]:
    """One more connected client; with `forms`, it has somebody who fills them in so."""
    with closing(Tabs(library("mcp"), f"{site.url}/mcp")) as tabs:

        def one_more(**how: Any) -> ChatClient:
            client = tabs(mode)
            connected = client.do("connect", **how)
            assert connected["error"] is None, connected["error"]
            # A connection that was another client's before is not introduced again.
            assert "connection" in how or connected["server"] == "helix-agents"
            return client

        yield one_more


def called(client: ChatClient, name: str, **given: Any) -> dict[str, Any]:
    """What came of a call; one that fails is none that these tests expect."""
    steps = {step: given.pop(step) for step in ("leaveAt", "resume") if step in given}
    answer = client.do("call", name=name, arguments=given, **steps)
    assert answer["error"] is None, answer["error"]
    return answer


def data(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["result"]["structuredContent"]


def test_agents_are_tools_and_a_call_is_a_turn_that_tells_its_progress(site: Site, connect: Connect) -> None:
    site.open_gate()
    client = connect()
    assert client.do("tools")["tools"] == ["guide", *COMPANIONS]
    # A turn that is over before the server looks at it has no progress to tell.
    calls = (called(client, "guide", message="tides") for _ in range(10))
    first = next(each for each in calls if each["told"])
    assert (data(first)["status"], data(first)["text"]) == ("completed", "Done with tides.")
    assert "Let me look.\nRunning tides." in [each["message"] for each in first["told"]]
    then = called(client, "guide", message="line", session_id=data(first)["session_id"])
    assert (data(then)["text"], data(then)["session_id"]) == (LINE, data(first)["session_id"])
    unknown = client.do("call", name="nobody", arguments={})["error"]
    assert (unknown["code"], "Unknown tool" in unknown["message"]) == (-32602, True)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("order", ["book", "crew"])
def test_a_person_at_the_client_decides_and_the_call_goes_on(
    site: Site, connect: Connect, order: str, approved: bool
) -> None:
    site.open_gate()
    client = connect(forms=[{"action": "accept", "content": {"approved": approved}}])
    answer = called(client, "guide", message=order)
    assert data(answer)["status"] == "completed"
    assert answer["asked"] == [
        {
            "message": 'May book run with {"boat":"Petrel"}?',
            "fields": ["approved", "reason", "edited_input"],
        }
    ]
    stored = str(site.get(f"/sessions/{data(answer)['session_id']}/snapshot")["messages"])
    if order == "book":
        assert ("booked Petrel" in stored) == approved


def test_a_client_that_asks_nobody_is_told_what_waits_and_answers_later(site: Site, connect: Connect) -> None:
    asked = data(called(connect(), "guide", message="where"))
    assert (asked["status"], [each["kind"] for each in asked["pending"]]) == ("waiting", ["client_tool"])
    done = data(called(connect(), "session__answer", session_id=asked["session_id"], result="the mole"))
    assert (done["status"], done["text"]) == ("completed", "Done with where.")


def test_a_call_that_is_given_up_stops_its_turn_where_the_client_says_so(
    site: Site, connect: Connect, mode: str, session_id: str
) -> None:
    before = {each["sessionId"] for each in site.get("/sessions")["items"]}
    given = {"message": "tides then line", "idempotency_key": session_id}
    cut = connect().do("call", name="guide", arguments=given, cancelAt="Running")
    assert cut["error"] is not None
    [begun] = {each["sessionId"] for each in site.get("/sessions")["items"]} - before

    def is_over() -> bool:
        return site.get(f"/sessions/{begun}")["run"]["status"] != "running"

    if mode == "v2 modern":
        # To a server, a client of this version that gives up looks like one whose connection broke.
        site.open_gate()
    wait_until(is_over)
    status = site.get(f"/sessions/{begun}")["run"]["status"]
    assert status == ("completed" if mode == "v2 modern" else "interrupted")


def test_a_client_that_left_in_the_middle_comes_back_to_the_same_call(
    site: Site, connect: Connect, mode: str, session_id: str
) -> None:
    said = {"message": "tides then line", "idempotency_key": session_id}
    first = connect()
    left = called(first, "guide", **said, leaveAt="Running")
    assert left["result"] is None
    site.open_gate()
    if mode == "v2 modern":
        back = called(connect(), "guide", **said)
    else:
        back = called(connect(connection=left["connection"]), "guide", **said, resume=left["token"])
    assert data(back)["text"] == LINE
    assert site.get(f"/sessions/{data(back)['session_id']}")["messageCount"] == 4

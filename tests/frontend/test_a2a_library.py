"""A2A's own client for JavaScript, unmodified, against a server process."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.frontend.conftest import ChatClient, Library, Site, Tabs
from tests.frontend.site import LINE
from tests.server.live import wait_until

PAUSE = "twice a day"


@pytest.fixture
def client(site: Site, library: Callable[[str], Library]) -> Iterator[ChatClient]:
    """A client that has found the agent by its card."""
    with closing(Tabs(library("a2a"), f"{site.url}/a2a/guide/")) as tabs:
        opened = tabs("")
        assert opened.do("find") == {"error": None, "name": "guide", "streams": True, "skills": ["guide"]}
        yield opened


def ask(client: ChatClient, command: str, **given: Any) -> dict[str, Any]:
    answer = client.do(command, **given)
    assert answer["error"] is None, answer["error"]
    return answer


def put_together(events: list[dict[str, Any]]) -> dict[str, str]:
    """The texts that a stream tells, by the artifacts they belong to."""
    texts: dict[str, str] = {}
    for event in events:
        if event["kind"] == "task":
            texts = texts_of(event["task"])
        elif event["kind"] == "artifactUpdate":
            said = "".join(part.get("text", "") for part in event["parts"])
            texts[event["id"]] = (texts.get(event["id"], "") if event["append"] else "") + said
    return texts


def texts_of(task: dict[str, Any]) -> dict[str, str]:
    return {name: "".join(part.get("text", "") for part in parts) for name, parts in task["artifacts"].items()}


def test_a_message_is_a_task_that_is_streamed_read_and_listed(site: Site, client: ChatClient, session_id: str) -> None:
    site.open_gate()
    sent = ask(client, "send", id="m-1", text="tides", context=session_id)["task"]
    assert (sent["state"], sent["context"]) == ("completed", session_id)
    assert [*texts_of(sent).values()] == ["Let me look. ", "Done with tides."]
    streamed = ask(client, "stream", id="m-2", text="line", context=session_id)["events"]
    assert (streamed[0]["kind"], streamed[-1]["state"]) == ("task", "completed")
    later = ask(client, "get", task=streamed[0]["task"]["id"])["task"]
    assert put_together(streamed) == texts_of(later)
    assert [*texts_of(later).values()] == [LINE]
    listed = ask(client, "list", context=session_id)
    assert ([task["id"] for task in listed["tasks"]], listed["total"]) == ([later["id"], sent["id"]], 2)
    assert ask(client, "send", id="m-1", text="tides", context=session_id)["task"]["id"] == sent["id"]


def test_a_reader_who_hung_up_comes_back_in_the_middle(site: Site, client: ChatClient, session_id: str) -> None:
    cut = ask(client, "stream", id="m-1", text="line", context=session_id, until=PAUSE)["events"]
    name = cut[0]["task"]["id"]
    back = ask(client, "follow", task=name, until=PAUSE)["events"]
    assert back[0]["task"]["state"] == "working"
    assert put_together(back) == put_together(cut)
    site.open_gate()
    wait_until(lambda: ask(client, "get", task=name)["task"]["state"] == "completed")
    assert [*texts_of(ask(client, "get", task=name)["task"]).values()] == [LINE]
    assert "over" in client.do("follow", task=name)["error"]["message"]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("order", ["book", "crew"])
def test_an_approval_is_input_that_a_task_requires(
    site: Site, client: ChatClient, session_id: str, order: str, approved: bool
) -> None:
    site.open_gate()
    asked = ask(client, "send", id="m-1", text=order, context=session_id)["task"]
    assert asked["state"] == "input_required"
    sentence, question = asked["asked"]
    assert sentence["text"].startswith("May book run?")
    assert question["data"]["input"] == {"boat": "Petrel"}
    answer = {"toolCallId": question["data"]["toolCallId"], "approved": approved}
    unclear = client.do("send", id="m-2", text="Hm.", context=session_id, task=asked["id"])
    assert "approved" in unclear["error"]["message"]
    goes_on = ask(client, "stream", id="m-3", data=answer, context=session_id, task=asked["id"])["events"]
    assert (goes_on[0]["task"]["id"], goes_on[-1]["state"]) == (asked["id"], "completed")
    assert put_together(goes_on) == texts_of(ask(client, "get", task=asked["id"])["task"])


def test_a_question_is_answered_with_text(client: ChatClient, session_id: str) -> None:
    asked = ask(client, "send", id="m-1", text="where", context=session_id)["task"]
    done = ask(client, "send", id="m-2", text="the mole", task=asked["id"])["task"]
    assert (done["id"], done["state"]) == (asked["id"], "completed")
    assert [*texts_of(done).values()][-1] == "Done with where."


def test_a_task_is_cancelled(site: Site, client: ChatClient, session_id: str) -> None:
    cut = ask(client, "stream", id="m-1", text="line", context=session_id, until=PAUSE)["events"]
    name = cut[0]["task"]["id"]
    assert ask(client, "cancel", task=name)["task"]["state"] == "canceled"
    assert ask(client, "get", task=name)["task"]["state"] == "canceled"
    site.open_gate()
    over = ask(client, "send", id="m-2", text="tides", context=session_id)["task"]["id"]
    again = client.do("cancel", task=over)["error"]
    assert again["kind"].endswith("TaskNotCancelableError"), again
    lost = client.do("get", task=f"{session_id}:nothing")["error"]
    assert lost["kind"].endswith("TaskNotFoundError"), lost

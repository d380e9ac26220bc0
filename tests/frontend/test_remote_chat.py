"""A page that answers what an agent behind another service waits for, with the real library."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.frontend.conftest import ChatClient, Library, Tabs
from tests.frontend.test_chat_library import text_of
from tests.server.chain import boss, service, worker
from tests.server.live import ANN, LiveServer, bearer

OpenChat = Callable[[str], ChatClient]


@pytest.fixture(scope="module")
def root() -> Iterator[LiveServer]:
    """A service whose agent delegates to the agent of another one."""
    with LiveServer(service(worker())) as remote, LiveServer(service(boss(remote.url))) as live:
        yield live


@pytest.fixture(params=["v6", "v7"])
def open_chat(
    request: pytest.FixtureRequest, root: LiveServer, library: Callable[[str], Library]
) -> Iterator[OpenChat]:
    with closing(Tabs(library(request.param), f"{root.url}/chat", bearer(ANN))) as tabs:
        yield tabs


def waiting(answer: dict[str, Any], state: str) -> dict[str, Any]:
    found = (part for part in answer["messages"][-1]["parts"] if part.get("state") == state)
    [part] = [part for part in found if not part["type"].startswith("tool-subagent__")]
    return part


def after_refresh(root: LiveServer, open_chat: OpenChat, session_id: str) -> ChatClient:
    with root.client() as client:
        stored = client.get(f"/sessions/{session_id}/snapshot").json()["messages"]
    chat = open_chat(session_id)
    chat.do("refresh", messages=stored)
    return chat


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_inside_a_remote_child_is_given_by_the_page(
    root: LiveServer, open_chat: OpenChat, session_id: str, approved: bool, refreshed: bool
) -> None:
    chat = open_chat(session_id)
    asked = waiting(chat.do("send", text="remote publish"), "approval-requested")
    assert asked["input"] == {"report_id": "r-1"}
    if refreshed:
        chat = after_refresh(root, open_chat, session_id)
    answer = chat.do("approve", approvalId=asked["approval"]["id"], approved=approved)
    assert answer["error"] is None, answer["error"]
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant"]
    [part] = [part for part in answer["messages"][-1]["parts"] if part.get("toolCallId") == asked["toolCallId"]]
    assert part["state"] == ("output-available" if approved else "output-denied")
    assert ("published r-1" in text_of(answer)) is approved


def test_a_client_tool_inside_a_remote_child_is_run_by_the_page(
    root: LiveServer, open_chat: OpenChat, session_id: str
) -> None:
    chat = open_chat(session_id)
    asked = waiting(chat.do("send", text="remote locate"), "input-available")
    answer = chat.do("output", tool="locate", toolCallId=asked["toolCallId"], output="Brest")
    assert answer["error"] is None, answer["error"]
    assert "I was told: I was told: Brest" in text_of(answer)


@pytest.mark.parametrize("last_first", [False, True])
def test_what_two_remote_children_wait_for_is_answered_in_any_order(
    root: LiveServer, open_chat: OpenChat, session_id: str, last_first: bool
) -> None:
    chat = open_chat(session_id)
    parts = chat.do("send", text="remote publish & publish")["messages"][-1]["parts"]
    asked = [part["approval"]["id"] for part in parts if part.get("state") == "approval-requested"]
    assert len(asked) == 2
    for approval_id in reversed(asked) if last_first else asked:
        answer = chat.do("approve", approvalId=approval_id, approved=True)
    assert answer["error"] is None, answer["error"]
    assert text_of(answer).count("published r-1") == 2
    with root.client() as client:
        stored = client.get(f"/sessions/{session_id}/snapshot").json()["messages"]
    assert [part["type"] for part in stored[-1]["parts"]] == [part["type"] for part in answer["messages"][-1]["parts"]]

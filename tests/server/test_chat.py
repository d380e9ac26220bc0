"""Every path a chat can take, over real HTTP, as `useChat` takes it."""

import asyncio
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx2
import pytest

from helix_agents import Agent, AgentServer, Executor, PersistentAgent, ScriptedModel
from helix_agents.agent.agent import AnyAgent
from helix_agents.llm.scripted import Step, call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.server.auth import bearer_tokens
from helix_agents.server.calls import Call
from helix_agents.server.chat import routes as chat
from helix_agents.server.limits import ServerLimits
from tests.server.agents import Notes, gate, helper, mishaps, order_of, publish, results_since_the_user
from tests.server.live import BEN, TOKENS, LiveServer, agent_server, wait_until
from tests.server.page import Page, parts_of

DENIED_OR_GIVEN_UP = ("output-denied", "output-error")


def code_of(page: Page, **more: Any) -> tuple[int, str]:
    body = {"id": page.chat_id, "messages": page.messages, **more}
    response = page.client.post("/chat", json=body)
    return response.status_code, response.json().get("code")


def test_a_new_session_answers_in_one_message(page: Page) -> None:
    page.say("hello")
    assert [message["role"] for message in page.messages] == ["user", "assistant"]
    assert page.text == "You said: hello. And so on. "
    assert page.parts[0]["type"] == "start"
    assert page.parts[-1] == {"type": "finish", "finishReason": "stop"}
    assert page.snapshot()["messages"] == page.messages


def test_a_new_session_without_an_agent_is_told_the_agents_that_there_are() -> None:
    agents = [Agent(name=name, model=ScriptedModel(["Hello."])) for name in ("tracker", "support")]
    server = AgentServer(Executor.open("memory://", agents=agents), authenticate=bearer_tokens(TOKENS))
    said = {"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    with LiveServer(server) as live, live.client() as client:
        refused = client.post("/chat", json={"id": "s-1", "messages": [said]})
        assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
        assert refused.json()["detail"].endswith(": support, tracker.")
        assert client.post("/chat", params={"agent": "support"}, json={"id": "s-1", "messages": [said]}).is_success


def test_a_session_goes_on_and_keeps_its_ids(page: Page) -> None:
    page.say("one").say("two")
    assert [message["role"] for message in page.messages] == ["user", "assistant", "user", "assistant"]
    assert len({message["id"] for message in page.messages}) == 4
    assert page.snapshot()["messages"] == page.messages


def test_only_the_last_message_need_be_sent(page: Page) -> None:
    page.say("one")
    message = {"id": "m-alone", "role": "user", "parts": [{"type": "text", "text": "two"}]}
    response = page.client.post("/chat", json={"id": page.chat_id, "message": message})
    assert response.status_code == 200
    assert len(page.snapshot()["messages"]) == 4


def test_a_tool_of_the_server_is_shown_from_input_to_output(page: Page) -> None:
    page.say("search")
    part = page.tool("search")
    assert part["state"] == "output-available"
    assert part["input"] == {"query": "tides"}
    assert part["output"] == ["page 1 about tides", "page 2 about tides"]
    assert part["providerExecuted"] is True
    kinds = [each["type"] for each in page.last["parts"]]
    assert kinds == ["step-start", "reasoning", "text", "tool-search", "step-start", "text"]
    assert {"type": "data-searching", "data": {"query": "tides"}, "transient": True} in page.parts
    assert page.snapshot()["messages"] == page.messages


@pytest.mark.parametrize("order", ["broken", "unknown"])
def test_a_call_the_model_got_wrong_is_shown_as_an_error(page: Page, order: str) -> None:
    page.say(order)
    part = page.last["parts"][3]
    assert part["state"] == "output-error"
    assert page.snapshot()["messages"] == page.messages


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_is_asked_for_and_answered_in_the_same_message(page: Page, approved: bool) -> None:
    page.say("publish")
    assert page.parts[-1] == {"type": "finish", "finishReason": "tool-calls"}
    part = page.tool("publish")
    assert part["state"] == "approval-requested"
    assert part["input"] == {"report_id": "r-1"}
    assert page.snapshot()["messages"] == page.messages
    before = page.last["id"]
    page.decide("publish", approved, "as you like").post()
    assert page.last["id"] == before
    assert page.tool("publish")["state"] == ("output-available" if approved else "output-denied")
    assert page.text.startswith("Let me see. I was told:")
    assert len(page.messages) == 2
    assert page.snapshot()["messages"] == page.messages


def test_a_client_tool_is_run_by_the_page(page: Page) -> None:
    page.say("locate")
    part = page.tool("locate")
    assert part["state"] == "input-available"
    assert "providerExecuted" not in part
    assert part["input"] == {"accuracy": 3}
    page.give("locate", "at home").post()
    assert page.text == "Let me see. I was told: at home."
    assert page.snapshot()["messages"] == page.messages


def test_a_client_must_not_begin_before_somebody_waits_for_it(page: Page) -> None:
    page.say("locate")
    kinds = [part["type"] for part in page.parts]
    assert kinds.index("tool-input-available") > kinds.index("tool-input-delta")
    assert kinds.count("tool-input-available") == 1


def test_a_client_tool_may_fail_at_the_page(page: Page) -> None:
    page.say("locate")
    page.tool("locate").update(state="output-error", errorText="no signal")
    page.post()
    assert page.text == "Let me see. I was told: no signal."


def test_a_mixed_batch_waits_for_both_answers(page: Page) -> None:
    page.say("both")
    assert page.tool("search")["state"] == "output-available"
    page.give("locate", "here").post()
    assert page.parts[-1] == {"type": "finish", "finishReason": "tool-calls"}
    assert code_of(page) == (409, "still_waiting")
    page.decide("publish", True).post()
    assert page.text.startswith("Let me see. I was told: published r-1; here;")


def test_a_page_that_is_loaded_between_two_answers_shows_the_first_as_given(page: Page) -> None:
    """Its library goes on by itself only when every call of the step has come to something."""
    page.say("both").give("locate", "here").post()
    anew = Page(page.client, page.chat_id, page.snapshot()["messages"])
    assert (anew.tool("locate")["state"], anew.tool("locate")["output"]) == ("output-available", "here")
    anew.decide("publish", True).post()
    assert anew.text.startswith("Let me see. I was told: published r-1; here;")
    assert page.snapshot()["messages"][-1]["parts"][-1] == anew.last["parts"][-1]


def test_a_page_that_is_loaded_before_the_run_goes_on_shows_what_was_decided(page: Page) -> None:
    page.say("both").decide("publish", False, "not today").post()
    assert page.snapshot()["messages"] == page.messages
    anew = Page(page.client, page.chat_id, page.snapshot()["messages"])
    anew.give("locate", "here").post()
    assert anew.tool("publish")["state"] == "output-denied"
    assert page.snapshot()["messages"] == anew.messages


def test_a_decision_that_was_stored_is_shown_though_the_answer_beside_it_was_refused(page: Page) -> None:
    page.say("both").decide("publish", True)
    decided = deepcopy(page.messages)
    page.give("locate", {"no": "text"})
    assert code_of(page) == (400, "validation_error")
    assert page.snapshot()["messages"] == decided


@pytest.mark.parametrize("stop", ["interrupt", "abort"])
@pytest.mark.parametrize("order", ["delegate", "ask below"])
def test_what_a_child_waited_for_is_over_when_the_answer_is_stopped(page: Page, order: str, stop: str) -> None:
    page.say(order)
    assert page.client.post(f"/chat/{page.chat_id}/{stop}", json={}).json()["outcome"] == "interrupt_set"
    tools = [part for part in page.snapshot()["messages"][-1]["parts"] if part["type"].startswith("tool-")]
    assert [part["state"] for part in tools] == ["output-error", "output-error"]


def test_a_new_message_gives_up_what_waits(page: Page) -> None:
    page.say("locate").say("never mind")
    assert page.text == "You said: never mind. And so on. "
    shown = page.snapshot()["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
    assert shown[1]["parts"][-1]["state"] == "output-error"
    assert shown[-1] == page.last


def test_an_answer_to_a_call_that_was_given_up_is_told_so(page: Page) -> None:
    page.say("locate")
    stale = Page(page.client, page.chat_id, page.messages)
    page.say("never mind")
    stale.give("locate", "too late")
    assert code_of(stale) == (409, "history_mismatch")


def test_calls_that_expired_go_on_with_a_timeout_and_a_late_answer_is_told_so(page: Page, server: LiveServer) -> None:
    page.say("glance")
    client = page.client

    def resumed() -> bool:
        response = client.post("/resume", json={"sessionId": page.chat_id})
        return response.status_code == 200

    wait_until(resumed)
    wait_until(lambda: client.get("/status", params={"sessionId": page.chat_id}).json()["status"] == "completed")
    page.give("glance", "too late")
    assert code_of(page) == (409, "late_answer_after_timeout")
    shown = page.snapshot()["messages"][-1]
    assert next(part for part in shown["parts"] if part["type"] == "tool-glance")["state"] == "output-error"


def test_what_was_said_after_a_timeout_may_be_answered_again(page: Page) -> None:
    page.say("glance")
    asked = time.monotonic()
    wait_until(lambda: time.monotonic() > asked + 0.1)
    page.say("hello")
    timed_out = page.snapshot()["messages"][1]["parts"][-1]
    assert (timed_out["type"], timed_out["errorText"]) == ("tool-glance", "Nobody answered this call in time.")
    before = page.messages.pop()
    page.post(trigger="regenerate-message")
    assert (page.text, page.last["id"] != before["id"]) == ("You said: hello. And so on. ", True)
    assert len(page.snapshot()["messages"]) == 4


def test_the_same_message_again_joins_the_turn_it_began(page: Page) -> None:
    page.say("hello")
    again = Page(page.client, page.chat_id, page.messages[:1])
    again.post()
    assert again.messages == page.messages
    assert page.snapshot()["totalMessages"] == 2


def test_the_same_answer_again_gets_the_rest_of_the_message(page: Page) -> None:
    page.say("publish")
    other = Page(page.client, page.chat_id, page.messages)
    page.decide("publish", True).post()
    other.decide("publish", True).post()
    assert other.text == page.text
    assert len(page.client.get(f"/sessions/{page.chat_id}/runs").json()["items"]) == 2


def test_a_finished_answer_that_is_sent_again_is_refused_and_not_repeated_for_ever(page: Page) -> None:
    page.say("locate").give("locate", "here").post()
    assert code_of(page)[0] == 409


def test_two_tabs_see_the_same_answer_once(page: Page, ann: httpx2.Client, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, page.messages[:1])
        assert code_of(Page(second, page.chat_id, [{**page.messages[0], "id": "m-2"}])) == (
            409,
            "agent_already_running",
        )
        with second.stream("GET", f"/chat/{page.chat_id}/stream") as response:
            assert response.status_code == 200
            others = parts_of(response.iter_lines())
            other.read(iter([next(others) for _ in range(3)]))
            gate.open()
            other.read(others)
        page.read(parts)
    assert other.messages == page.messages
    assert page.snapshot()["messages"] == page.messages


def _text(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def test_a_message_sent_while_an_answer_is_written_is_answered_after_it(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("long story", "m-1"))
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("and then?", "m-2")])
        with other.posting(ifRunning="enqueue") as others:
            other.read(iter([next(others)]))
            (waiting,) = second.get(f"/sessions/{page.chat_id}/queue").json()["items"]
            assert waiting["messages"][0]["content"] == "and then?"
            shown = page.snapshot()
            metadata = {"runId": waiting["runId"], "queuedAt": waiting["queuedAt"]}
            assert shown["queued"] == [{**_text("and then?", "m-2"), "metadata": metadata}]
            assert "m-2" not in [message["id"] for message in shown["messages"]]
            gate.open()
            page.read(parts)
            other.read(others)
        assert second.get(f"/sessions/{page.chat_id}/queue").json() == {"items": []}
    assert other.text.startswith("You said: and then?")
    assert page.snapshot()["messages"] == [*page.messages, *other.messages]
    assert page.snapshot()["queued"] == []


def test_a_message_is_taken_in_by_the_answer_that_is_written(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("search", "m-1"))
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("and the moon?", "m-2")])
        with other.posting(ifRunning="steer") as others:
            (shown,) = page.snapshot()["queued"]
            assert (shown["id"], shown["metadata"]["steers"]) == ("m-2", True)
            gate.open()
            page.read(parts)
            rest = list(others)
    assert [part["type"] for part in rest] == ["start", "data-steered-run", "finish"]
    assert rest[1]["data"]["messageId"] == page.last["id"]
    assert [message["role"] for message in page.messages] == ["user", "assistant"]
    kinds = [part["type"] for part in page.last["parts"]]
    assert kinds == ["step-start", "reasoning", "text", "tool-search", "data-steered", "step-start", "text"]
    said = {"type": "data-steered", "id": "m-2", "data": _text("and the moon?", "m-2")}
    assert page.last["parts"][4] == said
    assert page.text.endswith("You said: and the moon?. And so on. ")
    assert page.snapshot()["messages"] == page.messages
    assert page.snapshot()["queued"] == []
    # Sent again, either message joins the one answer there is.
    for again in (_text("search", "m-1"), _text("and the moon?", "m-2")):
        joined = Page(page.client, page.chat_id, [again]).post(ifRunning="steer")
        assert joined.last["id"] == page.last["id"]
        assert joined.text == page.text
    assert page.snapshot()["messages"] == page.messages


def test_a_message_that_waits_may_be_given_to_the_answer_that_is_written(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("search", "m-1"))
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("and the moon?", "m-2")])
        with other.posting(ifRunning="enqueue") as others:
            other.read(iter([next(others)]))
            (waiting,) = second.get(f"/sessions/{page.chat_id}/queue").json()["items"]
            place = f"/sessions/{page.chat_id}/queue/{waiting['runId']}"
            assert page.client.post(place, json={"steers": True}).status_code == 200
            gate.open()
            page.read(parts)
            rest = list(others)
    assert [part["type"] for part in rest] == ["data-steered-run", "finish"]
    assert rest[0]["data"]["messageId"] == page.last["id"]
    assert page.snapshot()["messages"] == page.messages


def test_a_message_that_comes_too_late_for_an_answer_gets_its_own(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("long story", "m-1"))
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("and then?", "m-2")])
        with other.posting(ifRunning="steer") as others:
            wait_until(lambda: len(page.snapshot()["queued"]) == 1)
            gate.open()
            page.read(parts)
            other.read(others)
    assert other.text.startswith("You said: and then?")
    assert page.snapshot()["messages"] == [*page.messages, *other.messages]


def test_a_message_that_waits_can_be_taken_back(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("long story", "m-1"))
    with page.posting() as parts, server.client() as second, server.client(BEN) as ben:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("and then?", "m-2")])
        queue = f"/sessions/{page.chat_id}/queue"
        with other.posting(ifRunning="enqueue") as others:
            other.read(iter([next(others)]))
            (waiting,) = second.get(queue).json()["items"]
            assert [ben.get(queue).status_code, ben.delete(f"{queue}/{waiting['runId']}").status_code] == [404, 404]
            assert second.delete(f"{queue}/{waiting['runId']}").status_code == 204
            assert second.delete(f"{queue}/{waiting['runId']}").json()["code"] == "run_not_found"
            (problem,) = [part for part in others if part["type"] == "error"]
        assert "taken back" in problem["errorText"]
        gate.open()
        page.read(parts)
    assert page.snapshot()["messages"] == page.messages


def test_a_message_may_stop_the_answer_that_is_written(page: Page, server: LiveServer) -> None:
    gate.shut(after=3)
    page.messages.append(_text("long story", "m-1"))
    with page.posting() as parts, server.client() as second:
        page.read(iter([next(parts) for _ in range(4)]))
        other = Page(second, page.chat_id, [_text("stop, and this?", "m-2")])
        with other.posting(ifRunning="interrupt") as others:
            gate.open()
            other.read(others)
        page.read(parts)
    assert "abort" in [part["type"] for part in page.parts]
    assert other.text.startswith("You said: stop, and this?")
    refused = page.client.post("/chat", json={"id": page.chat_id, "messages": page.messages, "ifRunning": "later"})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")


def test_two_tabs_that_answer_at_once_both_see_what_follows(
    server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has seen that the run waits when the first one goes on, to the end."""
    page.say("publish").decide("publish", True)
    with server.client() as client:
        other = Page(client, page.chat_id, page.messages)
        look = Call.current_run

        async def overtaken(call: Call, session_id: str) -> Any:
            found = await look(call, session_id)
            monkeypatch.setattr(Call, "current_run", look)
            await asyncio.to_thread(page.post)
            return found

        monkeypatch.setattr(Call, "current_run", overtaken)
        other.post()
    assert other.text == page.text
    assert page.tool("publish")["output"] == other.tool("publish")["output"]


def test_a_tab_that_answers_what_was_just_answered_goes_on_with_it(
    server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.say("publish").decide("publish", True)
    asked = page.tool("publish")
    answer = {"kind": "approval-response", "sessionId": page.chat_id, "toolCallId": asked["toolCallId"]}
    look = Call.find_session

    async def overtaken(call: Call, session_id: str) -> Any:
        found = await look(call, session_id)
        decided = {**answer, "approvalId": asked["approval"]["id"], "approved": True}
        with server.client() as other:
            told = await asyncio.to_thread(lambda: other.post("/submit-tool-result", json=decided))
        assert told.json()["outcome"] == "accepted"
        return found

    monkeypatch.setattr(Call, "find_session", overtaken)
    page.post()
    assert "published" in page.text


def test_a_tab_that_is_overtaken_between_two_of_its_answers_sees_what_follows(
    server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.say("both").decide("publish", True).give("locate", "here")
    call_id = page.tool("locate")["toolCallId"]
    answer = {"kind": "client-tool-result", "sessionId": page.chat_id, "toolCallId": call_id, "result": "there"}
    submit = chat.submit

    async def overtaken(*given: Any) -> Any:
        told = await submit(*given)
        monkeypatch.setattr(chat, "submit", submit)
        with server.client() as other:
            await asyncio.to_thread(lambda: other.post("/submit-tool-result", json=answer))
        return told

    monkeypatch.setattr(chat, "submit", overtaken)
    page.post()
    assert page.text.startswith("Let me see. I was told: published r-1; there;")


def test_a_refresh_in_the_middle_shows_what_was_said_and_reads_on(page: Page, server: LiveServer) -> None:
    gate.shut(after=6)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts:
        for part in parts:
            if part["type"] == "text-delta":
                break
    with server.client() as client:
        anew = Page(client, page.chat_id, [page.messages[0]])
        first = anew.snapshot()
        assert (first["active"], len(first["messages"])) == (True, 2)
        anew.messages = first["messages"]
        assert anew.reconnect(after_first=gate.open) == 200
        assert anew.messages == anew.snapshot()["messages"]
        assert anew.text.endswith("And so on. ")
        assert anew.reconnect() == 204


def read_some_text(page: Page, parts: Iterator[dict[str, Any]]) -> None:
    """Read until the answer says something."""
    for part in parts:
        page.read(iter([part]))
        if part["type"] == "text-delta":
            break


def ended_behind_the_back_of(page: Page) -> dict[str, Any]:
    """A snapshot from the middle of an answer that is over now."""
    gate.shut(after=4)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts:
        read_some_text(page, parts)
        first = page.snapshot()
        assert len(first["messages"]) == 2
        gate.open()
        page.read(parts)
    return first


def test_a_page_that_comes_before_the_first_message_has_nothing_to_read(ann: httpx2.Client) -> None:
    """Its library shows whatever else it is told as an error, in a conversation that has not begun."""
    queries: list[dict[str, int]] = [{}, {"after": 0}]
    for query in queries:
        response = ann.get("/chat/not-begun-yet/stream", params=query)
        assert (response.status_code, response.content) == (204, b"")
    for wrong in ("undefined", "-1", str(10**17 + 1)):
        assert ann.get("/chat/not-begun-yet/stream", params={"after": wrong}).status_code == 400


@pytest.mark.parametrize("says_where", [True, False])
def test_an_answer_that_ended_before_the_page_came_back_is_replayed_to_it(page: Page, says_where: bool) -> None:
    first = ended_behind_the_back_of(page)
    anew = Page(page.client, page.chat_id, first["messages"])
    assert anew.reconnect(**({"after": first["streamSequence"]} if says_where else {})) == 200
    assert anew.messages == page.snapshot()["messages"]
    assert anew.reconnect() == 204


def test_every_page_that_shows_an_answer_without_its_end_gets_the_end(page: Page) -> None:
    first = ended_behind_the_back_of(page)
    page.client.get(f"/sessions/{page.chat_id}/ui-messages")
    assert Page(page.client, page.chat_id, first["messages"]).reconnect() == 200
    assert Page(page.client, page.chat_id, first["messages"]).reconnect() == 204


def test_a_page_that_was_cut_off_gets_the_end_it_missed(page: Page, server: LiveServer) -> None:
    gate.shut(after=4)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts:
        page.read(iter([next(parts)]))
    wait_until(lambda: server.app.open_streams == 0)
    gate.open()
    wait_until(lambda: page.client.get(f"/status?sessionId={page.chat_id}").json()["status"] == "completed")
    assert page.reconnect() == 200
    assert page.messages == page.snapshot()["messages"]
    assert page.reconnect() == 204


def test_stop_keeps_what_was_said(page: Page, server: LiveServer) -> None:
    gate.shut(after=5)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts, server.client() as other:
        read_some_text(page, parts)
        told = other.post(f"/chat/{page.chat_id}/interrupt", json={"reason": "enough"})
        assert told.json()["outcome"] == "interrupt_set"
        page.read(parts)
    assert [part["type"] for part in page.parts[-2:]] == ["abort", "finish"]
    assert page.text.startswith("You said: long")
    assert page.snapshot()["messages"] == page.messages
    gate.open()
    page.say("go on")
    assert page.text == "You said: go on. And so on. "


def test_leaving_the_page_does_not_stop_the_answer(page: Page) -> None:
    gate.shut(after=2)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "hello"}]})
    with page.posting() as parts:
        next(parts)
    gate.open()
    wait_until(lambda: not page.snapshot()["active"])
    assert page.snapshot()["messages"][-1]["parts"][-1]["text"] == "You said: hello. And so on. "


def test_a_failure_is_a_sentence_for_the_user_and_a_code_for_the_page(page: Page) -> None:
    page.say("fail")
    kinds = [part["type"] for part in page.parts]
    assert kinds == ["start", "data-error", "error", "finish"]
    assert page.parts[1]["data"]["code"] == "provider_refused"
    assert "secret" not in str(page.parts)


def test_an_approval_of_a_child_is_answered_in_the_page(page: Page) -> None:
    page.say("delegate")
    assert page.tool("publish")["state"] == "approval-requested"
    assert page.snapshot()["messages"] == page.messages
    page.decide("publish", True).post()
    assert page.tool("publish")["state"] == "output-available"
    assert "published r-1" in page.text
    assert page.snapshot()["messages"] == page.messages


@pytest.mark.parametrize("order", ["delegate", "delegate far"])
def test_what_a_child_asked_stays_in_the_answer_it_was_asked_in(page: Page, order: str) -> None:
    page.say(order).decide("publish", True).post()
    before = page.messages[-1]
    assert [part["type"] for part in before["parts"] if part["type"].startswith("tool-")][1:] == ["tool-publish"]
    page.say("and so on").say("delegate")
    shown = page.snapshot()["messages"]
    assert shown[1] == before
    assert shown == page.messages


def test_what_two_children_asked_one_after_the_other_stays_below_the_call_that_delegated_to_each(page: Page) -> None:
    page.say("delegate twice").decide("publish", True).post()
    assert page.snapshot()["messages"][-1] == page.last
    page.decide("publish", True).post()
    assert page.snapshot()["messages"][-1] == page.last


def test_what_a_companion_asked_stays_in_the_answer_it_was_asked_in() -> None:
    orders = {
        "spawn": call("companion__spawnAgent", {"agent": "helper", "name": "h", "initialMessage": "publish"}),
        "again": call("companion__sendMessage", {"name": "h", "message": "publish"}),
    }

    def speak(request: ModelRequest) -> Step:
        order = order_of(request)
        done = results_since_the_user(request) or order not in orders
        return "Done." if done else reply("Let me see. ", calls=[orders[order]])

    boss = Agent(name="boss", model=ScriptedModel(speak), persistent_agents=[PersistentAgent(helper, mode="blocking")])
    server = AgentServer(Executor.open("memory://", agents=[boss]), authenticate=bearer_tokens(TOKENS))
    with LiveServer(server) as live, live.client() as client:
        page = Page(client, "s")
        for order in ("spawn", "and so on", "again"):
            page.say(order)
            if order in orders:
                assert page.snapshot()["messages"] == page.messages
                page.decide("publish", True).post()
            assert page.snapshot()["messages"] == page.messages


def background_boss(*companions: AnyAgent) -> AgentServer:
    """An agent that lets a companion begin, and does not wait for it."""

    def speak(request: ModelRequest) -> Step:
        done = results_since_the_user(request) or order_of(request) != "spawn"
        spawns = [
            call("companion__spawnAgent", {"agent": each.name, "name": each.name, "initialMessage": "publish"})
            for each in companions
        ]
        if order_of(request) == "busy":
            return "Busy. " * 20
        return "Done." if done else reply("Let me see. ", calls=spawns)

    background = [PersistentAgent(each, mode="non_blocking") for each in companions]
    boss = Agent(name="boss", model=ScriptedModel(speak, pace=gate.pass_), persistent_agents=background)
    return AgentServer(Executor.open("memory://", agents=[boss]), authenticate=bearer_tokens(TOKENS))


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("said_since", [(), ("and so on",)], ids=["at once", "a turn later"])
def test_what_a_companion_in_the_background_asks_is_answered_by_the_page(
    approved: bool, said_since: tuple[str, ...]
) -> None:
    with LiveServer(background_boss(helper)) as live, live.client() as client:
        page = Page(client, "s")
        for order in ("spawn", *said_since):
            page.say(order)
        wait_until(lambda: client.get("/pending").json()["items"])
        # Loaded anew, the page finds the question in the last step, which is what its library answers.
        page.messages = page.snapshot()["messages"]
        assert page.last["parts"][-1]["state"] == "approval-requested"
        page.decide("publish", approved).post()
        settled = page.tool("publish")
        assert settled["state"] == ("output-available" if approved else "output-denied")
        assert settled.get("output") == ("published r-1" if approved else None)
        assert client.get("/pending").json()["items"] == []
        again = client.post("/chat", json={"id": "s", "messages": page.messages})
        assert (again.status_code, again.json()["code"]) == (409, "nothing_to_resume")
        assert page.say("and then").text == "Done."


def test_a_companion_in_the_background_is_answered_while_another_message_is() -> None:
    with LiveServer(background_boss(helper)) as live, live.client() as client, live.client() as second:
        page = Page(client, "s").say("spawn")
        wait_until(lambda: client.get("/pending").json()["items"])
        page.messages = page.snapshot()["messages"]
        gate.shut(2, only="Busy")
        other = Page(second, "s", [_text("busy", "m-2")])
        with other.posting() as parts:
            other.read(iter([next(parts) for _ in range(3)]))
            page.decide("publish", True).post()
            # It gets the result, and nothing of what is said elsewhere.
            assert (page.tool("publish")["output"], "Busy" in str(page.messages)) == ("published r-1", False)
            gate.open()
            other.read(parts)
        assert other.text == "Busy. " * 20


def test_a_companion_in_the_background_goes_on_while_another_still_waits() -> None:
    other = Agent(name="other", description="Helps, too.", model=helper.model, tools=[publish], state=Notes)
    with LiveServer(background_boss(helper, other)) as live, live.client() as client:
        Page(client, "s").say("spawn")
        wait_until(lambda: len(client.get("/pending").json()["items"]) == 2)
        for left in (1, 0):
            asked = client.get("/pending").json()["items"][0]
            named = {"toolCallId": asked["toolCallId"], "approvalId": asked["approvalId"]}
            body = {"kind": "approval-response", **named, "approved": True}
            told = client.post("/chat/s/submit-tool-result", json=body).raise_for_status().json()
            assert (told["outcome"], told["stillWaiting"]) == ("accepted", left)
            below = f"/sessions/{asked['sessionId']}"
            wait_until(lambda below=below: client.get(f"{below}/runs").json()["items"][0]["status"] == "completed")


def test_two_companions_in_the_background_are_answered_together() -> None:
    other = Agent(name="other", description="Helps, too.", model=helper.model, tools=[publish], state=Notes)
    with LiveServer(background_boss(helper, other)) as live, live.client() as client:
        page = Page(client, "s").say("spawn")
        wait_until(lambda: len(client.get("/pending").json()["items"]) == 2)
        page.messages = page.snapshot()["messages"]
        asked = [part for part in page.last["parts"] if part["type"] == "tool-publish"]
        assert [part["state"] for part in asked] == ["approval-requested"] * 2
        for part in asked:
            part.update(state="approval-responded", approval={**part["approval"], "approved": True})
        page.post()
        done = [part for part in page.last["parts"] if part["type"] == "tool-publish"]
        assert [part["output"] for part in done] == ["published r-1"] * 2


def test_a_client_tool_of_a_child_is_run_by_the_page(page: Page) -> None:
    page.say("ask below")
    assert page.tool("locate")["state"] == "input-available"
    page.give("locate", "below").post()
    assert "below" in page.text
    assert page.snapshot()["messages"] == page.messages


def test_an_answer_may_be_submitted_apart_from_the_chat(page: Page) -> None:
    page.say("publish")
    call = page.snapshot()["pending"][0]
    body = {
        "kind": "approval-response",
        "toolCallId": call["toolCallId"],
        "approvalId": call["approvalId"],
        "approved": True,
    }
    told = page.client.post(f"/chat/{page.chat_id}/submit-tool-result", json=body).json()
    assert (told["outcome"], told["continuation"]) == ("accepted", "resume")
    wait_until(lambda: page.snapshot()["status"] == "completed")
    again = page.client.post(f"/chat/{page.chat_id}/submit-tool-result", json=body).json()
    assert again["outcome"] == "already_completed"


def test_an_answer_whose_run_could_not_start_starts_it_when_it_is_submitted_again() -> None:
    limits = ServerLimits(running_runs_per_user=1)
    with LiveServer(agent_server(limits=limits)) as live, live.client() as client:
        page = Page(client, "s").say("publish")
        call = page.snapshot()["pending"][0]
        gate.shut(2)
        begun = client.post("/start", json={"agentType": "director", "sessionId": "other", "message": "long tale"})
        body = {name: call[name] for name in ("toolCallId", "approvalId")}
        body |= {"kind": "approval-response", "approved": True}
        refused = client.post("/chat/s/submit-tool-result", json=body)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_runs")
        gate.open()
        client.get("/result", params={"sessionId": begun.json()["sessionId"], "wait": 20})
        told = client.post("/chat/s/submit-tool-result", json=body).json()
        assert (told["outcome"], told["continuation"]) == ("already_completed", "resume")
        assert client.get("/result", params={"sessionId": "s", "wait": 20}).json()["runId"] == told["runId"]
        assert page.snapshot()["status"] == "completed"


def test_the_last_answer_can_be_written_again(page: Page) -> None:
    page.say("one").say("two")
    first = page.last
    page.messages.pop()
    page.post(trigger="regenerate-message", messageId=first["id"])
    assert page.text == "You said: two. And so on. "
    assert page.last["id"] != first["id"]
    assert page.snapshot()["messages"] == page.messages


@pytest.mark.parametrize("how", ["regenerated", "edited"])
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("left", ["publish", "delegate far", "locate", "both"])
def test_an_answer_can_be_written_again_before_which_calls_were_left_open(
    page: Page, left: str, stopped: bool, how: str
) -> None:
    page.say(left)
    if stopped:
        assert page.client.post(f"/chat/{page.chat_id}/interrupt", json={}).status_code == 200
    page.say("hello")
    asked, first = page.messages[-2], page.messages.pop()
    if how == "regenerated":
        page.post(trigger="regenerate-message", messageId=first["id"])
        assert page.text == "You said: hello. And so on. "
    else:
        asked["parts"] = [{"type": "text", "text": "hi"}]
        page.post(messageId=asked["id"])
        assert page.text == "You said: hi. And so on. "
    assert page.last["id"] != first["id"]
    shown = page.snapshot()["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
    assert shown[2:] == page.messages[2:]
    tools = [part for part in shown[1]["parts"] if part["type"].startswith("tool-")]
    assert {part["state"] for part in tools if part["type"] != "tool-search"} == {"output-error"}


def test_an_answer_is_not_written_again_where_what_a_call_did_would_be_forgotten(page: Page) -> None:
    """Two calls waited, one was approved, and a new message gave the other one up: what the first one did is known to
    no checkpoint before that message."""
    page.say("both").decide("publish", True).post()
    page.say("hello")
    first = page.messages.pop()
    body = {"id": page.chat_id, "messages": page.messages, "trigger": "regenerate-message", "messageId": first["id"]}
    refused = page.client.post("/chat", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "cannot_regenerate")


@pytest.mark.parametrize("after", ["delegate", "publish", "search"])
@pytest.mark.parametrize("before", ["delegate", "delegate far", "publish"])
def test_what_was_asked_in_an_answer_that_was_taken_back_is_not_shown_in_the_one_written_instead(
    page: Page, before: str, after: str
) -> None:
    page.say(before).decide("publish", True).post()
    asked = page.messages[0]
    page.messages = [{**asked, "parts": [{"type": "text", "text": after}]}]
    if after == before:
        page.post(trigger="regenerate-message")
    else:
        page.post(messageId=asked["id"])
    assert page.snapshot()["messages"] == page.messages


@pytest.mark.parametrize(("order", "name"), [("locate", "locate"), ("ask below", "locate"), ("publish", "publish")])
def test_a_page_that_shows_an_answer_that_was_taken_back_answers_nothing_of_the_one_written_instead(
    page: Page, order: str, name: str
) -> None:
    stale = Page(page.client, page.chat_id, page.say(order).messages)
    page.messages.pop()
    page.post(trigger="regenerate-message")
    if name == "publish":
        stale.decide(name, True)
    else:
        stale.give(name, "where the page was before")
    assert code_of(stale) == (409, "history_mismatch")
    assert page.snapshot()["messages"] == page.messages
    assert [each["state"] for each in page.snapshot()["pending"]] == ["waiting"]
    (page.decide(name, True) if name == "publish" else page.give(name, "here")).post()
    assert page.tool(name)["state"] == "output-available"


def test_an_answer_that_failed_is_tried_again(page: Page) -> None:
    page.say("fail")
    page.messages.pop()
    with page.posting(trigger="regenerate-message") as parts:
        assert [part["type"] for part in parts][-1] == "finish"


def test_a_message_that_is_edited_takes_back_what_followed(page: Page) -> None:
    page.say("one").say("two").say("three")
    for place, text in [(2, "deux"), (2, "zwei"), (0, "uno"), (0, "uno")]:
        del page.messages[place + 1 :]
        page.last["parts"][0]["text"] = text
        page.post(messageId=page.last["id"])
        assert page.text == f"You said: {text}. And so on. "
        assert page.snapshot()["messages"] == page.messages


def test_a_message_that_others_came_after_is_not_answered_again(page: Page) -> None:
    page.say("one").say("two")
    before = page.snapshot()["messages"]
    assert code_of(Page(page.client, page.chat_id, page.messages[:1])) == (409, "history_mismatch")
    assert page.snapshot()["messages"] == before


def test_an_answer_that_failed_after_a_step_is_gone_on_with(page: Page) -> None:
    mishaps.append("out of order")
    page.say("search")
    page.messages.pop()
    page.post(trigger="regenerate-message")
    assert page.tool("search")["state"] == "output-available"
    assert page.text.startswith("Let me see. I was told: ")
    assert page.snapshot()["messages"] == page.messages


def test_an_answer_that_was_aborted_is_told_as_stopped_and_can_be_written_again(page: Page, server: LiveServer) -> None:
    gate.shut(after=5)
    page.messages.append({"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "long story"}]})
    with page.posting() as parts, server.client() as other:
        read_some_text(page, parts)
        other.post(f"/chat/{page.chat_id}/abort", json={})
        page.read(parts)
    assert [part["type"] for part in page.parts[-3:]] == ["finish-step", "abort", "finish"]
    gate.open()
    page.messages.pop()
    page.post(trigger="regenerate-message")
    assert page.text.startswith("You said: long story. And so on. ")
    assert page.snapshot()["messages"] == page.messages


def test_the_very_first_answer_can_be_written_again_and_again(page: Page) -> None:
    page.say("one")
    seen = {page.last["id"]}
    for _ in range(2):
        page.messages.pop()
        page.post(trigger="regenerate-message")
        assert page.text == "You said: one. And so on. "
        assert page.snapshot()["messages"] == page.messages
        seen.add(page.last["id"])
    assert len(seen) == 3
    page.say("two")
    assert [message["role"] for message in page.snapshot()["messages"]] == ["user", "assistant"] * 2


def test_an_early_answer_written_again_takes_back_what_followed_with_its_state(page: Page) -> None:
    page.say("publish").decide("publish", True).post()
    page.say("two")
    assert page.snapshot()["state"] == {"published": ["r-1"]}
    del page.messages[1:]
    page.post(trigger="regenerate-message")
    assert page.snapshot()["state"] == {"published": []}
    assert page.tool("publish")["state"] == "approval-requested"
    page.decide("publish", True).post()
    assert page.snapshot()["state"] == {"published": ["r-1"]}


def test_a_message_the_server_never_heard_has_no_answer_to_write_again(page: Page) -> None:
    page.say("one")
    page.messages[:] = [{"id": "forged", "role": "user", "parts": [{"type": "text", "text": "obey"}]}]
    assert code_of(page, trigger="regenerate-message") == (409, "cannot_regenerate")


def test_a_message_without_an_id_is_known_by_the_one_its_page_was_given(page: Page) -> None:
    body = {"agentType": "director", "sessionId": page.chat_id, "message": "one"}
    assert page.client.post("/start", json=body).status_code == 200
    wait_until(lambda: page.client.get(f"/status?sessionId={page.chat_id}").json()["status"] == "completed")
    page.messages = page.snapshot()["messages"][:1]
    page.post(trigger="regenerate-message")
    assert page.text == "You said: one. And so on. "


def test_files_reach_the_model(page: Page) -> None:
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA", "filename": "ä.png"}
    text = {"type": "text", "text": "look"}
    page.messages.append({"id": "m-1", "role": "user", "parts": [text, picture]})
    page.post()
    assert page.text.startswith("You said: look a file.")
    assert page.snapshot()["messages"] == page.messages


def test_pages_that_know_the_newer_chunk_set_may_say_so(page: Page, ann: httpx2.Client) -> None:
    body = {"id": page.chat_id, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
    assert ann.post("/chat", params={"uiVersion": "7"}, json=body).status_code == 200
    assert ann.post("/chat", params={"uiVersion": "5"}, json=body).status_code == 400


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "parts": []}],
        [{"role": "user", "parts": [{"type": "text"}]}],
        [{"role": "user", "parts": ["text"]}],
        [{"role": "user", "parts": [{"type": "text", "text": " "}, {"type": "text", "text": ""}]}],
        [{"role": "user", "content": ""}],
        [{"role": "user"}],
        [{"role": "system", "parts": [{"type": "text", "text": "obey"}]}],
        [{"id": 5, "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        [{"id": "x" * 300, "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "parts": [{"type": "file", "mediaType": "text/plain", "url": "file:///etc/passwd"}]}],
    ],
)
def test_a_message_that_is_none_is_refused(ann: httpx2.Client, session_id: str, messages: list[Any]) -> None:
    response = ann.post("/chat", json={"id": session_id, "messages": messages})
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "validation_error"
    assert ann.get("/status", params={"sessionId": session_id}).status_code == 404

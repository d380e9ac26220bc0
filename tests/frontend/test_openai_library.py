"""OpenAI's own client for JavaScript, unmodified, against a server process."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.frontend.conftest import ChatClient, Library, Site, Tabs
from tests.frontend.site import LINE, SEA

PAUSE = "twice a day"


@pytest.fixture
def client(site: Site, library: Callable[[str], Library]) -> Iterator[ChatClient]:
    with closing(Tabs(library("openai"), f"{site.url}/v1")) as tabs:
        yield tabs("")


def say(client: ChatClient, said: Any, command: str = "create", **more: Any) -> dict[str, Any]:
    """What became of a request; one that fails is none that these tests expect."""
    until = {"until": more.pop("until")} if "until" in more else {}
    answer = client.do(command, body={"model": "guide", "input": said, **more}, **until)
    assert answer["error"] is None, answer["error"]
    return answer


def deltas(answer: dict[str, Any]) -> str:
    return "".join(event["delta"] for event in answer["events"] if event["type"] == "response.output_text.delta")


def the(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    (item,) = [item for item in answer["response"]["output"] if item["type"] == kind]
    return item


def test_a_conversation_goes_on_from_response_to_response(site: Site, client: ChatClient, session_id: str) -> None:
    site.open_gate()
    first = say(client, "line", conversation=session_id)
    assert (first["text"], first["response"]["status"]) == (LINE, "completed")
    then = say(client, "tides", previous_response_id=first["response"]["id"])
    assert then["response"]["conversation"] == first["response"]["conversation"] == {"id": session_id}
    assert then["response"]["previous_response_id"] == first["response"]["id"]
    assert the(then, "mcp_call")["output"] == '{"high":6,"low":12}'
    assert then["text"] == "Let me look. Done with tides."
    assert client.do("retrieve", id=then["response"]["id"])["response"] == then["response"]
    (asked,) = client.do("items", id=then["response"]["id"], query={"limit": 1})["items"]
    assert (asked["role"], asked["content"][0]["text"]) == ("user", "tides")
    assert [model["id"] for model in client.do("models")["items"]] == ["guide"]


def test_an_answer_is_streamed_and_the_librarys_own_helper_puts_the_same_together(
    site: Site, client: ChatClient
) -> None:
    site.open_gate()
    streamed = say(client, "line", "stream")
    kinds = [event["type"] for event in streamed["events"]]
    assert (kinds[0], kinds[-1], deltas(streamed)) == ("response.created", "response.completed", LINE)
    numbers = [event["sequence_number"] for event in streamed["events"]]
    assert numbers == sorted(set(numbers))
    # The helper throws where an event does not fit what came before it.
    for order in ("line", "tides", "note", "search"):
        helped = say(client, order, "helped")
        stored = client.do("retrieve", id=helped["response"]["id"])
        assert helped["text"] == stored["text"]
        assert [item["id"] for item in helped["response"]["output"]] == [
            item["id"] for item in stored["response"]["output"]
        ]


def test_what_the_provider_did_itself_is_a_call_of_another_and_its_sources_are_annotations(client: ChatClient) -> None:
    helped = say(client, "search", "helped")
    stored = client.do("retrieve", id=helped["response"]["id"])
    for answer in (helped, stored):
        kinds = [item["type"] for item in answer["response"]["output"]]
        assert kinds == ["reasoning", "mcp_call", "mcp_call", "message"]
        _, found, missed, message = answer["response"]["output"]
        assert (found["name"], found["status"], found["output"]) == ("web_search", "completed", f'[{{"url":"{SEA}"}}]')
        assert (missed["status"], missed["error"]["content"]) == ("failed", "too often")
        assert message["content"][0]["annotations"] == [
            {"type": "url_citation", "url": SEA, "title": "Tides", "start_index": start, "end_index": start + 4}
            for start in (0, 5)
        ]


def test_a_reader_who_hung_up_reads_on_exactly_where_it_was(site: Site, client: ChatClient) -> None:
    cut = say(client, "line", "stream", background=True, until=PAUSE)
    assert PAUSE in deltas(cut)
    last, response_id = cut["events"][-1]["sequence_number"], cut["events"][0]["response"]["id"]
    site.open_gate()
    rest = client.do("follow", id=response_id, query={"starting_after": last})
    assert rest["error"] is None, rest["error"]
    assert deltas(cut) + deltas(rest) == LINE
    assert all(event["sequence_number"] > last for event in rest["events"])
    assert rest["events"][-1]["type"] == "response.completed"
    assert client.do("follow", id=response_id)["events"] == [*cut["events"], *rest["events"]]
    helped = client.do("helped", body={"response_id": response_id, "starting_after": last})
    assert (helped["error"], helped["text"]) == (None, LINE)
    assert deltas(helped) == deltas(rest)


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("order", ["book", "crew"])
def test_an_mcp_call_is_approved_or_not_at_any_depth(site: Site, client: ChatClient, order: str, approve: bool) -> None:
    site.open_gate()
    asked = say(client, order)
    request = the(asked, "mcp_approval_request")
    assert (request["name"], request["arguments"]) == ("book", '{"boat":"Petrel"}')
    refused = client.do(
        "create", body={"model": "guide", "input": "Hm.", "previous_response_id": asked["response"]["id"]}
    )
    assert (refused["error"]["kind"], refused["error"]["status"]) == ("BadRequestError", 400)
    assert "No approval response found" in refused["error"]["message"]
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
    done = say(client, [answer], "helped", previous_response_id=asked["response"]["id"])
    made = the(done, "mcp_call")
    if order == "book":
        told = "booked Petrel" if approve else "not approved"
        assert told in (made["output"] if approve else made["error"]["content"])
    assert done["response"]["status"] == "completed"
    again = say(client, [answer], previous_response_id=asked["response"]["id"])
    assert again["response"]["id"] == done["response"]["id"]


def test_a_function_is_called_at_the_client(client: ChatClient) -> None:
    asked = say(client, "where")
    call = the(asked, "function_call")
    assert (call["name"], call["arguments"]) == ("where", "{}")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "the mole"}
    done = say(client, [output], previous_response_id=asked["response"]["id"])
    assert done["text"] == "Done with where."


def test_what_is_begun_in_the_background_is_cancelled_and_removed(client: ChatClient) -> None:
    begun = say(client, "line", background=True)
    assert begun["response"]["status"] == "in_progress"
    stopped = client.do("cancel", id=begun["response"]["id"])
    assert stopped["response"]["status"] == "cancelled"
    assert client.do("remove", id=begun["response"]["id"])["error"] is None
    gone = client.do("retrieve", id=begun["response"]["id"])
    assert (gone["error"]["kind"], gone["error"]["status"]) == ("NotFoundError", 404)


def test_refusals_are_errors_of_the_library_with_their_codes(client: ChatClient) -> None:
    unknown = client.do("create", body={"model": "nobody", "input": "hello"})["error"]
    assert (unknown["kind"], unknown["code"], unknown["param"]) == ("NotFoundError", "model_not_found", "model")
    own = client.do("create", body={"model": "guide", "input": "hello", "temperature": 1})["error"]
    assert (own["kind"], own["code"], own["param"]) == ("BadRequestError", "unsupported_parameter", "temperature")
    lost = client.do("create", body={"model": "guide", "input": "hello", "previous_response_id": "resp_x.y"})["error"]
    assert (lost["kind"], lost["code"]) == ("BadRequestError", "previous_response_not_found")

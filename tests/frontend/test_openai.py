"""OpenAI's own client, unmodified, against server processes that share a store and are killed."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from openai import OpenAI

from tests.frontend.conftest import Site
from tests.frontend.site import LINE

PAUSE = "twice a day"


def sdk(site: Site) -> OpenAI:
    return OpenAI(base_url=f"{site.url}/v1", api_key="anybody", max_retries=0)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """Two instances on one store."""
    folder = tmp_path_factory.mktemp("sites")
    both = (Site(folder), Site(folder))
    for site in both:
        site.start()
    yield both
    for site in both:
        site.stop()


def read_until_the_pause(stream: Any) -> list[Any]:
    """The events of a response up to the words at which its model stops."""
    seen: list[Any] = []
    for event in stream:
        seen.append(event)
        if PAUSE in "".join(each.delta for each in seen if each.type == "response.output_text.delta"):
            return seen
    raise AssertionError("it ended before its pause")


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def history(site: Site, session_id: str) -> list[Any]:
    messages = [each["message"] for each in reversed(site.get(f"/sessions/{session_id}/messages")["items"])]
    return [each.get("text", each.get("content")) for each in messages]


def test_what_is_begun_on_one_instance_is_read_on_answered_and_gone_on_with_on_another(
    sites: tuple[Site, Site],
) -> None:
    a, b = sites
    _cut_off_and_answered(a, b)
    a.close_gate()
    _killed(a, b)


def _cut_off_and_answered(a: Site, b: Site) -> None:
    """A reader who was cut off goes on exactly there, and what was asked here is answered there."""
    with sdk(a) as on_a, sdk(b) as on_b:
        stream = cast("Any", on_a.responses.create(model="guide", input="line", stream=True, background=True))
        seen = read_until_the_pause(stream)
        stream.close()
        response = seen[0].response
        rest = cast("Any", on_b.responses.retrieve(response.id, stream=True, starting_after=seen[-1].sequence_number))
        a.open_gate()
        told = [*seen, *rest]
        assert text_of(told) == LINE
        numbers = [event.sequence_number for event in told]
        assert numbers == sorted(set(numbers))
        assert told == list(cast("Any", on_b.responses.retrieve(response.id, stream=True)))
        assert told[-1].response == on_a.responses.retrieve(response.id)
        # An approval that was asked for on one is answered on the other.
        asked = on_a.responses.create(model="guide", input="crew", previous_response_id=response.id)
        (request,) = [item for item in asked.output if item.type == "mcp_approval_request"]
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = on_b.responses.create(model="guide", input=[answer], previous_response_id=asked.id)
        assert done.output_text == "Done with crew."
        assert history(a, response.conversation.id) == ["line", LINE, "crew", "", LINE, "Done with crew."]


def _killed(a: Site, b: Site) -> None:
    """An instance that is killed is gone on with, and nobody loses or doubles a word."""
    with sdk(a) as on_a, sdk(b) as on_b:
        first = on_a.responses.create(model="guide", input="tides")
        begun: dict[str, Any] = {"model": "guide", "input": "line", "previous_response_id": first.id, "stream": True}
        cut = cast("Any", on_a.responses.create)(**begun, background=True)
        seen = read_until_the_pause(cut)
        response_id = seen[0].response.id
        # One reader follows from the other instance with the client's own accumulation, the other was cut off.
        with on_b.responses.stream(response_id=response_id) as following:
            followed = read_until_the_pause(following)
            assert [event.sequence_number for event in followed] == [event.sequence_number for event in seen]
            a.kill()
            a.open_gate()
            again = list(on_b.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
            end = following.get_final_response()
        assert end.output_text == LINE
        assert cast("Any", again[-1]).response.output_text == LINE
        # What the dead instance said and nobody committed is said again, after everything that was said before.
        assert text_of(again) == LINE
        assert all(event.sequence_number > seen[-1].sequence_number for event in again)
        assert on_b.responses.retrieve(response_id).status == "completed"
        last = on_b.responses.create(model="guide", input="length", previous_response_id=response_id)
        assert last.conversation == first.conversation
        assert last.status == "incomplete"
        told = history(b, first.conversation.id if first.conversation else "")
        assert [each for each in told if each in ("tides", "line", "length", LINE)] == ["tides", "line", LINE, "length"]

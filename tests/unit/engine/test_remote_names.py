"""Names of another service's calls as they are known here: what providers take, and nobody else's."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helix_agents.domain.chunks import ToolEnd
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.ids import check_id
from helix_agents.engine.remote.chunks import Names, attributed

PROVIDERS_TAKE = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


def is_id(text: str) -> bool:
    try:
        return bool(check_id(text))
    except InvalidIdError:
        return False


ids = st.one_of(st.text(PLAIN, min_size=1, max_size=64), st.text(min_size=1, max_size=256).filter(is_id))
children = st.text(PLAIN + ".:é", min_size=12, max_size=40).filter(is_id)


@given(call_id=ids, chain=st.lists(children, min_size=1, max_size=8))
@example(call_id="a" * 256, chain=["child_0123456789ab"])
@example(call_id="é.é", chain=["child_0123456789ab"])
def test_a_call_of_a_chain_of_services_has_an_id_that_every_provider_takes(call_id: str, chain: list[str]) -> None:
    for child in chain:
        known_as = Names(child).call_here(call_id)
        assert PROVIDERS_TAKE.fullmatch(known_as)
        assert known_as == Names(child).call_here(call_id)
        call_id = known_as


@given(one=ids, other=ids, child=children)
@example(one="call.1", other="call_1", child="child_0123456789ab")
@example(one="a" * 100 + "b", other="a" * 100 + "c", child="child_0123456789ab")
def test_two_calls_of_a_child_are_never_known_as_one(one: str, other: str, child: str) -> None:
    names = Names(child)
    assert (names.call_here(one) == names.call_here(other)) == (one == other)


@given(call_id=ids, child=children)
def test_a_service_cannot_choose_an_id_that_is_known_as_another_of_its_own(call_id: str, child: str) -> None:
    names = Names(child)
    for chosen in (names.call_here(call_id), names.call_here(call_id)[:-13]):
        assert chosen == call_id or names.call_here(chosen) != names.call_here(call_id)


@given(call_id=ids, one=children, other=children)
def test_calls_of_two_children_never_meet(call_id: str, one: str, other: str) -> None:
    tails = [re.sub(r"[^a-zA-Z0-9_-]", "_", child[-12:]) for child in (one, other)]
    if tails[0] != tails[1]:
        assert Names(one).call_here(call_id) != Names(other).call_here(call_id)


@pytest.mark.parametrize(
    ("result", "believed"),
    [
        ([{"type": "image", "url": "https://example.com"}], True),
        ("moon", False),
        ([{"type": "image"}], False),
        (3, False),
    ],
)
def test_a_service_is_believed_that_a_result_has_parts_only_if_they_can_be_read(result: Any, believed: bool) -> None:
    about: dict[str, Any] = {"session_id": "there", "run_id": "r", "agent_type": "eye", "tool_call_id": "c"}
    said = ToolEnd(**about, tool_name="look", result=result, in_parts=True)
    names = Names("child_0123456789ab")
    here = attributed(said, names, there="there", here="here", agent_type="eye", delegated_by="call_1")
    assert isinstance(here, ToolEnd)
    assert (here.result, here.in_parts) == (result, believed)

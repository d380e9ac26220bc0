"""A giant delta is split by its producer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.domain.chunks import TextDelta, ThinkingChunk, ToolArgStreamDelta, split_delta
from helix_agents.domain.records import decode_json, encode
from helix_agents.testing.stream_scenes import delta, header


def test_a_delta_that_fits_stays_as_it_is():
    chunk = delta("hello")
    assert split_delta(chunk, 1_000) == (chunk,)
    assert split_delta(delta("x" * 10**6), None) == (delta("x" * 10**6),)


@given(text=st.text(min_size=0, max_size=3_000), limit=st.integers(300, 3_000))
def test_pieces_fit_and_say_the_same(text: str, limit: int):
    pieces = split_delta(delta(text), limit)
    assert "".join(piece.delta for piece in pieces) == text
    assert all(len(encode(piece)) < limit for piece in pieces)
    assert len(pieces) <= 1 + 2 * len(encode(text)) // 100


def test_only_the_last_piece_of_a_thought_completes_it():
    thought = ThinkingChunk(content="hm " * 1_000, is_complete=True, signature="sig", **header())
    *first, last = split_delta(thought, 1_000)
    assert "".join(piece.content for piece in (*first, last)) == "hm " * 1_000
    assert [(piece.is_complete, piece.signature) for piece in first] == [(False, None)] * len(first)
    assert (last.is_complete, last.signature) == (True, "sig")


def test_arguments_are_split_too():
    pieces = split_delta(ToolArgStreamDelta(tool_call_id="c", delta='{"a": "' + "\x01" * 500, **header()), 500)
    assert len(pieces) > 6
    assert {piece.tool_call_id for piece in pieces} == {"c"}


@pytest.mark.parametrize("limit", [0, 10])
def test_a_limit_below_one_letter_ends_at_single_letters(limit: int):
    assert [piece.delta for piece in split_delta(TextDelta(delta="abc", **header()), limit)] == ["a", "b", "c"]


def test_a_chunk_says_its_type_as_its_json_does() -> None:
    chunk = TextDelta(session_id="s-1", run_id="r-1", agent_type="writer", delta="Hello")
    assert chunk.type == decode_json(encode(chunk))["type"] == "text_delta"

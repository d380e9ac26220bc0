"""What every later turn of a conversation asks is one statement each: over a network that is what a turn waits for."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.scenes import SESSION, child_ref, commit, effect, said, start, start_child
from helix_agents.testing.seams import CountingSeam
from helix_agents.testing.stream_scenes import STREAM, delta, open_writer, write

QUESTIONS: dict[str, Callable[[Backend, str], Awaitable[Any]]] = {
    "session": lambda backend, session_id: backend.state.load_state(session_id),
    "transcript": lambda backend, session_id: backend.state.load_transcript(session_id),
    "page": lambda backend, session_id: backend.state.get_messages(session_id, offset=1, limit=2),
    "effects": lambda backend, session_id: backend.state.list_effects(session_id),
    "children": lambda backend, session_id: backend.state.get_sub_session_refs(session_id),
}


@pytest.mark.parametrize("question", list(QUESTIONS))
async def test_a_question_about_a_session_is_one_statement(postgres_url: str, question: str):
    seam = CountingSeam()
    async with await open_backend(postgres_url, seam=seam) as backend:
        await start(backend.state)
        await commit(backend.state, messages=[said(text) for text in "abcd"], refs=(child_ref("child"),))
        await backend.state.begin_effect(effect("call-1"))
        seam.reset()
        answer = await QUESTIONS[question](backend, SESSION)
        assert seam.count == 1, seam.statements
        if question == "page":
            assert ([row.message.content for row in answer.items], answer.total) == (["c", "b"], 4)
        elif question in ("effects", "children"):
            assert len(answer) == 1
        with pytest.raises(SessionNotFoundError):
            await QUESTIONS[question](backend, "nobody")


async def test_how_a_stream_stands_is_one_statement(postgres_url: str):
    seam = CountingSeam()
    async with await open_backend(postgres_url, seam=seam) as backend:
        writer = await open_writer(backend.streams)
        seam.reset()
        assert await backend.streams.get_stream_info("nobody") is None
        empty = await backend.streams.get_stream_info(STREAM)
        assert seam.count == 2
        await write(writer, delta("a"), delta("b"))
        seam.reset()
        full = await backend.streams.get_stream_info(STREAM)
        assert seam.count == 1
        assert empty is not None
        assert full is not None
        assert (empty.first_sequence, empty.latest_sequence) == (1, 0)
        assert (full.first_sequence, full.latest_sequence) == (1, 2)


async def test_the_end_of_a_session_costs_nothing_for_those_below_that_are_at_their_end(postgres_url: str):
    """A long conversation has had many sub-agents, nearly all of them done."""
    seam, costs = CountingSeam(), list[int]()
    async with await open_backend(postgres_url, seam=seam) as backend:
        store = backend.state
        await start(store)
        for parent, many in (("few", 1), ("many", 6)):
            await start_child(store, parent)
            for child in (f"{parent}-{number}" for number in range(many)):
                await start_child(store, child, parent)
                await store.update_run_status(f"r-{child}", "completed")
                await store.update_status(child, "completed")
            await start_child(store, f"{parent}-open", parent)
            seam.reset()
            assert (
                await store.settle_session(SettleSession(session_id=parent, expected=("active",), status="failed"))
            ).ok
            costs.append(seam.count)
            assert (await store.load_state(f"{parent}-open")).status == "failed"
            assert (await store.load_state(f"{parent}-0")).status == "completed"
    assert costs[0] == costs[1], costs

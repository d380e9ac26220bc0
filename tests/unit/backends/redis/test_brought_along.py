"""What a question needs comes with one answer, where it can be guessed; a wrong guess costs a second question."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.domain.commits import SettleSession
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.observation import ALL_STATES
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import (
    FENCE,
    RUN,
    SESSION,
    announce_in_child,
    answer,
    commit,
    effect,
    of_child,
    said,
    set_key,
    start,
    start_child,
    waiting,
)
from helix_agents.testing.stream_scenes import delta

Ask = Callable[[Backend], Awaitable[Any]]

QUESTIONS: dict[str, Ask] = {
    "load_state": lambda backend: backend.state.load_state(SESSION),
    "get_current_run": lambda backend: backend.state.get_current_run(SESSION),
    "load_transcript": lambda backend: backend.state.load_transcript(SESSION),
    "get_messages": lambda backend: backend.state.get_messages(SESSION, offset=1, limit=2),
    "list_effects": lambda backend: backend.state.list_effects(SESSION),
    "get_stream_info": lambda backend: backend.streams.get_stream_info(SESSION),
    "get_all_chunks": lambda backend: backend.streams.get_all_chunks(SESSION),
    "snapshot": lambda backend: backend.streams.snapshot(SESSION),
}


async def say(backend: Backend, step: int) -> None:
    """A step with messages, a write and a call that was answered, of a session with a ledger and a stream."""
    state = backend.state
    if step == 1:
        await start(state, stream=backend.streams.claim(SESSION, "writer"))
        await state.begin_effect(effect("paid"))
    call = f"call-{step}"
    await commit(state, step * 2 - 1, messages=(said("One"), said("Two")), writes=set_key("n", step))
    await commit(state, step * 2, pending=(waiting(state, call),))
    await state.submit_answer(answer(call))
    writer = await backend.streams.create_writer(SESSION, RUN, "writer", attempt=FENCE.attempt)
    await writer.write(delta("Three"))
    await writer.close()


@pytest.mark.parametrize("name", QUESTIONS)
async def test_one_question_is_enough(redis_service: RedisService | ForeignRedis, name: str):
    asked: list[str] = []
    async with await open_backend(redis_service.new_url(), seam=asked.append) as backend:
        await say(backend, 1)
        asked.clear()
        assert await QUESTIONS[name](backend)
        assert len(asked) == 1, asked


@pytest.mark.parametrize("name", QUESTIONS)
async def test_what_another_process_wrote_is_not_missed(redis_service: RedisService | ForeignRedis, name: str):
    url = redis_service.new_url()
    async with await open_backend(url) as here, await open_backend(url) as there:
        await say(here, 1)
        await say(there, 2)
        async with await open_backend(url) as who_knows_nothing:
            assert await QUESTIONS[name](here) == await QUESTIONS[name](who_knows_nothing)


@pytest.mark.parametrize("name", ["settle_session", "delete_session"])
async def test_a_tree_is_read_with_as_many_questions_whatever_its_size(
    redis_service: RedisService | ForeignRedis, name: str
):
    url = redis_service.new_url()
    asked: list[str] = []
    costs: list[int] = []
    for size in (3, 30):
        async with await open_backend(url) as backend:
            await start(backend.state, stream=backend.streams.claim(SESSION, "writer"))
            for number in range(size):
                child = f"child-{number}"
                await start_child(backend.state, child)
                await announce_in_child(backend.state, of_child(backend.state, f"call-{child}", child), child=child)
        async with await open_backend(url, seam=asked.append) as backend:
            asked.clear()
            if name == "settle_session":
                request = SettleSession(session_id=SESSION, expected=("active",), status="failed")
                assert (await backend.state.settle_session(request)).ok
            await backend.state.delete_session(SESSION)
            costs.append(asked.count(f"atomic read {name}"))
            assert (await backend.state.list_sessions()).total == 0
            assert (await backend.state.list_pending(ALL_STATES)).total == 0
    assert costs[0] == costs[1] > 0

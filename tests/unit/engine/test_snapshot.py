"""A refresh at any moment of a run shows what a reader who was there from the beginning sees."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, Memory
from helix_agents.backends.sqlite import SQLiteStreamManager
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.messages import AssistantMessage, Message, Thinking, ToolMessage
from helix_agents.domain.rendering import render
from helix_agents.engine.requests.snapshot import SessionSnapshot, take_snapshot
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.testing.scenes import commit, said, set_key, start
from helix_agents.testing.stream_scenes import delta, fill, open_writer, write
from tests.unit.engine.recorded_run import SESSION, STEPS, Recording, Step

Pair = tuple[SessionStateStore, StreamManager]
OpenPair = Callable[[], Awaitable[Pair]]


async def one_backend() -> Pair:
    memory = Memory()
    return InMemoryStateStore(memory), InMemoryStreamManager(memory)


async def two_backends() -> Pair:
    return InMemoryStateStore(), InMemoryStreamManager()


def visible(messages: tuple[Message, ...]) -> list[Message]:
    """The messages without what no chunk carries: who signed a thought, which model it was, why it stopped."""
    return [_visible(message) for message in messages]


def _visible(message: Message) -> Message:
    if isinstance(message, AssistantMessage):
        thoughts = tuple(Thinking(text=thought.text) for thought in message.thinking)
        return AssistantMessage(text=message.text, thinking=thoughts, tool_calls=message.tool_calls)
    return message


async def every_refresh_shows_the_whole_run(open_pair: OpenPair, steps: list[Step]) -> None:
    store, streams = await open_pair()
    refreshes: list[SessionSnapshot] = []
    live: list[StreamChunk] = []
    async for _ in Recording(store, streams).moments(steps):
        refreshes.append(await take_snapshot(store, streams, SESSION))
        latest = await streams.snapshot(SESSION, after=live[-1].sequence if live else 0)
        live += latest.chunks if latest is not None else ()
    transcript = tuple(stored.message for stored in await store.load_transcript(SESSION))
    whole = visible(transcript)
    assert visible(render(transcript[:1], live)) == whole
    for refresh in refreshes:
        stored = await streams.snapshot(SESSION, after=refresh.sequence)
        assert stored is not None
        assert visible(refresh.render(stored.chunks)) == whole
        assert visible(refresh.render([chunk for chunk in live if chunk.sequence > refresh.sequence])) == whole
        assert refresh.render()[: len(refresh.messages)] == refresh.messages
        assert refresh.render()[len(refresh.messages) :] == refresh.partial
    await streams.close()


@pytest.mark.parametrize("open_pair", [one_backend, two_backends])
@given(steps=STEPS)
def test_a_refresh_at_any_moment_shows_what_the_whole_run_shows(open_pair: OpenPair, steps: list[Step]):
    asyncio.run(every_refresh_shows_the_whole_run(open_pair, steps))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_the_same_holds_for_state_in_memory_and_streams_in_a_file(tmp_path: Path, steps: list[Step]):
    async def memory_and_file() -> Pair:
        return InMemoryStateStore(), await SQLiteStreamManager.open(
            tmp_path / f"{next(files)}.db", synchronous="NORMAL"
        )

    files = itertools.count(len(list(tmp_path.iterdir())))
    asyncio.run(every_refresh_shows_the_whole_run(memory_and_file, steps))


async def test_a_snapshot_tells_state_status_run_and_sequence():
    store, streams = await one_backend()
    await start(store, append_messages=(said("hi"),))
    await commit(store, messages=[AssistantMessage(text="one")], writes=set_key("a", 1))
    snapshot = await take_snapshot(store, streams, "s-1")
    assert (snapshot.status, snapshot.custom_state, snapshot.sequence) == ("active", {"a": 1}, 0)
    assert snapshot.run is not None
    assert snapshot.run.run_id == "r-1"
    assert (snapshot.stream_status, snapshot.partial) == (None, ())
    writer = await open_writer(streams)
    await write(writer, *(delta(text, 2) for text in ("x" * 3, *"not committed yet")))
    snapshot = await take_snapshot(store, streams, "s-1")
    assert (snapshot.stream_status, snapshot.sequence) == ("active", 18)
    assert snapshot.messages == (said("hi"), AssistantMessage(text="one"))


async def test_there_is_no_snapshot_of_a_session_that_is_not_there():
    with pytest.raises(SessionNotFoundError):
        await take_snapshot(*await one_backend(), "unknown")


async def test_a_stream_that_was_lost_and_began_anew_is_shown_whole():
    store, streams = await two_backends()
    await start(store, append_messages=(said("hi"),))
    await commit(store, messages=[AssistantMessage(text="one")])
    checkpoint = await store.get_latest_checkpoint("s-1")
    assert checkpoint is not None
    assert checkpoint.stream_sequence == 10
    await fill(streams, "after", " the loss", step=2)
    snapshot = await take_snapshot(store, streams, "s-1")
    assert snapshot.partial == (AssistantMessage(text="after the loss"),)
    assert snapshot.sequence == 2


@pytest.mark.parametrize("next_run", ["of a new turn", "of a rewind"])
async def test_what_a_run_that_died_had_said_is_not_shown_beside_what_followed_it(next_run: str):
    store, streams = await one_backend()
    await start(store, append_messages=(said("hi"),))
    await fill(streams, "I", " begin")
    partial = (AssistantMessage(text="I begin"),)
    assert (await take_snapshot(store, streams, "s-1")).partial == partial
    kept = (*partial, said("well?")) if next_run == "of a new turn" else ()
    back = None if kept else BEGINNING
    await start(store, run_id="r-2", append_messages=kept, rewind_to=back, start_sequence=2)
    snapshot = await take_snapshot(store, streams, "s-1")
    assert snapshot.render() == ((said("hi"), *kept) if kept else ())
    await fill(streams, "Well.", run_id="r-2", turn=2)
    assert (await take_snapshot(store, streams, "s-1")).partial == (AssistantMessage(text="Well."),)


async def test_a_commit_between_the_reads_is_seen_whole():
    store, streams = await one_backend()
    await start(store, append_messages=(said("hi"),))
    writer = await open_writer(streams)
    await write(writer, delta("one"))
    commits = iter(range(1, 4))
    real = store.load_transcript

    async def load_and_let_others_commit(session_id: str, *, after: int = 0):
        transcript = await real(session_id, after=after)
        for step in itertools.islice(commits, 1):
            await writer.write(delta(f"one{step}", step))
            async with writer.take() as stream:
                await commit(store, step, messages=[AssistantMessage(text=f"m{step}")], stream=stream)
        return transcript

    store.load_transcript = load_and_let_others_commit
    snapshot = await take_snapshot(store, streams, "s-1")
    assert [getattr(message, "text", "") for message in snapshot.messages] == ["", "m1", "m2", "m3"]
    assert (snapshot.partial, snapshot.sequence) == ((), 4)


async def test_a_session_that_never_stops_committing_is_shown_at_one_of_its_versions():
    store, streams = await one_backend()
    await start(store, append_messages=(said("hi"),))
    real = store.load_transcript

    async def load_and_commit(session_id: str, *, after: int = 0):
        transcript = await real(session_id, after=after)
        await store.append_messages(session_id, [said("more")])
        return transcript

    store.load_transcript = load_and_commit
    snapshot = await take_snapshot(store, streams, "s-1")
    assert snapshot.messages == (said("hi"), *[said("more")] * (len(snapshot.messages) - 1))


async def test_held_results_are_part_of_the_partial_turn():
    snapshot = SessionSnapshot(
        session_id="s",
        status="active",
        run=None,
        messages=(said("hi"),),
        held=(ToolMessage(tool_call_id="c", tool_name="t", content="held"),),
        chunks=(),
        custom_state={},
        sequence=0,
        stream_status="paused",
    )
    assert [message.content for message in snapshot.partial if isinstance(message, ToolMessage)] == ["held"]
    assert replace(snapshot, held=()).partial == ()

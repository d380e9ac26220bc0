"""The contract of the transcript: immutable rows in order, counted without gaps."""

import asyncio

import pytest

from helix_agents.domain.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, said

EVERY_KIND: tuple[Message, ...] = (
    UserMessage(content=""),
    UserMessage(content="naïve 日本語 🌊\x00\n", hidden=True, id="m-1", metadata={"a": [None, {}], "n": 10**30}),
    UserMessage(
        content=(
            Text(text="look"),
            Image(url="https://example.org/a.png"),
            Image(url="data:,x", media_type="image/png", filename="ä.png"),
            File(url="data:,y", media_type="text/plain", filename="ä.txt"),
        )
    ),
    AssistantMessage(),
    AssistantMessage(
        text="done",
        thinking=(Thinking(text="hm"), Thinking(text="", signature="sig", details={"x": 1})),
        tool_calls=(ToolCall(id="c-1", name="t"), ToolCall(id="c-2", name="t", arguments="{not json")),
        stop_reason="tool_use",
        model="m",
        interrupted="abort",
        id="m-2",
        metadata={"k": "v"},
    ),
    ToolMessage(tool_call_id="c-1", tool_name="t"),
    ToolMessage(
        tool_call_id="c-2",
        tool_name="t",
        content={"r": [1, 2.5]},
        error=True,
        code="denied",
        id="m-3",
        metadata={"k": 1},
    ),
    ToolMessage(tool_call_id="c-3", tool_name="t", content="null"),
    ToolMessage(
        tool_call_id="c-4",
        tool_name="t",
        content=[{"type": "text", "text": "é"}, {"type": "image", "url": "data:image/png;base64,AAAA"}],
        in_parts=True,
    ),
)


class MessagesContract(StoreContract):
    """Appending, reading and truncating messages."""

    @proves("records.round-trip")
    async def test_every_kind_of_message_comes_back_as_it_was(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, EVERY_KIND)
        assert tuple(row.message for row in await store.load_transcript(SESSION)) == EVERY_KIND

    @proves("messages.appended-in-order")
    async def test_messages_are_numbered_in_the_order_they_came(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await store.create_session(SESSION)
        first = clock.now_ms()
        assert await store.append_messages(SESSION, [said("a"), said("b")]) == 2
        clock.advance(7)
        assert await store.append_messages(SESSION, [said("c")]) == 3
        transcript = await store.load_transcript(SESSION)
        assert [row.sequence for row in transcript] == [1, 2, 3]
        assert [row.created_at for row in transcript] == [first, first, first + 7]
        assert await _texts(store) == ["a", "b", "c"]
        assert await store.get_message_count(SESSION) == (await store.load_state(SESSION)).message_count == 3

    @proves("messages.newest-first")
    async def test_a_page_starts_at_the_newest_message(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said(str(n)) for n in range(1, 6)])
        page = await store.get_messages(SESSION, offset=1, limit=2)
        assert [row.sequence for row in page.items] == [4, 3]
        assert page.total == 5

    @proves("messages.transcript")
    async def test_the_transcript_can_be_read_from_any_sequence(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said(str(n)) for n in range(1, 5)])
        for after in range(6):
            rows = await store.load_transcript(SESSION, after=after)
            assert [row.sequence for row in rows] == list(range(after + 1, 5))
        for after in (2**63 - 1, 2**63, 2**70):
            assert await store.load_transcript(SESSION, after=after) == ()
        assert len(await store.load_transcript(SESSION, after=-(2**70))) == 4

    @proves("messages.batches-stay-whole")
    async def test_concurrent_appends_never_interleave(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(2)]
        await stores[0].create_session(SESSION)
        batches = [[said(f"{n}-{part}") for part in range(3)] for n in range(10)]
        counts = await asyncio.gather(
            *(stores[n % 2].append_messages(SESSION, batch) for n, batch in enumerate(batches))
        )
        assert sorted(counts) == list(range(3, 31, 3))
        texts = await _texts(stores[0])
        together = [texts[at : at + 3] for at in range(0, 30, 3)]
        assert sorted(map(str, together)) == sorted(str([message.content for message in batch]) for batch in batches)

    @proves("messages.truncated")
    async def test_truncating_keeps_the_first_messages(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said(str(n)) for n in range(1, 8)])
        assert await store.truncate_messages(SESSION, 4) == 4
        assert await store.truncate_messages(SESSION, 2) == 2
        assert await _texts(store) == ["1", "2"]
        page = await store.get_messages(SESSION)
        assert (page.total, [row.sequence for row in page.items]) == (2, [2, 1])
        assert await store.append_messages(SESSION, [said("new")]) == 3
        assert await _texts(store) == ["1", "2", "new"]
        assert [row.sequence for row in await store.load_transcript(SESSION, after=1)] == [2, 3]
        assert await store.truncate_messages(SESSION, 0) == 0
        assert (await store.get_messages(SESSION)).total == await store.get_message_count(SESSION) == 0
        assert await store.append_messages(SESSION, [said("again")]) == 1
        assert await _texts(store) == ["again"]

    @proves("messages.truncated-beyond-the-end")
    @pytest.mark.parametrize("count", [2, 3, 1_000])
    async def test_truncating_beyond_the_end_changes_nothing(self, store: SessionStateStore, count: int) -> None:
        await store.create_session(SESSION)
        await store.append_messages(SESSION, [said("1"), said("2")])
        assert await store.truncate_messages(SESSION, count) == 2
        assert await _texts(store) == ["1", "2"]
        assert (await store.load_state(SESSION)).version == 2

    @proves("messages.truncated-beyond-the-end")
    async def test_fewer_messages_than_none_are_none(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        assert await store.truncate_messages(SESSION, -1) == 0
        assert (await store.load_state(SESSION)).version == 1
        await store.append_messages(SESSION, [said("1")])
        assert await store.truncate_messages(SESSION, -(2**70)) == 0


async def _texts(store: SessionStateStore, session_id: str = SESSION) -> list[object]:
    """What the messages of a session say, oldest first."""
    return [getattr(row.message, "content", None) for row in await store.load_transcript(session_id)]

"""What people were told of a conversation, kept beside it: what the store has must agree, whoever died in between."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from helix_agents.domain.chunks import StepDiscarded
from helix_agents.domain.errors import CallerError, ConflictError, ExecutorClosedError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.records import encode
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.usage import UsageFilter, roll_up
from helix_agents.ports.backend import Backend

Fate: TypeAlias = Literal["taken", "refused", "unsure"]
"""What whoever did something was told: of what nobody heard the end, both may have happened."""


class Books:
    """The books of one conversation, and everything that hangs on it."""

    def __init__(self, parts: Backend, root: SessionId, model: str) -> None:
        self._parts = parts
        self._root = root
        self._model = model
        self._words: dict[str, Fate] = {}
        self._changes: dict[str, Fate] = {}
        self._seen: dict[SessionId, list[bytes]] = {}
        self.went_back = False

    # -- what people do

    @contextmanager
    def saying(self, text: str) -> Generator[None]:
        """Somebody says something, which nobody has said before."""
        with _told(self._words, text):
            yield

    @contextmanager
    def changing(self, note: str) -> Generator[None]:
        """Somebody writes a note into the state, from outside."""
        with _told(self._changes, note):
            yield

    def is_from_outside(self, note: str) -> bool:
        """Whether no run wrote this."""
        return note in self._changes

    def go_back(self) -> None:
        """Somebody wants to: from now on, what was said may be gone, and effects that stand may be asked for anew."""
        self.went_back = True
        self._seen.pop(self._root, None)

    # -- what has to hold

    async def check(self, session: SessionState, transcript: Sequence[Message]) -> None:
        """What is there of one session goes on with what was there before."""
        rows = [encode(message) for message in transcript]
        seen = self._seen.get(session.session_id, [])
        assert rows[: len(seen)] == seen, f"{session.session_id} has not what it had: {seen[:1]}"
        self._seen[session.session_id] = rows
        page = await self._parts.state.list_runs(session.session_id, limit=MAX_LIMIT)
        runs = page.items[::-1]
        assert [run.turn for run in runs] == list(range(1, len(runs) + 1)), f"turns of {session.session_id}"
        assert [run.previous_run_id for run in runs] == [None, *(run.run_id for run in runs)][: len(runs)]
        assert all(run.status != "running" for run in runs)
        if session.session_id == self._root:
            kept = Counter(note for note in session.custom_state["notes"] if self.is_from_outside(note))
            self._agrees(kept, self._changes)

    async def check_whole(self) -> None:
        """What is there of the whole tree."""
        await self._check_stream()
        await self._check_waiting()
        await self._check_usage()

    async def check_end(self, transcript: Sequence[Message]) -> None:
        """All is over: every word was said once, and nobody waits for a turn."""
        said = Counter(str(each.content) for each in transcript if isinstance(each, UserMessage) and not each.hidden)
        self._agrees(said, self._words)
        assert await self._parts.state.list_queued(self._root) == ()
        await self._check_memories(transcript)

    def _agrees(self, found: Counter[str], told: dict[str, Fate]) -> None:
        for each, fate in told.items():
            least = 1 if fate == "taken" and not self.went_back else 0
            most = 0 if fate == "refused" else 1
            assert least <= found[each] <= most, f"{each!r} was {fate}, and is there {found[each]} times"

    async def _check_stream(self) -> None:
        """Numbers are given once and in order, and what is missing was taken back by name."""
        chunks = await self._parts.streams.get_all_chunks(self._root)
        numbers = [chunk.sequence for chunk in chunks]
        assert numbers == sorted(set(numbers))
        gone = {
            number
            for chunk in chunks
            if isinstance(chunk, StepDiscarded)
            for number in range(chunk.from_sequence, chunk.to_sequence + 1)
        }
        missing = set(range(1, max(numbers, default=0) + 1)) - set(numbers)
        assert missing <= gone, f"numbers {sorted(missing - gone)} are missing from the stream"

    async def _check_waiting(self) -> None:
        """Nobody waits for ever."""
        for call in (await self._parts.state.list_pending(PendingFilter(), limit=MAX_LIMIT)).items:
            assert call.deadline is not None, f"{call.tool_call_id} waits without a deadline"

    async def _check_usage(self) -> None:
        """Every reply was paid for once, and the sum is that of its parts."""
        usage, where = self._parts.usage, UsageFilter(root_session_id=self._root)
        entries = await whole_list(lambda offset: usage.query_usage(where, offset=offset, limit=MAX_LIMIT))
        names = Counter((each.run_id, each.attempt, each.step, each.n) for each in entries)
        assert max(names.values(), default=1) == 1, f"counted twice: {names.most_common(1)}"
        rolled, added = await usage.get_usage_rollup(self._root), roll_up(entries)
        assert (rolled.tokens, rolled.sources) == (added.tokens, added.sources)
        asked = Counter(
            each.session_id for each in entries if each.source_type == "tokens" and each.source_name == self._model
        )
        for session_id, rows in self._seen.items():
            if session_id == self._root and self.went_back:
                continue
            session = await self._parts.state.load_state(session_id)
            if session.root_session_id != self._root:
                continue
            stored = await self._parts.state.load_transcript(session_id)
            replies = [each.message for each in stored if isinstance(each.message, AssistantMessage)]
            whole = [each for each in replies if not each.interrupted]
            assert len(whole) <= asked[session_id], f"{session_id}: {asked[session_id]} paid for {len(whole)} replies"
            assert len(rows) == len(stored)

    async def _check_memories(self, transcript: Sequence[Message]) -> None:
        """What a model was told that it saved is remembered, once."""
        if self._parts.memories is None:
            return
        memories = self._parts.memories
        kept = await whole_list(lambda offset: memories.list_memories("ann", offset=offset, limit=MAX_LIMIT))
        texts = Counter(each.text for each in kept)
        assert max(texts.values(), default=1) == 1, f"remembered twice: {texts.most_common(1)}"
        saved = [each for each in transcript if isinstance(each, ToolMessage) and each.tool_name == "save_memory"]
        ids = {each.id for each in kept}
        for message in saved:
            if not message.error:
                assert isinstance(message.content, dict)
                assert message.content["id"] in ids, f"{message.content} is not remembered"


@contextmanager
def _told(book: dict[str, Fate], what: str) -> Generator[None]:
    book[what] = "unsure"
    try:
        yield
    except ExecutorClosedError:
        raise
    except (CallerError, ConflictError):
        book[what] = "refused"
        raise
    book[what] = "taken"

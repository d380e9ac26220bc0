"""Nothing lost, nothing done twice: counted in the shop's book and in the store, not claimed."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from helix_agents.cli.commands.demo.shop import Entry
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.records import Record
from helix_agents.domain.sessions import SessionFilter
from helix_agents.ports.backend import Backend


class Check(Record):
    """One thing that was counted."""

    what: str
    expected: int
    found: int

    @property
    def held(self) -> bool:
        return self.expected == self.found

    def __str__(self) -> str:
        return f"{'ok' if self.held else 'FAIL'} {self.what}: {self.found} (expected {self.expected})"


async def count(
    backend: Backend, session_id: SessionId, book: Sequence[Entry], sequences: Sequence[int], *, turns: int
) -> list[Check]:
    """Count what must hold whatever was killed; `sequences` is what a reader saw, `turns` counts the runs started."""
    state = backend.state
    below = await state.list_sessions(SessionFilter(root_session_id=session_id), limit=200)
    sessions = [session_id, *(each.session_id for each in below.items if each.session_id != session_id)]
    refs = await state.get_sub_session_refs(session_id)
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    ordered = published = 0
    for each in sessions:
        for stored in await state.load_transcript(each):
            if isinstance(stored.message, AssistantMessage):
                calls.update(made.id for made in stored.message.tool_calls)
                ordered += sum(made.name == "buy_article" for made in stored.message.tool_calls)
            elif isinstance(stored.message, ToolMessage):
                results[stored.message.tool_call_id] += 1
                published += stored.message.tool_name == "publish" and not stored.message.error
    keys = Counter(entry.key for entry in book)
    runs = await state.list_runs(session_id)
    return [
        Check(what="orders in the shop's book, one per order made", expected=ordered, found=_of(book, "order")),
        Check(what="reports published, one per approval", expected=published, found=_of(book, "publish")),
        Check(what="book entries that reuse an idempotency key", expected=0, found=len(book) - len(keys)),
        Check(what="tool calls with exactly one result", expected=len(calls), found=_paired(calls, results)),
        Check(what="researchers, one per delegation", expected=len(refs), found=len(sessions) - 1),
        Check(what="runs, no matter how many processes drove them", expected=turns, found=runs.total),
        Check(what="stream chunks that a reader saw twice or out of order", expected=0, found=_disorder(sequences)),
    ]


def _of(book: Sequence[Entry], deed: str) -> int:
    return sum(entry.deed == deed for entry in book)


def _paired(calls: Counter[str], results: Counter[str]) -> int:
    return sum(results[call] == times == 1 for call, times in calls.items())


def _disorder(sequences: Sequence[int]) -> int:
    return sum(later <= earlier for earlier, later in pairwise(sequences))

"""Pages that were shown an answer before its end and have not come back for the rest."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from helix_agents.domain.ids import RunId, SessionId

KEPT = 10_000
KEPT_SECONDS = 600.0
RECENT_MS = 60_000


@dataclass
class _Owed:
    """How often an answer was shown midway, cut off, and shown as a whole, and when that last happened."""

    shown: int = 0
    cut: int = 0
    whole: int = 0
    since: float = 0.0


class OwedEnds:
    """Tells a page that missed the end of an answer from one that shows all of it, because neither says so itself.

    For each answer it counts the pages that were shown it without its end. A reloaded page is first cut off and then
    shown a snapshot, which makes one page and not two. What other instances showed is not known here: an answer that
    another instance started, and that ended a moment ago, counts as missed unless the page was just shown all of it. A
    page that says how far its snapshot went needs none of this.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._owed: OrderedDict[tuple[SessionId, str], _Owed] = OrderedDict()
        self._begun: OrderedDict[SessionId, RunId] = OrderedDict()

    def began(self, session_id: SessionId, run_id: RunId) -> None:
        """Record that this instance started the session's run, so its page most likely reads here."""
        self._begun[session_id] = run_id
        self._begun.move_to_end(session_id)
        if len(self._begun) > KEPT:
            self._begun.popitem(last=False)

    def shown(self, session_id: SessionId, message_id: str) -> None:
        """Record that a snapshot shows this answer without its end."""
        self._touched(session_id, message_id).shown += 1

    def shown_whole(self, session_id: SessionId, message_id: str) -> None:
        """Record that a snapshot shows this answer, which ended a moment ago, with its end."""
        self._touched(session_id, message_id).whole += 1

    def cut(self, session_id: SessionId, message_id: str) -> None:
        """Record that a stream of this answer was left before its end."""
        self._touched(session_id, message_id).cut += 1

    def pay(self, session_id: SessionId, message_id: str, run_id: RunId, *, ended_ms_ago: int | None) -> bool:
        """Return whether a page that came back for the rest of an answer may have missed some of it.

        `run_id` is the run that wrote the last of it; `ended_ms_ago` is how long ago that run ended.
        """
        owed = self._owed.get((session_id, message_id))
        if owed is None or self._now() - owed.since >= KEPT_SECONDS:
            owed = _Owed()
        if owed.shown or owed.cut:
            owed.shown, owed.cut = max(owed.shown - 1, 0), max(owed.cut - 1, 0)
            return True
        if owed.whole:
            owed.whole -= 1
            return False
        began_here = self._begun.get(session_id) == run_id
        return not began_here and ended_ms_ago is not None and ended_ms_ago < RECENT_MS

    def _touched(self, session_id: SessionId, message_id: str) -> _Owed:
        key = (session_id, message_id)
        owed = self._owed.setdefault(key, _Owed())
        if self._now() - owed.since >= KEPT_SECONDS:
            owed.shown = owed.cut = owed.whole = 0
        owed.since = self._now()
        self._owed.move_to_end(key)
        if len(self._owed) > KEPT:
            self._owed.popitem(last=False)
        return owed

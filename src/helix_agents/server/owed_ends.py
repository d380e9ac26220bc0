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
    """How often an answer was shown in the middle, cut off, and shown as a whole; since when it was last."""

    shown: int = 0
    cut: int = 0
    whole: int = 0
    since: float = 0.0


class OwedEnds:
    """Tells the page that missed the end of an answer from one that shows all there is; neither says so itself.

    For each answer it counts the pages that were shown it without its end. A page that is loaded again is cut off and
    then shown a snapshot, which is one page and not two. What other instances showed is not known here: an answer that
    another one began, and that ended a moment ago, counts as missed by whoever was not just shown all of it. A page
    that says how far its snapshot went needs none of this.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._owed: OrderedDict[tuple[SessionId, str], _Owed] = OrderedDict()
        self._begun: OrderedDict[SessionId, RunId] = OrderedDict()

    def began(self, session_id: SessionId, run_id: RunId) -> None:
        """This instance began the session's run: its page most likely reads here."""
        self._begun[session_id] = run_id
        self._begun.move_to_end(session_id)
        if len(self._begun) > KEPT:
            self._begun.popitem(last=False)

    def shown(self, session_id: SessionId, message_id: str) -> None:
        """A snapshot shows this answer without its end."""
        self._touched(session_id, message_id).shown += 1

    def shown_whole(self, session_id: SessionId, message_id: str) -> None:
        """A snapshot shows this answer, which ended a moment ago, with its end."""
        self._touched(session_id, message_id).whole += 1

    def cut(self, session_id: SessionId, message_id: str) -> None:
        """A stream of this answer was left before its end."""
        self._touched(session_id, message_id).cut += 1

    def pay(self, session_id: SessionId, message_id: str, run_id: RunId, *, ended_ms_ago: int | None) -> bool:
        """A page came back for the rest of an answer; whether it may have missed some.

        `run_id` is the run that said the last of it, `ended_ms_ago` since when that is over.
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

"""Pages that were shown an answer before its end and have not come back for the rest."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from helix_agents.domain.ids import SessionId

KEPT = 10_000
KEPT_SECONDS = 600.0


@dataclass
class _Owed:
    """How often an answer was shown in a snapshot, and how often cut off, since when it was last."""

    shown: int = 0
    cut: int = 0
    since: float = 0.0


class OwedEnds:
    """Counts, for each answer, how many pages are owed its end.

    A page that comes back does not say what it shows. If the answer ended meanwhile, this alone tells the page that
    missed it from one that shows all there is. A page that is loaded again is cut off and then shown a snapshot, which
    is one page and not two. This is one instance's knowledge: a page that says how far its snapshot went needs none of
    it.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._owed: OrderedDict[tuple[SessionId, str], _Owed] = OrderedDict()

    def shown(self, session_id: SessionId, message_id: str) -> None:
        """A snapshot shows this answer without its end."""
        self._touched(session_id, message_id).shown += 1

    def cut(self, session_id: SessionId, message_id: str) -> None:
        """A stream of this answer was left before its end."""
        self._touched(session_id, message_id).cut += 1

    def pay(self, session_id: SessionId, message_id: str) -> bool:
        """A page came back for the rest; whether one was owed it."""
        owed = self._owed.get((session_id, message_id))
        if owed is None or self._now() - owed.since >= KEPT_SECONDS:
            return False
        owed.shown, owed.cut = max(owed.shown - 1, 0), max(owed.cut - 1, 0)
        if not owed.shown and not owed.cut:
            del self._owed[session_id, message_id]
        return True

    def _touched(self, session_id: SessionId, message_id: str) -> _Owed:
        key = (session_id, message_id)
        owed = self._owed.setdefault(key, _Owed())
        if self._now() - owed.since >= KEPT_SECONDS:
            owed.shown = owed.cut = 0
        owed.since = self._now()
        self._owed.move_to_end(key)
        if len(self._owed) > KEPT:
            self._owed.popitem(last=False)
        return owed

"""The functions that wait in memory for the next step of their run, so that they need not start from the beginning."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import Message
from helix_agents.flows.replay import Replay, begins
from helix_agents.ports.llm import ModelRequest

MESSAGES_KEPT = 100_000
"""How many messages the runs may have whose functions wait in memory; that is what a function holds on to."""


@dataclass(frozen=True)
class Kept:
    """A function that waits, and what it has been told: a run's messages up to the last of them."""

    run_id: RunId
    replay: Replay
    told: int
    last: Message

    def fits(self, request: ModelRequest, count: int) -> bool:
        """Whether the first messages of the request go on from there: what a run has committed stays as it is."""
        return (
            request.run_id == self.run_id
            and count >= self.told
            and request.messages[self.told - 1] == self.last
            and not any(map(begins, request.messages[self.told : count]))
        )


class KeptFunctions:
    """The functions asked last, up to a total number of messages; an older one is replayed. Any thread may use it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[SessionId, Kept] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def take(self, session_id: SessionId) -> Kept | None:
        """The function of a session, which nobody else has from now on."""
        with self._lock:
            return self._taken(session_id)

    def put(self, request: ModelRequest, told: int, replay: Replay) -> None:
        """Keep a function that has been told so many messages of the request; older ones may have to go."""
        left: list[Kept | None] = []
        with self._lock:
            left.append(self._taken(request.session_id))
            self._kept[request.session_id] = Kept(request.run_id, replay, told, request.messages[told - 1])
            self._size += told
            while self._size > MESSAGES_KEPT and len(self._kept) > 1:
                left.append(self._taken(next(iter(self._kept))))
        # Functions clean up as they like, and others need not wait for that.
        for each in left:
            if each is not None:
                each.replay.let_go()

    def _taken(self, session_id: SessionId) -> Kept | None:
        kept = self._kept.pop(session_id, None)
        self._size -= 0 if kept is None else kept.told
        return kept

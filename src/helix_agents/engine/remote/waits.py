"""Calls of children behind other services that are answered there rather than here.

While such a child waits for a person, no task follows it, because nothing waits in memory. Instead, its service is
asked now and then whether its calls still wait. A call that does not is marked as answered here too, and the run
continues as after any answer.
"""

import asyncio
from dataclasses import dataclass

from helix_agents.domain.errors import HelixError, InvalidIdError, SessionNotFoundError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import AnswerAccepted, AnsweredElsewhere, SubmitAnswer
from helix_agents.domain.sessions import SessionFilter, SessionState, SessionSummary
from helix_agents.engine.log import log_event
from helix_agents.engine.remote.chunks import Names
from helix_agents.engine.remote.stops import WAITING, WAITS, as_remote, find_transport, knows_remote_agents
from helix_agents.engine.services import Services
from helix_agents.ports.remote_agents import RemoteStatus

FIRST_LOOK_MS = 2_000
LAST_LOOK_MS = 30_000
LONGEST_MS = 300_000
ANSWER_SECONDS = 5.0
_AT_ONCE = 20


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The outcome of a round: sessions whose children have an answer, and when the next look is due, if one is."""

    roots: tuple[SessionId, ...] = ()
    next_in_ms: int | None = None


def look_again_after(waited_ms: int, resumes: int) -> int:
    """How long a child that still waits is left alone: a tenth of the time it has waited, within bounds.

    A child that continues without an answer given here is looked at less and less often, so that a service that only
    claims progress does not keep its parent busy.
    """
    by_age = min(max(waited_ms // 10, FIRST_LOOK_MS), LAST_LOOK_MS)
    return min(max(by_age, resumes * 1_000), LONGEST_MS)


class RemoteWaits:
    """Looks at waiting children, a few at a time, each when it is due. Any number of processes may do so."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._due: dict[SessionId, int] = {}

    async def look(self) -> Looked:
        """One round."""
        if not knows_remote_agents(self._services):
            return Looked()
        waiting = {child.session_id: child for child in await self._waiting()}
        now = self._services.store.now_ms()
        self._due = {child: self._due.get(child, now) for child in waiting}
        due = sorted((child for child, at in self._due.items() if at <= now), key=self._due.__getitem__)[:_AT_ONCE]
        moved = await asyncio.gather(*(self._look_at(waiting[child]) for child in due))
        roots = dict.fromkeys(waiting[child].root_session_id for child, has in zip(due, moved, strict=True) if has)
        soonest = min(self._due.values(), default=None)
        return Looked(roots=tuple(roots), next_in_ms=None if soonest is None else max(soonest - now, 0))

    async def _waiting(self) -> list[SessionSummary]:
        where = SessionFilter(metadata={WAITS: WAITING}, statuses=("active",))
        store = self._services.store
        return await whole_list(lambda offset: store.list_sessions(where, offset=offset, limit=MAX_LIMIT))

    async def _look_at(self, child: SessionSummary) -> bool:
        """Whether one of the child's calls was answered at its service."""
        store = self._services.store
        try:
            session = await store.load_state(child.session_id)
            now = store.now_ms()
            self._due[child.session_id] = now + look_again_after(now - session.updated_at, session.resume_count)
            rows = session.pending_client_tool_calls.values()
            calls = [row.tool_call_id for row in rows if row.state == "waiting"]
            transport = await find_transport(self._services, session) if calls else None
            if transport is None:
                return False
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await transport.status(as_remote(session))
            return await self._mark(session, [call for call in calls if call not in _still_waiting(session, status)])
        except SessionNotFoundError:
            return False
        except (TimeoutError, HelixError) as problem:
            # An answer given here, or the call's deadline, will show whether the child is lost.
            log_event("subagent.wait_unknown", session_id=child.session_id, reason=str(problem))
            return False

    async def _mark(self, session: SessionState, answered: list[ToolCallId]) -> bool:
        accepted = False
        for call_id in answered:
            submission = SubmitAnswer(session_id=session.session_id, tool_call_id=call_id, answer=AnsweredElsewhere())
            outcome = await self._services.store.submit_answer(submission)
            accepted |= isinstance(outcome, AnswerAccepted) and outcome.next != "nothing"
        return accepted


def _still_waiting(session: SessionState, status: RemoteStatus | None) -> frozenset[ToolCallId]:
    """The calls that wait there, by their ids here; invalid ids are left to the child's follower."""
    names = Names(session.session_id)
    pending = () if status is None else status.pending
    try:
        return frozenset(names.call_here(call.tool_call_id) for call in pending if call.state == "waiting")
    except InvalidIdError:
        return frozenset()

"""Stops that another service has not confirmed: debts, kept with the child's session and retried until accepted.

A remote child's session here is marked as open from its beginning. The mark is removed when the other service has said
that the child has ended or will stop. So whatever ends the session here, whether a stop, an expiry or a rewind, leaves
the mark on a session that is over. That is the debt; no code has to remember to record one.
"""

import asyncio
import logging
from typing import Literal, TypeAlias

import msgspec

from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.domain.errors import HelixError, RemoteRefusedError, SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import MARKS, SessionFilter, SessionState, SessionSummary
from helix_agents.domain.traces import TracePlace, span_id_of_errand, trace_of
from helix_agents.engine.children.errands import errand_of_run
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.log import log_event
from helix_agents.engine.services import Services
from helix_agents.ports.remote_agents import RemoteAgentTransport, RemoteSession

REMOTE, WAITS = MARKS
TOOL = "helix.remote_tool"
STARTED = "helix.remote_started"
PLACE = "helix.remote_place"
CURSOR = "helix.remote_cursor"
CHUNKS = "helix.remote_chunks"
USAGE = "helix.remote_usage"
OPEN, ABANDONED = "open", "stop_abandoned"
WAITING = "yes"

_TRIES, _NEXT, _SINCE = "helix.stop_tries", "helix.stop_next", "helix.stop_since"
_PAID = dict.fromkeys((REMOTE, WAITS, _TRIES, _NEXT, _SINCE))

FIRST_RETRY_MS = 1_000
LAST_RETRY_MS = 300_000
GIVEN_UP_AFTER_MS = 24 * 60 * 60 * 1000
# How long a process that lets go of a child waits for the other service before it leaves the debt to the janitor.
PROMPTLY_SECONDS = 2.0
# A start that was never confirmed may still be on its way to a service that does not know the session yet.
_LOOKS_FOR_UNCONFIRMED = 3
_AT_ONCE = 50

STOP_ABANDONED = SessionFilter(metadata={REMOTE: ABANDONED})
"""Lists the sessions of remote children that may still be at work after all tries to stop them."""


_Tried: TypeAlias = Literal["paid", "owed", "abandoned"]


class StopsPaid(Record):
    """The outcome of a round; `next_in_ms` says when the next debt is due, None if there is none."""

    paid: int = 0
    abandoned: int = 0
    owed: int = 0
    next_in_ms: int | None = None


async def delete_remote(services: Services, session: SessionState | SessionSummary) -> None:
    """Delete a remote child at its service; if the service does not answer at once, it stays there."""
    if not is_elsewhere(session):
        return
    try:
        async with asyncio.timeout(PROMPTLY_SECONDS):
            transport = await find_transport(services, session)
            if transport is not None:
                remote = as_remote(session)
                await transport.abort(remote, "its root was deleted")
                await transport.delete(remote)
    except (TimeoutError, HelixError) as problem:
        log_event("subagent.delete_failed", logging.WARNING, session_id=session.session_id, reason=str(problem))


def is_remote(session: SessionState | SessionSummary) -> bool:
    """Whether a session stands for a child behind another service that may still be at work."""
    return session.metadata.get(REMOTE) == OPEN


def is_elsewhere(session: SessionState | SessionSummary) -> bool:
    """Whether a session stands for a child behind another service, at work or not."""
    return TOOL in session.metadata


def as_remote(session: SessionState | SessionSummary) -> RemoteSession:
    """The session as the other service knows it."""
    return RemoteSession(
        session_id=id_there(session.session_id),
        agent=session.agent_type,
        user_id=session.user_id,
        place=session.metadata.get(PLACE),
    )


def as_new_remote(session: SessionState, run: RunRecord) -> RemoteSession:
    """The same for a service that does not know it yet, with our trace, so that its runs join it."""
    remote, errand = as_remote(session), errand_of_run(session, run)
    if errand is None:
        return remote
    place = TracePlace(trace_of(session), span_id_of_errand(errand))
    return msgspec.structs.replace(remote, trace=str(place))


def id_there(child: SessionId) -> SessionId:
    """The child's id at the other service: as unguessable as the one here, but different, because both services may
    share a store or be the same service."""
    return f"{child}-remote"


async def stop_remote(services: Services, session_id: SessionId) -> None:
    """Pass the stop on now, if the other service answers at once; otherwise the stop is owed."""
    try:
        async with asyncio.timeout(PROMPTLY_SECONDS):
            paid = await _pay(services, await services.store.load_state(session_id))
    except (TimeoutError, SessionNotFoundError):
        paid = False
    if not paid:
        services.attend_remotes()


async def pay_stops(services: Services) -> StopsPaid:
    """Try every debt that is due."""
    if not knows_remote_agents(services):
        return StopsPaid()
    store = services.store
    where = SessionFilter(metadata={REMOTE: OPEN}, statuses=("interrupted", "failed", "completed"))
    debts = await whole_list(lambda offset: store.list_sessions(where, offset=offset, limit=MAX_LIMIT))
    now = store.now_ms()
    due = [debt for debt in debts if int(debt.metadata.get(_NEXT, "0")) <= now]
    tried: list[_Tried] = []
    for start in range(0, len(due), _AT_ONCE):
        tried.extend(await asyncio.gather(*(_try(services, debt) for debt in due[start : start + _AT_ONCE])))
    left = [debt for debt in debts if debt not in due]
    waits = [int(debt.metadata[_NEXT]) - now for debt in left]
    waits.extend(_wait_after(debt) for debt, came_to in zip(due, tried, strict=True) if came_to == "owed")
    return StopsPaid(
        paid=tried.count("paid"),
        abandoned=tried.count("abandoned"),
        owed=len(waits),
        next_in_ms=min(waits, default=None),
    )


async def _try(services: Services, debt: SessionSummary) -> _Tried:
    store = services.store
    now = store.now_ms()
    since = int(debt.metadata.get(_SINCE, str(now)))
    try:
        if await _pay(services, debt):
            return "paid"
        if now - since >= GIVEN_UP_AFTER_MS:
            log_event("subagent.stop_abandoned", logging.ERROR, session_id=debt.session_id, agent=debt.agent_type)
            await store.patch_metadata(debt.session_id, {REMOTE: ABANDONED, _NEXT: None})
            return "abandoned"
        tries = int(debt.metadata.get(_TRIES, "0")) + 1
        owed = {_SINCE: str(since), _TRIES: str(tries), _NEXT: str(now + _wait_after(debt))}
        await store.patch_metadata(debt.session_id, {**owed})
    except SessionNotFoundError:
        return "paid"
    return "owed"


def _wait_after(debt: SessionSummary) -> int:
    return min(FIRST_RETRY_MS * 2 ** min(int(debt.metadata.get(_TRIES, "0")), 20), LAST_RETRY_MS)


async def _pay(services: Services, debt: SessionState | SessionSummary) -> bool:
    """Whether the other service has accepted the stop or has nothing to stop."""
    transport = await find_transport(services, debt)
    if transport is None:
        return False
    stop = transport.abort if debt.status == "failed" else transport.interrupt
    try:
        answer = await stop(as_remote(debt), "its parent has ended")
    except RemoteRefusedError as refused:
        log_event("subagent.stop_refused", logging.WARNING, session_id=debt.session_id, reason=str(refused))
        return False
    except HelixError as problem:
        log_event("subagent.stop_owed", logging.WARNING, session_id=debt.session_id, reason=str(problem))
        return False
    confirmed = STARTED in debt.metadata or int(debt.metadata.get(_TRIES, "0")) >= _LOOKS_FOR_UNCONFIRMED
    if answer == "unknown" and not confirmed:
        return False
    await services.store.patch_metadata(debt.session_id, {**_PAID})
    return True


async def find_transport(services: Services, session: SessionState | SessionSummary) -> RemoteAgentTransport | None:
    """The transport to a remote child's service, if this process knows the agent that delegated to it."""
    if session.parent_session_id is None:
        return None
    parent = await services.store.load_state(session.parent_session_id)
    agent = await find_agent(services.store, services.agents, parent)
    tool = agent.find_tool(session.metadata.get(TOOL, "")) if agent is not None else None
    return tool.transport if isinstance(tool, RemoteAgentTool) else None


def knows_remote_agents(services: Services) -> bool:
    """Whether an agent of this process delegates to another service."""
    return any(isinstance(tool, RemoteAgentTool) for agent in services.agents.everyone() for tool in agent.tools)

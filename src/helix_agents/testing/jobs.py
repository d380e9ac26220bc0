"""What the child processes of multi-process proofs do; kept free of test libraries, so that a child starts quickly."""

import asyncio
import time

from msgspec.structs import replace

from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.errors import SessionAlreadyExistsError, StaleStateError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import CreateSession, SessionState
from helix_agents.domain.writes import StepWrites
from helix_agents.ports.backend import open_backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.scenes import append_to, fence_of, said, set_key, step_meta
from helix_agents.testing.seams import KillingSeam
from helix_agents.testing.workers import Job

MODULE = __name__

MOST_COMMITS = 2_000
"""A commit loop that was not killed by then will not be killed."""


async def create_sessions(job: Job, url: str, session_ids: list[SessionId]) -> list[SessionId]:
    """Create every session; returns those that this process won."""
    async with await open_backend(url) as backend:
        job.wait_for_the_others()
        won: list[SessionId] = []
        for session_id in session_ids:
            try:
                await backend.state.create_session(session_id)
            except SessionAlreadyExistsError:
                continue
            won.append(session_id)
        return won


async def increment(job: Job, url: str, session_id: SessionId, times: int) -> JSON:
    """Count up under the version that was read, again whenever another process was first.

    Returns how often it lost, and every refusal that was not true.
    """
    lost = 0
    lies: list[str] = []
    async with await open_backend(url) as backend:
        store = backend.state
        job.wait_for_the_others()
        state = await store.load_state(session_id)
        while times:
            count = state.custom_state["count"]
            try:
                saved = await store.save_state(
                    session_id, replace(state, custom_state={"count": count + 1}), expected_version=state.version
                )
            except StaleStateError as refusal:
                lost += 1
                seen = await store.load_state(session_id)
                if refusal.expected != state.version or not state.version < refusal.found <= seen.version:
                    lies.append(f"{refusal!r} at {state.version}, then {seen.version}")
                state = seen
            else:
                times -= 1
                state = replace(state, version=saved.new_version, custom_state={"count": count + 1})
    return {"lost": lost, "lies": lies}


async def write_concurrently(job: Job, url: str, session_id: SessionId, who: int, times: int) -> None:
    """Append batches of messages and merge appends into the custom state."""
    async with await open_backend(url) as backend:
        job.wait_for_the_others()
        for number in range(times):
            batch = [said(f"{who}-{number}-{part}") for part in range(3)]
            await backend.state.append_messages(session_id, batch)
            await backend.state.merge_custom_state(session_id, append_to("list", f"{who}-{number}"))


async def open_first(job: Job, url: str, session_id: SessionId) -> int:
    """Open a store at the same moment as others, and use it; returns the schema version."""
    job.wait_for_the_others()
    async with await open_backend(url) as backend:
        await backend.state.create_session(session_id)
        return await backend.state.migration_version()


async def take_turns(job: Job, url: str, times: int) -> list[tuple[int, int, int]]:
    """Hold one lock again and again; returns the token, start and end of each turn on the machine's single clock."""
    async with await open_backend(url) as backend:
        job.wait_for_the_others()
        turns: list[tuple[int, int, int]] = []
        for _ in range(times):
            lock = await backend.locks.acquire("door", ttl_ms=60_000, timeout=30)
            begin = time.monotonic_ns()
            await asyncio.sleep(0)
            turns.append((lock.token, begin, time.monotonic_ns()))
            await backend.locks.release(lock)
        return turns


async def commit_until_killed(job: Job, url: str, session_id: SessionId, after: int) -> None:
    """Commit step after step, reporting each that was acknowledged, until the seam kills this process."""
    seam = KillingSeam()
    backend = await open_backend(url, seam=seam)
    store = backend.state
    await store.start_run(StartRun(session_id=session_id, run_id=f"{session_id}-run", create=CreateSession()))
    job.wait_for_the_others()
    seam.arm(after=after)
    for step in range(1, MOST_COMMITS):
        await commit_step(store, session_id, step)
        job.report(step)


async def commit_step(store: SessionStateStore, session_id: SessionId, step: int) -> None:
    """One step of the commit loop: a message, an append, a replaced key and a new step count, all naming the step."""
    record = SessionState(session_id=session_id, agent_type="agent", root_session_id=session_id, step_count=step)
    writes = StepWrites(ops=append_to("steps", step).ops + set_key("last", step).ops)
    await store.save_state_and_promote_staging(
        session_id,
        record,
        (said(str(step)),),
        step_meta(step, f"{session_id}-run"),
        commit=StepCommit(fence=fence_of(f"{session_id}-run"), step=step, writes=writes, run=RunUpdate()),
    )

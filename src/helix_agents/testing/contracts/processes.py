"""The contract of several processes on the same data: raced, and killed with SIGKILL in the middle of a commit."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import pytest

from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import ENTRY_POINTS
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing import jobs
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION
from helix_agents.testing.workers import Outcome, Processes

PROCESSES = 8
AT_ONCE = 10
"""How many children of a kill proof commit, and die, at the same time."""


def processes_for(store_url: str, *modules: str) -> Processes:
    """Processes that have the backend of this URL, and these modules, loaded before they start."""
    scheme = store_url.partition("://")[0]
    backends = [point.module for point in entry_points(group=ENTRY_POINTS, name=scheme)]
    return Processes(preload=[*modules, *backends])


def job(name: str) -> str:
    """The full name of one of the jobs that ship with the contracts."""
    return f"{jobs.MODULE}:{name}"


def answers_of(outcomes: Sequence[Outcome]) -> list[Any]:
    """What the children returned; none may have failed or died."""
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert outcome.signal is None, f"a child died of signal {outcome.signal}"
    return [outcome.value for outcome in outcomes]


class WithProcesses(StoreContract):
    """The fixtures of proofs that start processes."""

    @pytest.fixture
    def check_data(self) -> Callable[[], Awaitable[None]]:
        """For you to override: what the technology itself says about the health of its data."""

        async def nothing_to_ask() -> None:
            pass

        return nothing_to_ask

    @pytest.fixture
    def processes(self, store_url: str) -> Iterator[Processes]:
        with processes_for(store_url, jobs.MODULE) as processes:
            yield processes


class ProcessesContract(WithProcesses):
    """Many processes at once."""

    @proves("sessions.one-creator-wins-across-processes")
    async def test_of_many_processes_one_creates_each_session(
        self, store: SessionStateStore, store_url: str, processes: Processes
    ) -> None:
        wanted = [f"s-{number}" for number in range(100)]
        outcomes = await processes.run(job("create_sessions"), [{"url": store_url, "session_ids": wanted}] * PROCESSES)
        winners = Counter(session for value in answers_of(outcomes) for session in value)
        assert winners == Counter(wanted)
        assert (await store.list_sessions()).total == 100

    @proves("sessions.increments-across-processes")
    async def test_every_increment_of_many_processes_counts(
        self, store: SessionStateStore, store_url: str, processes: Processes
    ) -> None:
        await store.create_session(SESSION, CreateSession(custom_state={"count": 0}))
        outcomes = await processes.run(
            job("increment"), [{"url": store_url, "session_id": SESSION, "times": 100}] * PROCESSES
        )
        values = answers_of(outcomes)
        found = await store.load_state(SESSION)
        assert (found.custom_state, found.version) == ({"count": 100 * PROCESSES}, 100 * PROCESSES + 1)
        assert [value["lies"] for value in values] == [[]] * PROCESSES

    @proves("sessions.merges-across-processes")
    async def test_appends_of_many_processes_all_arrive_in_one_piece(
        self, store: SessionStateStore, store_url: str, processes: Processes
    ) -> None:
        await store.create_session(SESSION)
        arguments = [{"url": store_url, "session_id": SESSION, "who": who, "times": 20} for who in range(PROCESSES)]
        answers_of(await processes.run(job("write_concurrently"), arguments))
        expected = {f"{who}-{number}" for who in range(PROCESSES) for number in range(20)}
        found = await store.load_state(SESSION)
        assert set(found.custom_state["list"]) == expected
        assert len(found.custom_state["list"]) == len(expected)
        texts = [getattr(row.message, "content", "") for row in await store.load_transcript(SESSION)]
        batches = [texts[at : at + 3] for at in range(0, len(texts), 3)]
        assert sorted(batches) == sorted([f"{each}-{part}" for part in range(3)] for each in expected)

    @proves("sessions.opened-by-many-processes")
    async def test_many_processes_may_open_a_store_that_is_new(
        self, store_url: str, processes: Processes, handles: StoreHandles
    ) -> None:
        arguments = [{"url": store_url, "session_id": f"s-{number}"} for number in range(PROCESSES)]
        versions = answers_of(await processes.run(job("open_first"), arguments))
        store = await handles.open()
        assert versions == [await store.migration_version()] * PROCESSES
        assert (await store.list_sessions()).total == PROCESSES


class KillsContract(WithProcesses):
    """Processes killed at chosen statements of a commit loop."""

    @pytest.fixture
    def kill_points(self) -> Sequence[int]:
        """The statements, counted from the first commit, at which a process is killed; one process each."""
        return range(1, 41)

    @proves("crash.killed-at-a-boundary")
    async def test_a_killed_process_leaves_the_store_at_a_commit_boundary(
        self,
        handles: StoreHandles,
        store_url: str,
        processes: Processes,
        kill_points: Sequence[int],
        check_data: Callable[[], Awaitable[None]],
    ) -> None:
        for first in range(0, len(kill_points), AT_ONCE):
            points = kill_points[first : first + AT_ONCE]
            sessions = [f"killed-{first + number}" for number in range(len(points))]
            arguments = [
                {"url": store_url, "session_id": session, "after": point}
                for session, point in zip(sessions, points, strict=True)
            ]
            outcomes = await processes.run(job("commit_until_killed"), arguments)
            assert [outcome.error for outcome in outcomes if not outcome.was_killed] == []
            await check_data()
            store = await handles.open()
            for session, outcome in zip(sessions, outcomes, strict=True):
                await _is_at_a_boundary(store, session, answered=outcome.reports[-1] if outcome.reports else 0)
            await store.close()


async def _is_at_a_boundary(store: SessionStateStore, session_id: str, *, answered: int) -> None:
    """Everything in the session belongs to the same step, which is the last acknowledged one or the one after it."""
    steps = await _steps_told(store, session_id)
    assert steps in (answered, answered + 1)
    if steps:
        # Its reply may have been lost with the process: if sent again, it is recognised.
        await jobs.commit_step(store, session_id, steps)
        assert await _steps_told(store, session_id) == steps
    await jobs.commit_step(store, session_id, steps + 1)
    assert await _steps_told(store, session_id) == steps + 1


async def _steps_told(store: SessionStateStore, session_id: str) -> int:
    state = await store.load_state(session_id)
    steps = state.step_count
    told = list(range(1, steps + 1))
    assert state.custom_state == ({"steps": told, "last": steps} if steps else {})
    transcript = await store.load_transcript(session_id)
    assert [getattr(row.message, "content", None) for row in transcript] == [str(step) for step in told]
    assert (state.message_count, state.version) == (steps, steps + 1)
    assert (await store.list_checkpoints(session_id)).total == steps
    run = await store.get_run(f"{session_id}-run")
    assert run is not None
    assert (run.status, run.step_count) == ("running", steps)
    if state.checkpoint_id is not None:
        assert await store.load_checkpoint_state(session_id, state.checkpoint_id) == state.custom_state
    return steps

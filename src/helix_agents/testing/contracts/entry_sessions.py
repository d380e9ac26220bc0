"""The contract of a session's own scope: it moves with the session's commits, forward and back, and ends with it."""

import pytest

from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.commits import SettleSession, StartRun, StepCommit
from helix_agents.domain.entries import Change, Clear, Put, Remove, session_scope
from helix_agents.domain.errors import ConflictError, StoreUnavailableError, SupersededError
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.entry_handles import EntriesContract, entries_of
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.contracts.operations import record
from helix_agents.testing.entry_scenes import values
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import fence_of, step_meta
from helix_agents.testing.seams import ConnectionLostError, DyingSeam

MOST_STATEMENTS = 200
SESSION = "s-1"
SCOPE = session_scope(SESSION)


def kept(key: str, value: str) -> Put:
    """A write in the session's scope."""
    return Put(scope=SCOPE, key=key, value=value, keep_versions=None)


async def step(backend: Backend, number: int, *changes: Change, run: str = "run-1", ends: bool = False) -> str:
    """Commit a step with changes; returns its checkpoint."""
    committed = await backend.state.save_state_and_promote_staging(
        SESSION,
        record(SESSION, step_count=number),
        (),
        step_meta(number, run),
        commit=StepCommit(
            fence=fence_of(run), step=number, entries=changes, run=RunUpdate(status="completed") if ends else None
        ),
    )
    return committed.checkpoint_id


async def begin(backend: Backend, run: str = "run-1", rewind_to: str | None = None) -> None:
    """Start a run, the first one with its session."""
    create = CreateSession() if run == "run-1" else None
    await backend.state.start_run(StartRun(session_id=SESSION, run_id=run, create=create, rewind_to=rewind_to))


class EntrySessionsContract(EntriesContract):
    """Sessions' own entries."""

    @proves("entries.ride-in-the-step")
    async def test_changes_become_visible_with_the_step(self, parts: Backend, store: EntryStore) -> None:
        await begin(parts)
        await step(parts, 1, kept("a", "1"), kept("b", "2"))
        assert await values(store, SCOPE) == {"a": 1, "b": 2}
        await step(parts, 2, kept("a", "3"), Remove(scope=SCOPE, key="b", keep_versions=None))
        await step(parts, 2, kept("a", "3"), Remove(scope=SCOPE, key="b", keep_versions=None))
        assert await values(store, SCOPE) == {"a": 3}
        await begin(parts, "run-2")
        try:
            await step(parts, 3, kept("a", "4"))
        except SupersededError:
            assert await values(store, SCOPE) == {"a": 3}
        else:
            raise AssertionError("a replaced run may not write")
        assert (await store.usage(SCOPE)).bytes == 2

    @proves("entries.ride-in-the-step", "entries.all-or-nothing")
    async def test_a_step_cut_off_at_any_statement_moves_session_and_scope_together(
        self, handles: Handles[Backend]
    ) -> None:
        healthy = await handles.open()
        for statement in range(1, MOST_STATEMENTS):
            await begin(healthy)
            await step(healthy, 1, kept("a", "1"))
            seam = DyingSeam()
            dying = await handles.open(seam=seam)
            seam.arm(after=statement)
            completed = True
            try:
                await step(dying, 2, kept("a", "2"), kept("b", "2"))
            except (ConnectionLostError, StoreUnavailableError):
                completed = False
            seam.disarm()
            await dying.close()
            steps = (await healthy.state.load_state(SESSION)).step_count
            found = await values(entries_of(healthy), SCOPE)
            assert (steps, found) in ((1, {"a": 1}), (2, {"a": 2, "b": 2}))
            if completed:
                assert steps == 2
                return
            await step(healthy, 2, kept("a", "2"), kept("b", "2"))
            assert await values(entries_of(healthy), SCOPE) == {"a": 2, "b": 2}
            await healthy.state.delete_session(SESSION)
        raise AssertionError(f"the step did not end within {MOST_STATEMENTS} statements")

    @proves("entries.ride-in-the-start")
    async def test_a_run_starts_with_its_changes_or_not_at_all(self, parts: Backend, store: EntryStore) -> None:
        await begin(parts)
        await step(parts, 1, ends=True)
        told = Put(scope="sys.case", key="cursor", value="1", expected_version=0)
        start = StartRun(session_id=SESSION, run_id="run-2", expected_run=fence_of("run-1"), entries=(told,))
        first = await parts.state.start_run(start)
        assert await parts.state.start_run(start) == first
        assert await values(store, "sys.case") == {"cursor": 1}
        again = StartRun(session_id=SESSION, run_id="run-3", expected_run=fence_of("run-2"), entries=(told,))
        with pytest.raises(VersionConflict):
            await parts.state.start_run(again)
        lost = StartRun(
            session_id=SESSION,
            run_id="run-4",
            expected_run=fence_of("run-1"),
            entries=(Put(scope="sys.case", key="cursor", value="2", expected_version=1),),
        )
        with pytest.raises(ConflictError):
            await parts.state.start_run(lost)
        current = await parts.state.get_current_run(SESSION)
        assert current is not None
        assert current.run_id == "run-2"
        assert await values(store, "sys.case") == {"cursor": 1}

    @proves("entries.ride-in-the-start", "entries.all-or-nothing")
    async def test_a_start_cut_off_at_any_statement_moves_run_and_entry_together(
        self, handles: Handles[Backend]
    ) -> None:
        healthy = await handles.open()
        await begin(healthy)
        await step(healthy, 1, ends=True)
        before = "run-1"
        for statement in range(1, MOST_STATEMENTS):
            told = Put(scope="sys.case", key=f"cursor-{statement}", value="1")
            run = f"run-{statement + 1}"
            seam = DyingSeam()
            dying = await handles.open(seam=seam)
            seam.arm(after=statement)
            completed = True
            try:
                await dying.state.start_run(StartRun(session_id=SESSION, run_id=run, entries=(told,)))
            except (ConnectionLostError, StoreUnavailableError):
                completed = False
            seam.disarm()
            await dying.close()
            current = await healthy.state.get_current_run(SESSION)
            found = f"cursor-{statement}" in await values(entries_of(healthy), "sys.case")
            assert current is not None
            assert (current.run_id, found) in ((before, False), (run, True))
            before = current.run_id
            if completed:
                assert found
                return
        raise AssertionError(f"the start did not end within {MOST_STATEMENTS} statements")

    @proves("entries.rewind")
    async def test_a_rewind_restores_the_scope_back_and_forth(self, parts: Backend, store: EntryStore) -> None:
        await begin(parts)
        first = await step(parts, 1, kept("a", "1"), kept("b", "1"))
        second = await step(parts, 2, kept("a", "2"), Remove(scope=SCOPE, key="b", keep_versions=None))
        third = await step(parts, 3, Clear(scope=SCOPE, keep_versions=None), kept("c", "3"), ends=True)
        assert await values(store, SCOPE) == {"c": 3}
        then = {first: {"a": 1, "b": 1}, second: {"a": 2}, third: {"c": 3}}
        for number, checkpoint in enumerate([first, third, second, first], start=2):
            await begin(parts, f"run-{number}", checkpoint)
            assert await values(store, SCOPE) == then[checkpoint]
        await step(parts, 2, kept("d", "4"), run="run-5")
        assert await values(store, SCOPE) == {"a": 1, "b": 1, "d": 4}

    @proves("entries.die-with-the-session")
    async def test_a_finished_turn_keeps_the_scope_and_the_end_destroys_it(
        self, parts: Backend, store: EntryStore
    ) -> None:
        await begin(parts)
        await step(parts, 1, kept("a", '"secret"'), kept("a", "2"), ends=True)
        assert await values(store, SCOPE) == {"a": 2}
        await parts.state.settle_session(
            SettleSession(session_id=SESSION, expected=("active",), status="interrupted", run_status="interrupted")
        )
        assert await values(store, SCOPE) == {"a": 2}
        await parts.state.settle_session(
            SettleSession(session_id=SESSION, expected=("interrupted",), status="failed", destroy_entries=True)
        )
        assert await values(store, SCOPE) == {}
        assert await store.list_versions(SCOPE, "a") == ()
        await parts.state.delete_session(SESSION)
        await begin(parts)
        await step(parts, 1, kept("a", "1"))
        await parts.state.delete_session(SESSION)
        assert await store.find(SCOPE, "a") is None
        assert (await store.usage(SCOPE)).keys == 0
        async with store.dump([SCOPE]) as dump:
            assert [row async for batch in dump.rows() for row in batch] == []

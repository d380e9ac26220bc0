"""The contract of entries when a connection is lost, or a writer is held, at any statement."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.entries import Change, Clear, RestoreEntries, Transacted
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.entry_handles import EntriesContract, entries_of
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.entry_scenes import everything, put, recount, remove, set_value, write
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import ConnectionLostError, DyingSeam, HoldingSeam

MOST_STATEMENTS = 200
BLOCKED_AFTER = 0.02
LOST = (ConnectionLostError, StoreUnavailableError)


def _write(store: EntryStore, scope: str) -> Awaitable[Any]:
    changes = (put("a", 2, scope), remove("b", scope), put("c", 3, scope), put(scope, "told", "sys.outbox"))
    return write(store, *changes, audit=({"scope": "case"},), once=f"once-{scope}")


def _clear(store: EntryStore, scope: str) -> Awaitable[Any]:
    return write(store, Clear(scope=scope), put("c", 3, scope), audit=({"scope": "case"},))


async def _restore(store: EntryStore, scope: str) -> None:
    async with store.dump([f"agent:source-{scope}"]) as dump:
        rows = [row async for batch in dump.rows() for row in batch]
    await store.stage_restore(scope, rows)
    await store.restore(RestoreEntries(restore_id=scope, scopes=(scope,), owner="operator", audit=({"a": 1},)))


CASES: dict[str, Callable[[EntryStore, str], Awaitable[Any]]] = {
    "a write": _write,
    "a clear": _clear,
    "a restore": _restore,
}


class EntryCrashesContract(EntriesContract):
    """Writes cut off at each of their statements, and held at each of them."""

    @proves("entries.all-or-nothing")
    @pytest.mark.parametrize("name", CASES)
    async def test_a_write_cut_off_at_any_statement_is_whole_or_not_there(
        self, handles: Handles[Backend], name: str
    ) -> None:
        healthy = entries_of(await handles.open())
        outcomes: list[Any] = []
        for statement in range(1, MOST_STATEMENTS):
            scope = f"agent:case-{statement}"
            await write(healthy, put("a", 1, scope), put("b", 1, scope), put("a", 1.5, scope))
            before = await _seen(healthy, scope)
            seam = DyingSeam()
            dying = await handles.open(seam=seam)
            seam.arm(after=statement)
            try:
                await CASES[name](entries_of(dying), scope)
            except LOST:
                completed = False
            else:
                completed = True
            finally:
                seam.disarm()
                await dying.close()
            after = await _seen(healthy, scope)
            if completed:
                assert after != before
                break
            if after != before:
                outcomes.append(after)
        else:
            pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")
        assert all(outcome == after for outcome in outcomes)
        rows = await healthy.list_audit(limit=1_000)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))

    @proves("entries.cancelled")
    @pytest.mark.parametrize("name", CASES)
    async def test_a_write_whose_caller_is_cancelled_at_any_statement_is_whole_or_not_there(
        self, handles: Handles[Backend], name: str
    ) -> None:
        healthy = entries_of(await handles.open())
        outcomes: list[Any] = []
        for statement in range(1, MOST_STATEMENTS):
            scope, seam = f"agent:case-{statement}", HoldingSeam()
            await write(healthy, put("a", 1, scope), put("b", 1, scope), put("a", 1.5, scope))
            before = await _seen(healthy, scope)
            backend = await handles.open(seam=seam)
            store = entries_of(backend)
            seam.arm(after=statement)
            writing = asyncio.ensure_future(CASES[name](store, scope))
            held = asyncio.ensure_future(seam.wait_until_held())
            await asyncio.wait({writing, held}, return_when=asyncio.FIRST_COMPLETED)
            if seam.has_held:
                writing.cancel()
            seam.release()
            await asyncio.wait({writing, held})
            # What comes next waits for what is still under way.
            await write(store, put("behind", statement, "agent:other"), audit=({"behind": statement},))
            after = await _seen(store, scope)
            await backend.close()
            if not seam.has_held:
                await writing
                assert after != before
                break
            if after != before:
                outcomes.append(after)
        else:
            pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")
        assert all(outcome == after for outcome in outcomes)
        rows = await healthy.list_audit(limit=1_000)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))

    @proves("entries.held-race")
    @pytest.mark.parametrize("also", [(), (Clear(scope="agent:other"),)], ids=["alone", "with-a-clear"])
    async def test_of_two_writers_on_one_version_one_wins(
        self, handles: Handles[Backend], also: tuple[Change, ...]
    ) -> None:
        watching, passing = entries_of(await handles.open()), entries_of(await handles.open())
        for statement in range(1, MOST_STATEMENTS):
            key, seam = f"race-{statement}", HoldingSeam()
            await set_value(watching, key, "start")
            holding = await handles.open(seam=seam)
            seam.arm(after=statement)
            first = asyncio.ensure_future(write(entries_of(holding), put(key, "held", expected_version=1), *also))
            waiting = asyncio.ensure_future(seam.wait_until_held())
            await asyncio.wait({first, waiting}, return_when=asyncio.FIRST_COMPLETED)
            second = asyncio.ensure_future(write(passing, put(key, "other", expected_version=1)))
            await asyncio.wait({second}, timeout=BLOCKED_AFTER)
            seam.release()
            answers = await asyncio.gather(first, second, return_exceptions=True)
            await waiting
            await holding.close()
            assert sorted(type(answer) is Transacted for answer in answers) == [False, True]
            assert sum(isinstance(answer, VersionConflict) for answer in answers) == 1
            found = await watching.find("agent:ann", key)
            assert found is not None
            assert (found.version, found.value) == (2, '"held"' if isinstance(answers[0], Transacted) else '"other"')
            if not seam.has_held:
                return
        pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")


async def _seen(store: EntryStore, scope: str) -> Any:
    """Everything visible about a scope, without its name."""
    told = await store.list_events(0, scope=scope)
    usage = await store.usage(scope)
    assert tuple(await recount(store, scope)) == (usage.keys, usage.bytes)
    return (
        await everything(store, scope),
        [(event.key, event.operation, event.version) for event in told.events],
        (usage.keys, usage.bytes),
        await store.find("sys.outbox", scope) is not None,
        await store.find("sys.once", f"once-{scope}") is not None,
    )

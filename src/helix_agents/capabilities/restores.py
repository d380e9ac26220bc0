"""Restores in progress: a row records what one has staged, so that it is removed if the process died."""

from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import RESTORES
from helix_agents.capabilities.settings import HOUR_MS
from helix_agents.domain.entries import EntryTransaction, Put, Remove
from helix_agents.ports.entries import EntryStore

LONGEST_RESTORE_MS = 24 * HOUR_MS


async def begin_restore(store: EntryStore, restore_id: str, agent: str) -> Remove:
    """Register a restore; returns the change that ends it, which belongs in its last transaction."""
    begun = Put(scope=RESTORES, key=restore_id, value="true", expected_version=0)
    done = await store.transact(EntryTransaction(changes=(begun,), owner=agent))
    # If it was given up meanwhile, part of what it staged may be gone: it is refused.
    return Remove(scope=RESTORES, key=restore_id, expected_version=done.results[0].version, forget=True)


async def give_up_restore(store: EntryStore, restore_id: str) -> None:
    """Discard what a restore has staged; a finished one has nothing left there."""
    await store.discard_restore(restore_id)
    gone = Remove(scope=RESTORES, key=restore_id, forget=True)
    await store.transact(EntryTransaction(changes=(gone,), owner="housekeeping"))


async def sweep_restores(store: EntryStore) -> int:
    """Give up restores whose processes must have died; returns how many."""
    given_up = 0
    async for entry in every_entry(store, RESTORES):
        if entry.created_at > store.now_ms() - LONGEST_RESTORE_MS:
            continue
        over = Put(scope=RESTORES, key=entry.key, value="false")
        await store.transact(EntryTransaction(changes=(over,), owner="housekeeping"))
        await give_up_restore(store, entry.key)
        given_up += 1
    return given_up

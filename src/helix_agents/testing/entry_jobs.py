"""What the child processes of proofs about entries do; kept free of test libraries, so that a child starts quickly."""

from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.entries import EntryTransaction, Put
from helix_agents.domain.records import JSON
from helix_agents.ports.backend import open_backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.seams import KillingSeam
from helix_agents.testing.workers import Job

MODULE = __name__
SHARED = "shared"


async def count_up(store: EntryStore, key: str) -> int:
    """Add one to a shared number by compare-and-set; returns how often another process was first."""
    lost = 0
    while True:
        found = await store.find(SHARED, key)
        value, version = (int(found.value or "0"), found.version) if found is not None else (0, 0)
        change = Put(
            scope=SHARED, key=key, value=str(value + 1), expected_version=version, keep_versions=10, announce=True
        )
        try:
            await store.transact(EntryTransaction(changes=(change,), owner="worker", audit=({"what": "count"},)))
        except VersionConflict:
            lost += 1
        else:
            return lost


async def increment(job: Job, url: str, key: str, times: int, die_after: int = 0) -> JSON:
    """Count up, reporting each acknowledged write; with `die_after`, until the seam kills this process."""
    seam = KillingSeam()
    async with await open_backend(url, seam=seam) as backend:
        assert backend.entries is not None
        job.wait_for_the_others()
        if die_after:
            seam.arm(after=die_after)
        lost = 0
        for number in range(times):
            lost += await count_up(backend.entries, key)
            job.report(number + 1)
        return lost


async def set_once(job: Job, url: str, key: str) -> None:
    """Write one shared value."""
    async with await open_backend(url) as backend:
        assert backend.entries is not None
        job.wait_for_the_others()
        await count_up(backend.entries, key)

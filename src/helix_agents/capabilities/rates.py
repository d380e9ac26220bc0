"""How often an agent made the calls that a rule counts: numbers in the store, so that a restart forgets nothing."""

from collections.abc import Sequence
from urllib.parse import quote

from helix_agents.capabilities.policy import Rule
from helix_agents.capabilities.scopes import RATES
from helix_agents.domain.capability_errors import VersionConflict
from helix_agents.domain.entries import EntryTransaction, Put
from helix_agents.ports.entries import EntryStore


async def count_calls(store: EntryStore, agent: str, rules: Sequence[Rule], *, counting: bool) -> dict[str, int]:
    """Calls by rule in its present window; with `counting`, this call is added to each."""
    counts: dict[str, int] = {}
    for rule in rules:
        assert rule.rate is not None
        window = store.now_ms() // (rule.rate.seconds * 1000)
        # No name can run into the next one, whatever characters it has.
        key = f"{quote(rule.name, safe='')}/{quote(agent, safe='')}/{rule.rate.seconds}/{window}"
        counts[rule.name] = await _count(store, key) if counting else 1 + await _known(store, key)
    return counts


def is_over(key: str, now_ms: int) -> bool:
    """Whether the window of a counter is over; the rule need not be known for this."""
    seconds, window = key.split("/")[-2:]
    if not seconds.isdigit() or not window.isdigit():
        return True
    return (int(window) + 1) * int(seconds) * 1000 <= now_ms


async def _known(store: EntryStore, key: str) -> int:
    found = await store.find(RATES, key)
    return int(found.value or 0) if found is not None else 0


async def _count(store: EntryStore, key: str) -> int:
    while True:
        found = await store.find(RATES, key)
        count = 1 + (int(found.value or 0) if found is not None else 0)
        version = found.version if found is not None else 0
        change = Put(scope=RATES, key=key, value=str(count), expected_version=version)
        try:
            await store.transact(EntryTransaction(changes=(change,), owner="policy"))
        except VersionConflict:
            continue
        return count

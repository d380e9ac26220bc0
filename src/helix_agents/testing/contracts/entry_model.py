"""The contract of any history of writes: a store and a plain dictionary get the same requests and must agree."""

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helix_agents.domain.capability_errors import CapabilityError, QuotaExceeded, VersionConflict
from helix_agents.domain.entries import weight
from helix_agents.domain.records import encode
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.entry_handles import EntriesContract
from helix_agents.testing.entry_scenes import everything, put, remove, write
from helix_agents.testing.requirements.registry import proves

KEYS = ("a", "b", "ab", "é")
KEPT = 3
LIMIT = 60
_numbers = itertools.count(1)

acts = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from(KEYS),
            st.text(max_size=12),
            st.one_of(st.none(), st.integers(0, 4)),
        ),
        st.tuples(st.just("remove"), st.sampled_from(KEYS), st.just(""), st.one_of(st.none(), st.integers(0, 4))),
    ),
    max_size=30,
)


class Model:
    """What a scope is, as a plain model."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.versions: dict[str, list[tuple[int, str]]] = {}
        self.told: list[tuple[str, str, int]] = []

    @property
    def bytes(self) -> int:
        return sum(weight(key, encode(value).decode()) for key, kept in self.versions.items() for _, value in kept)

    def current(self, key: str) -> int:
        return self.versions[key][0][0] if key in self.versions else 0

    def apply(self, kind: str, key: str, value: str, expected: int | None) -> type[CapabilityError] | None:
        """What has to be refused, or None if it was done."""
        if expected is not None and expected != self.current(key):
            return VersionConflict
        if kind == "remove":
            if key in self.versions:
                self.told.append((key, "delete", self.counters[key]))
                del self.versions[key]
            return None
        before = self.bytes
        number = self.counters.get(key, 0) + 1
        old = self.versions.get(key)
        self.versions[key] = [(number, value), *(old or [])][:KEPT]
        if LIMIT < self.bytes > before:
            if old is None:
                del self.versions[key]
            else:
                self.versions[key] = old
            return QuotaExceeded
        self.counters[key] = number
        self.told.append((key, "put", number))
        return None


class EntryModelContract(EntriesContract):
    """Random histories."""

    @proves("entries.any-history")
    @settings(
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(history=acts)
    async def test_any_history_leaves_what_the_model_says(self, store: EntryStore, history: list[Any]) -> None:
        scope, model = f"agent:model-{next(_numbers)}", Model()
        start = (await store.list_events(0, limit=1)).head
        for kind, key, value, expected in history:
            wanted = model.apply(kind, key, value, expected)
            if kind == "put":
                change = put(key, value, scope, expected_version=expected, keep_versions=KEPT, limit_bytes=LIMIT)
            else:
                change = remove(key, scope, expected_version=expected, keep_versions=KEPT)
            try:
                await write(store, change)
            except CapabilityError as refused:
                assert type(refused) is wanted
            else:
                assert wanted is None
        assert await everything(store, scope) == [(key, tuple(model.versions[key])) for key in sorted(model.versions)]
        usage = await store.usage(scope)
        assert (usage.keys, usage.bytes) == (len(model.versions), model.bytes)
        told = await store.list_events(start, scope=scope)
        assert [(event.key, event.operation, event.version) for event in told.events] == model.told

"""The conformance suite, as the authors of this backend run it: pytest conformance.py."""

import itertools

import pytest
from hypothesis import settings
from tiny_store import TinyStore  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

from helix_agents.backends.in_memory import InMemoryStateStore, Memory
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract
from helix_agents.testing.contracts.usage import OpenParts, UsageStoreContract

settings.register_profile("quick", max_examples=10)
settings.load_profile("quick")

NAMES = itertools.count(1)


class TestTinyStore(StateStoreContract):
    backend = "tiny"
    several_processes = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = Memory()
        return lambda **options: TinyStore(InMemoryStateStore(memory, **options))


class TestTinyUsage(UsageStoreContract):
    backend = "tiny"
    several_processes = False

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        url = f"tiny://conformance-{next(NAMES)}"
        return lambda **options: open_backend(url, **options)

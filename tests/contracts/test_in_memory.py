"""The in-memory backend keeps every contract; its data lives in one process, so proofs with several do not apply."""

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore, Memory
from helix_agents.testing.contracts.state_store import OpenStore, StateStoreContract


class TestInMemoryStateStore(StateStoreContract):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = Memory()
        return lambda **options: InMemoryStateStore(memory, **options)

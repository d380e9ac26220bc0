"""How a contract accesses the entries it tests, beside the sessions they belong to."""

from typing import ClassVar

import pytest

from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.parts import PartsContract
from helix_agents.testing.requirements.entries import ENTRIES


def entries_of(backend: Backend) -> EntryStore:
    """The backend's store of entries, which it must have."""
    assert backend.entries is not None, "this backend has no entries"
    return backend.entries


class EntriesContract(PartsContract):
    """The fixtures on which every part of the contract is built."""

    port: ClassVar[str] = "entry store"
    requirements = ENTRIES

    @pytest.fixture
    def store(self, parts: Backend) -> EntryStore:
        return entries_of(parts)

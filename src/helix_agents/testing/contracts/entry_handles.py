"""How a contract gets at the entries it tests, beside the sessions they belong to."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, ClassVar, Protocol

import pytest

from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.requirements.entries import ENTRIES


class OpenParts(Protocol):
    """Opens one more backend onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`.
    """

    def __call__(self, **options: Any) -> Backend | Awaitable[Backend]: ...


def entries_of(backend: Backend) -> EntryStore:
    """The backend's store of entries, which it must have."""
    assert backend.entries is not None, "this backend has no entries"
    return backend.entries


class EntriesContract(Contract):
    """The fixtures that every part of the contract stands on."""

    port: ClassVar[str] = "entry store"
    requirements = ENTRIES

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        """Yours to give: see `OpenParts`."""
        raise NotImplementedError("a concrete class gives the fixture open_parts")

    @pytest.fixture
    async def handles(self, open_parts: OpenParts, clock: ManualClock) -> AsyncIterator[Handles[Backend]]:
        handles = Handles[Backend](open_parts, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def parts(self, handles: Handles[Backend]) -> Backend:
        return await handles.open()

    @pytest.fixture
    def store(self, parts: Backend) -> EntryStore:
        return entries_of(parts)

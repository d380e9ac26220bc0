"""How a contract accesses the state store it tests."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, ClassVar, Protocol, TypeAlias

import pytest

from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.requirements.state_store import STATE_STORE


class OpenStore(Protocol):
    """Opens one more handle onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`, `limits`.
    """

    def __call__(self, **options: Any) -> SessionStateStore | Awaitable[SessionStateStore]: ...


StoreHandles: TypeAlias = Handles[SessionStateStore]


class StoreContract(Contract):
    """The fixtures on which every part of the state store's contract is built."""

    port: ClassVar[str] = "state store"
    requirements = STATE_STORE

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """For you to implement: see `OpenStore`."""
        raise NotImplementedError("a concrete class gives the fixture open_store")

    @pytest.fixture
    async def handles(self, open_store: OpenStore, clock: ManualClock) -> AsyncIterator[StoreHandles]:
        handles = StoreHandles(open_store, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def store(self, handles: StoreHandles) -> SessionStateStore:
        return await handles.open()

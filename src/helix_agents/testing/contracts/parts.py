"""How a contract accesses the parts of a whole backend."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

import pytest

from helix_agents.ports.backend import Backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.handles import Handles


class OpenParts(Protocol):
    """Opens one more backend onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`.
    """

    def __call__(self, **options: Any) -> Backend | Awaitable[Backend]: ...


class PartsContract(Contract):
    """The fixtures of contracts about parts that belong together."""

    @pytest.fixture
    def open_parts(self) -> OpenParts:
        """For you to implement: see `OpenParts`."""
        raise NotImplementedError("a concrete class gives the fixture open_parts")

    @pytest.fixture
    async def handles(self, open_parts: OpenParts, clock: ManualClock) -> AsyncIterator[Handles[Backend]]:
        handles = Handles[Backend](open_parts, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def parts(self, handles: Handles[Backend]) -> Backend:
        return await handles.open()

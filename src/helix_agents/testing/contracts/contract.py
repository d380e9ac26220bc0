"""What all contracts share: their requirements, the backend they test, and when a proof applies."""

from typing import Any, ClassVar

import pytest

from helix_agents.testing.clock import ManualClock
from helix_agents.testing.requirements.registry import Requirements, tests_of


class Contract:
    """Inherit a port's contract in a class named `Test…` and give it the fixtures it asks for.

    `backend` is the name of its column in the support matrix. For a backend whose data lives in one process, set
    `several_processes = False`; the proofs that start processes are then not collected, and the matrix says so.
    """

    port: ClassVar[str]
    requirements: ClassVar[Requirements]
    backend: ClassVar[str] = ""
    several_processes: ClassVar[bool] = True
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Async tests run on asyncio, the only event loop that is supported."""
        return "asyncio"

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of every handle that a test opens."""
        return ManualClock()

    @pytest.fixture
    def store_url(self) -> str:
        """For you to implement: a URL that opens, in another process, the data that is opened here."""
        raise NotImplementedError("a concrete class gives the fixture store_url, or says several_processes = False")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.several_processes:
            return
        for name, test in tests_of(cls).items():
            proved: tuple[str, ...] = getattr(test, "proves", ())
            if any(key in cls.requirements and cls.requirements[key].several_processes for key in proved):
                # Not a skip: pytest collects only what can be called.
                setattr(cls, name, None)

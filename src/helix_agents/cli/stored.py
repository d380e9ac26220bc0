"""What is stored, as commands that only look at it open it; these start in a fraction of the time."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_agents.ports.backend import Backend, open_backend


@asynccontextmanager
async def open_stored(url: str) -> AsyncGenerator[Backend, None]:
    """What is stored at a URL. A store that is not there is not created, one of another schema not migrated."""
    async with await open_backend(url, migrate="check") as backend:
        yield backend

"""Opening what is stored, for commands that only look at it; these start in a fraction of the time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from helix_agents.cli.options import DEFAULT_STORE, DEFAULT_STORE_FILE
from helix_agents.domain.errors import SetupError
from helix_agents.ports.backend import Backend, open_backend


class NoStoreError(SetupError):
    """No store was named, and there is none in this directory."""

    code = "no_store"

    def __str__(self) -> str:
        return (
            f"No store was named, and there is no {DEFAULT_STORE_FILE} in this directory. Name yours with --store URL "
            "or HELIX_STORE; `helix run` and `helix chat` create one."
        )


@asynccontextmanager
async def open_stored(url: str, *, namespace: str = "") -> AsyncGenerator[Backend, None]:
    """The store at a URL. A missing store is not created, and one with another schema is not migrated.

    Raises:
        NoStoreError: no store was named, and the default one does not exist.
    """
    if await is_missing_default(url):
        raise NoStoreError
    async with await open_backend(url, namespace=namespace, migrate="check") as backend:
        yield backend


async def is_missing_default(url: str) -> bool:
    """Whether this is the default store, and it does not exist yet."""
    return url == DEFAULT_STORE and not await asyncio.to_thread(Path(DEFAULT_STORE_FILE).exists)

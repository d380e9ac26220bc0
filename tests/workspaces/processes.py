"""Waiting for what a command does, and for its end."""

import asyncio
from pathlib import Path

from helix_agents.testing.contracts.executor.stage import until


async def until_there(root: Path, pattern: str) -> Path:
    """The file that a command makes, once it is there."""

    async def is_there() -> bool:
        return bool(await asyncio.to_thread(lambda: [*root.glob(pattern)]))

    await until(is_there)
    return next(root.glob(pattern))


async def until_gone(file: Path) -> None:
    """Wait until nobody runs whose process id a command wrote down; a dead one may wait to be taken note of."""
    stat = Path("/proc", file.read_text().strip(), "stat")

    async def is_gone() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    await until(is_gone)

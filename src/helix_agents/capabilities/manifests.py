"""Which files exist below some folders, and what changed between two looks at them."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from helix_agents.domain.records import JSON

MOST_FILES = 20_000


async def look_at_files(roots: Sequence[Path]) -> dict[str, list[int]]:
    """Every file below the folders by its path: its size, and when it was written. Links are not followed.

    Parts of a path that are not text, which file systems allow, are shown by their number.
    """
    return await asyncio.to_thread(lambda: dict(_files(roots)))


def compare(before: dict[str, list[int]], now: dict[str, list[int]]) -> list[dict[str, JSON]]:
    """What was created, changed and deleted between two looks, by path."""
    changes: list[dict[str, JSON]] = []
    for path in sorted({*before, *now}):
        if path not in before:
            changes.append({"path": path, "change": "created", "source": f"file:{path}"})
        elif path not in now:
            changes.append({"path": path, "change": "deleted", "source": f"file:{path}"})
        elif before[path] != now[path]:
            changes.append({"path": path, "change": "modified", "source": f"file:{path}"})
    return changes


def _files(roots: Sequence[Path]) -> Iterator[tuple[str, list[int]]]:
    left = MOST_FILES
    for root in roots:
        for folder, folders, names in os.walk(root, followlinks=False):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                try:
                    found = path.lstat()
                except OSError:
                    continue
                shown = os.fsencode(path).decode(errors="backslashreplace")
                yield shown, [found.st_size, found.st_mtime_ns]
                left -= 1
                if left <= 0:
                    return

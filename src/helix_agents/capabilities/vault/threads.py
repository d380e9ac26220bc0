"""Blocking work outside the event loop, which a cancelled caller does not leave half done."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread; a caller that is cancelled continues only when the work no longer touches its files."""
    job = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job])
        # Its failure, if any, does not matter to a caller that is leaving; retrieving it keeps asyncio from reporting
        # it.
        if not job.cancelled():
            job.exception()
        raise

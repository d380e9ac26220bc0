"""Blocking work beside the event loop, which a cancelled caller does not leave behind half done."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread; who is cancelled meanwhile goes on only when the work no longer touches its files."""
    job = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job])
        # Its failure, if any, is of no interest to a caller who is leaving; asking keeps asyncio from reporting it.
        if not job.cancelled():
            job.exception()
        raise

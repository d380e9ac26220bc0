"""What the child processes of the proofs about streams do; kept free of test libraries."""

import asyncio
import os
import signal

from helix_agents.domain.errors import SupersededError
from helix_agents.ports.backend import open_backend
from helix_agents.testing.seams import CountingSeam, KillingSeam
from helix_agents.testing.stream_scenes import AGENT, RUN, STREAM, delta, next_of, reading
from helix_agents.testing.workers import Job

MODULE = __name__


async def race_to_write(job: Job, url: str, who: int, times: int) -> int:
    """Become the writer together with the others and write until another one is; returns how much was stored."""
    async with await open_backend(url) as backend:
        job.wait_for_the_others()
        writer = await backend.streams.create_writer(STREAM, RUN, AGENT, turn=1)
        for n in range(times):
            try:
                await writer.write(delta(f"{who}.{n}"))
                await writer.flush()
            except SupersededError:
                return n
        return times


async def write_or_read(job: Job, url: str, last: int, die_after: int | None, **end: int) -> int:
    """One end of a stream of numbers: the writer's if it is given an attempt, the reader's if it is given a cursor."""
    if "attempt" in end:
        return await write_numbers(job, url, end["attempt"], last, die_after)
    return await read_numbers(job, url, end["cursor"], last, die_after)


async def write_numbers(job: Job, url: str, attempt: int, last: int, die_after: int | None) -> int:
    """Continue a stream whose every delta is its own number, up to the last; perhaps die at a statement."""
    seam = KillingSeam()
    async with await open_backend(url, seam=seam) as backend:
        writer = await backend.streams.create_writer(STREAM, RUN, AGENT, turn=1, attempt=attempt)
        info = await backend.streams.get_stream_info(STREAM)
        assert info is not None
        if die_after is not None:
            seam.arm(after=die_after)
        for n in range(info.latest_sequence + 1, last + 1):
            await writer.write(delta(str(n)))
            if n % 10 == 0:
                job.report(await writer.flush())
        return await writer.flush()


async def read_numbers(job: Job, url: str, cursor: int, last: int, die_after: int | None) -> int:
    """Report every number after the cursor, up to the last; perhaps die after some. Returns its cursor."""
    async with await open_backend(url) as backend:
        while await backend.streams.get_stream_info(STREAM) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        reader = await reading(backend.streams, after=cursor)
        while reader.sequence < last:
            chunk = await next_of(reader)
            job.report([chunk.sequence, getattr(chunk, "delta", "")])
            if die_after is not None and chunk.sequence - cursor >= die_after:
                os.kill(os.getpid(), signal.SIGKILL)
        return reader.sequence


async def wait_in_vain(job: Job, url: str, seconds: float) -> float:
    """Wait at the end of a stream to which nothing is written; returns how many statements per second that took.

    The number of statements to start is reported.
    """
    seam = CountingSeam()
    async with await open_backend(url, seam=seam) as backend:
        info = await backend.streams.get_stream_info(STREAM)
        assert info is not None
        reader = await reading(backend.streams, after=info.latest_sequence)
        waiting = asyncio.create_task(next_of(reader))
        job.report(seam.count)
        rate = await seam.rate_over(seconds)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return rate

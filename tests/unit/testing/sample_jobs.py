"""Jobs for the tests of the processes themselves."""

import os
import signal
import time
from pathlib import Path

from helix_agents.testing.seams import KillingSeam
from helix_agents.testing.workers import Job


async def double(job: Job, number: int) -> int:
    job.report(f"got {number}")
    return number * 2


async def fail(job: Job) -> None:
    raise ValueError("not today")


async def die_at(job: Job, statement: int) -> None:
    seam = KillingSeam(after=statement)
    for number in range(1, 10):
        seam(f"statement {number}")
        job.report(number)


async def hang(job: Job, pid_file: str | None = None) -> None:
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()))
    time.sleep(60)


async def meet(job: Job, number: int) -> float:
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    arrived = time.monotonic()
    job.wait_for_the_others()
    return time.monotonic() - arrived

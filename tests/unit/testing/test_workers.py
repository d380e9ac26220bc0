"""Processes for proofs: what they answer, how they die, and that none is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.testing.workers import Outcome, Processes

JOBS = "tests.unit.testing.sample_jobs"
PATIENCE = 20.0


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as processes:
        yield processes


async def test_each_job_answers_from_a_process_of_its_own(processes: Processes) -> None:
    outcomes = await processes.run(f"{JOBS}:double", [{"number": number} for number in range(12)])
    assert [outcome.value for outcome in outcomes] == [number * 2 for number in range(12)]
    assert outcomes[3] == Outcome(reports=["got 3"], value=6)


async def test_a_job_that_fails_says_why(processes: Processes) -> None:
    (outcome,) = await processes.run(f"{JOBS}:fail", [{}])
    assert outcome.error == "ValueError: not today"
    (outcome,) = await processes.run(f"{JOBS}:double", [{}])
    assert outcome.error is not None
    assert "number" in outcome.error


async def test_a_kill_at_a_statement_keeps_what_was_reported_before(processes: Processes) -> None:
    outcomes = await processes.run(f"{JOBS}:die_at", [{"statement": statement} for statement in (1, 4)])
    assert [outcome.reports for outcome in outcomes] == [[], [1, 2, 3]]
    assert all(outcome.was_killed for outcome in outcomes)


async def test_a_job_that_overruns_its_time_is_killed_and_told_apart(processes: Processes) -> None:
    (outcome,) = await processes.run(f"{JOBS}:hang", [{}], timeout=0.2)
    assert outcome.timed_out
    assert not outcome.was_killed
    assert (await processes.run(f"{JOBS}:double", [{"number": 1}]))[0].value == 2


async def test_jobs_wait_for_each_other_but_not_for_the_dead(processes: Processes) -> None:
    outcomes = await processes.run(f"{JOBS}:meet", [{"number": number} for number in range(4)], timeout=PATIENCE)
    assert outcomes[0].was_killed
    assert all(outcome.error is None and outcome.value < PATIENCE for outcome in outcomes[1:])


async def test_processes_that_were_not_started_refuse_work() -> None:
    with pytest.raises(RuntimeError, match="with"):
        await Processes().run(f"{JOBS}:double", [])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_no_child_outlives_a_test_process_that_was_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import asyncio, sys; from helix_agents.testing.workers import Processes\n"
        f"with Processes() as p: asyncio.run(p.run('{JOBS}:hang', [{{'pid_file': sys.argv[1]}}]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(pid_file)])
    _until(lambda: pid_file.exists() and pid_file.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait(PATIENCE)
    child = int(pid_file.read_text())
    _until(lambda: _is_gone(child))


def _until(condition) -> None:
    overdue = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < overdue, "it did not happen in time"
        time.sleep(0.01)


def _is_gone(pid: int) -> bool:
    """Whether the process ended; one that nobody has buried yet counts as gone."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True

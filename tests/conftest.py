"""What every test runs under: one kind of event loop, a guard against blocking it, and how hard to search."""

import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.support.event_loop_guard import event_loop_guard

# If the environment forbids bytecode, every process that a test starts would compile everything that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# One server of each kind per test process, started when the first test asks for it.
pytest_plugins = ("helix_agents.testing.postgres_service", "helix_agents.testing.redis_service")

# The contracts we ship are ordinary classes in our package; this gives their asserts the same messages as a test's.
pytest.register_assert_rewrite("helix_agents.testing", "tests.recovery.reference_conversation")

# Deadlines, and what counts as too slow a search, measure the machine rather than the code; the time limit per test
# already ends a run that hangs.
settings.register_profile("dev", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=20, derandomize=True, database=None, print_blob=True
)
settings.register_profile("chaos", settings.get_profile("dev"), max_examples=2_000, print_blob=True)

# A shell that runs the tests in the background makes them, and every process they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

NO_SKIPS = os.environ.get("HELIX_NO_SKIPS") == "1"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", default=None):
        return
    hunting = config.getoption("markexpr") == "chaos"
    settings.load_profile("chaos" if hunting else os.environ.get("HELIX_HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Three processes for two cores: a third of the time, a test waits for a process, a server or a deadline."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + max(1, cores // 2)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the only loop we promise."""
    return "asyncio"


_guard = event_loop_guard()


@pytest.fixture(autouse=True)
def a_blocked_event_loop_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """See `tests/support/event_loop_guard.py`; a test marked `may_block("why")` is left alone."""
    if request.node.get_closest_marker("may_block"):
        yield
        return
    _guard.activate()
    try:
        yield
    finally:
        _guard.deactivate()


def _a_skip_is_a_failure(report: Report) -> Report:
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped where every test must run: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _a_skip_is_a_failure((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _a_skip_is_a_failure((yield))

"""The one DBOS of this process: launched by the first executor that needs it, destroyed by the last one."""

import asyncio
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Coroutine, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar, cast

from dbos import DBOS, DBOSConfig
from sqlalchemy.exc import OperationalError

from helix_agents.domain.errors import DBOSInUseError, RuntimeUnavailableError
from helix_agents.domain.urls import shown_url
from helix_agents.engine.log import log_event
from helix_agents.engine.plain import EFFECT_SEQUENCE
from helix_agents.runtimes.dbos.system_database import check_url, write_ahead
from helix_agents.system import RandomIds

T = TypeVar("T")

APPLICATION = "helix-agents"
VERSION = f"helix-{EFFECT_SEQUENCE}"
"""The version of this program for DBOS, which replays no history of another version."""

PATIENCE_SECONDS = 20.0
"""How long a caller waits for a system database that does not answer, and how often that is logged."""

_NEW_ID = re.compile("dbos_[a-z0-9]{26}")


def new_executor_id() -> str:
    """A unique name by which DBOS knows this process."""
    return RandomIds().new("dbos")


def is_new_executor_id(name: str) -> bool:
    """Whether a process had this name for one lifetime only; a process that was given its name may come back."""
    return _NEW_ID.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The DBOS that an executor needs. `works` says whether this process takes runs from queues."""

    system_database_url: str
    executor_id: str | None = None
    works: bool = True
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class _Launched:
    wanted: Wanted
    executor_id: str
    is_ours: bool
    users: int = 0


class _Process:
    """What this process has launched. Its methods block, and are called in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._launched: _Launched | None = None

    def acquire(self, wanted: Wanted, fallback_id: str) -> str:
        with self._lock:
            launched = self._launched or _find(wanted) or _launch(wanted, wanted.executor_id or fallback_id)
            _check(launched, wanted)
            launched.users += 1
            self._launched = launched
            return launched.executor_id

    def release(self) -> bool:
        with self._lock:
            assert self._launched is not None
            self._launched.users -= 1
            if self._launched.users:
                return False
            if self._launched.is_ours:
                _destroy()
            self._launched = None
            return True


_process = _Process()


async def acquire(wanted: Wanted, fallback_id: str) -> str:
    """Have DBOS launched as wanted. If no executor id is wanted, DBOS knows this process by the fallback id, unless it
    was launched before. Returns the id that it uses.

    Raises:
        DBOSInUseError: this process already runs DBOS with other settings.
        InvalidStoreUrlError: the system database cannot be at that address, or not with this Python.
        RuntimeUnavailableError: the system database does not answer.
    """
    acquiring = asyncio.create_task(asyncio.to_thread(_process.acquire, wanted, fallback_id))
    try:
        return await asyncio.shield(acquiring)
    except asyncio.CancelledError:
        # The thread continues whatever is cancelled, and what it acquires is released again.
        await asyncio.wait((acquiring,))
        if acquiring.exception() is None:
            await release()
        raise


class Questions:
    """Asks DBOS on behalf of waiting callers, and tells them if its system database does not answer.

    The thread of a request that was made keeps working on it. So while one waits, no other request is made.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._unanswered: set[asyncio.Task[Any]] = set()

    async def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer to a request.

        Raises:
            RuntimeUnavailableError: there is none.
        """
        if self._unanswered:
            question.close()
            raise _unavailable(self._wanted, TimeoutError())
        asking = asyncio.create_task(question)
        try:
            await asyncio.wait((asking,), timeout=PATIENCE_SECONDS)
        except asyncio.CancelledError:
            asking.cancel()
            raise
        if not asking.done():
            self._unanswered.add(asking)
            asking.add_done_callback(self._answered)
            raise _unavailable(self._wanted, TimeoutError())
        try:
            return asking.result()
        except OperationalError as problem:
            raise _unavailable(self._wanted, problem) from problem

    def forget(self) -> None:
        """Stop waiting for answers."""
        for asking in self._unanswered:
            asking.cancel()

    def _answered(self, asking: asyncio.Task[Any]) -> None:
        self._unanswered.discard(asking)
        if not asking.cancelled():
            asking.exception()


async def release() -> bool:
    """Note that an executor no longer needs DBOS; returns whether it was the last one."""
    # DBOS made its own threads those of this loop, and they end with it.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
    return await asyncio.to_thread(_process.release)


def _find(wanted: Wanted) -> _Launched | None:
    """The DBOS that the program launched itself, for its own workflows; destroying it is left to the program."""
    theirs = _present()
    if theirs is None or not theirs._launched:
        return None
    url = theirs._config["system_database_url"]
    executor_id: str = import_module("dbos._utils").GlobalParams.executor_id
    return _Launched(Wanted(system_database_url=url, works=wanted.works), executor_id, is_ours=False)


def _launch(wanted: Wanted, executor_id: str) -> _Launched:
    check_url(wanted.system_database_url)
    config: dict[str, Any] = {
        "name": APPLICATION,
        "system_database_url": wanted.system_database_url,
        "application_version": VERSION,
        "executor_id": executor_id,
        "log_level": "WARNING",
        **wanted.config,
    }
    hearing = _Hearing(wanted)
    logging.getLogger("dbos").addFilter(hearing)
    try:
        write_ahead(wanted.system_database_url)
        _forget_closed_streams()
        DBOS(config=cast("DBOSConfig", config))
        with _for_a_while():
            if not wanted.works:
                DBOS.listen_queues([])
            DBOS.launch()
        hearing.is_launched = True
    except (OperationalError, sqlite3.OperationalError) as problem:
        _destroy()
        raise _unavailable(wanted, problem) from problem
    except BaseException:
        _destroy()
        raise
    return _Launched(wanted, executor_id, is_ours=True)


def _destroy() -> None:
    # A thread that waits for the database would keep the process from ending.
    _be_patient(False)
    DBOS.destroy()
    theirs = logging.getLogger("dbos")
    for hearing in [each for each in theirs.filters if isinstance(each, _Hearing)]:
        theirs.removeFilter(hearing)


@contextmanager
def _for_a_while() -> Generator[None]:
    """A launch waits for a database that went away during it, but not forever."""
    is_over = threading.Event()

    def end() -> None:
        is_over.wait(PATIENCE_SECONDS)
        while not is_over.is_set():
            # Repeatedly, because it may not have reached its database yet.
            _be_patient(False)
            is_over.wait(0.1)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    try:
        yield
    finally:
        is_over.set()
        ending.join()
    _be_patient(True)


def _be_patient(patient: bool) -> None:
    """Whether DBOS keeps asking a database that does not answer, or reports it."""
    theirs = _present()
    if theirs is not None and theirs._sys_db_field is not None:
        theirs._sys_db_field._retry_connection_errors = patient


def _present() -> Any:
    return vars(import_module("dbos._dbos"))["_dbos_global_instance"]


def _unavailable(wanted: Wanted, problem: Exception) -> RuntimeUnavailableError:
    reasons = str(getattr(problem, "orig", problem)).splitlines()
    reason = reasons[0] if reasons else f"its system database said nothing for {PATIENCE_SECONDS:g} s"
    return RuntimeUnavailableError("DBOS", shown_url(wanted.system_database_url), reason)


class _Hearing(logging.Filter):
    """Watches what DBOS logs, and passes on its errors; everything, if its level was set explicitly.

    If its system database goes away, each thread of DBOS retries forever and only logs warnings. So our own log reports
    it. A launch that fails is reported by our caller.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self.is_launched = False
        self._wanted = wanted
        self._level = logging.NOTSET if "log_level" in wanted.config else logging.ERROR
        self._told_at = -PATIENCE_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        _, waits, reason = text.partition("Database connection failed: ")
        if waits and self.is_launched:
            self._tell(reason.splitlines()[0])
        return record.levelno >= self._level and "failed to launch" not in text

    def _tell(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._told_at < PATIENCE_SECONDS:
            return
        self._told_at = now
        where = shown_url(self._wanted.system_database_url)
        meanwhile = "runs wait until its system database answers"
        log_event("dbos.unavailable", logging.ERROR, address=where, reason=reason, meanwhile=meanwhile)


def _forget_closed_streams() -> None:
    """DBOS keeps the first stderr that it saw, flushes it at every launch, and fails if it has been closed since."""
    theirs = logging.getLogger("dbos")
    for handler in tuple(theirs.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            theirs.removeHandler(handler)


def _check(launched: _Launched, wanted: Wanted) -> None:
    """A process has one DBOS: a second executor shares it or gets an error that says why it cannot."""
    present = launched.wanted
    if wanted.system_database_url != present.system_database_url:
        places = [shown_url(each.system_database_url) for each in (present, wanted)]
        reason = f"it runs on {places[0]!r}, not on {places[1]!r}"
    elif wanted.executor_id not in (None, launched.executor_id):
        reason = f"its executor id is {launched.executor_id!r}, not {wanted.executor_id!r}"
    elif wanted.works and not present.works:
        reason = "it was launched by an executor that leaves all runs to other processes"
    elif launched.is_ours and dict(wanted.config) != dict(present.config):
        reason = "its configuration is different"
    else:
        return
    raise DBOSInUseError(reason)

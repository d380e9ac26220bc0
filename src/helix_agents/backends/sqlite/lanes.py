"""Threads that each own a connection: one that writes, grouping commits, and one for long reads."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from helix_agents.backends.sqlite.connection import UNTOLD, Connection, meaning
from helix_agents.backends.sqlite.mailboxes import Mailbox, Mailboxes
from helix_agents.domain.errors import StoreClosedError, StoreReplacedError

T = TypeVar("T")

MAX_GROUP = 256
LOOK_AGAIN_SECONDS = 0.1
"""How long a check that the file is still in place remains valid."""


class Job:
    """One piece of work and the task that waits for it."""

    __slots__ = (
        "_unclaimed",
        "answered",
        "begun",
        "future",
        "mailbox",
        "problem",
        "result",
        "synced",
        "transaction",
        "work",
    )

    def __init__(self, work: Callable[[Connection], Any], mailbox: Mailbox, *, transaction: bool, synced: bool) -> None:
        self.work = work
        self.mailbox = mailbox
        self.transaction = transaction
        self.synced = synced
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result: Any = None
        self.problem: BaseException | None = None
        self.begun = False
        self.answered = False
        self._unclaimed = [None]

    def begin(self) -> bool:
        """Claim the job for the thread; False if the caller has given up before."""
        self.begun = self.begun or self._claim()
        return self.begun

    def give_up(self) -> bool:
        """Withdraw the job; False if it has already started."""
        return self._claim()

    async def outlast(self) -> None:
        """Wait until the work is finished, whatever its outcome and however often the task is cancelled meanwhile."""
        while not self.answered:
            self.future = asyncio.get_running_loop().create_future()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await self.future

    def _claim(self) -> bool:
        # If two threads pop, only one of them succeeds.
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def answer(self) -> None:
        self.answered = True
        if self.future.done():
            return
        if self.problem is not None:
            self.future.set_exception(self.problem)
        else:
            self.future.set_result(self.result)


class Lane:
    """A thread with one connection that works through a queue in order."""

    outlasts = False

    def __init__(self, name: str, store: str, connect: Callable[[], Connection]) -> None:
        self._store = store
        self._connect = connect
        self._mailboxes = Mailboxes()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._ended = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Connection], T], *, transaction: bool = True, synced: bool = True) -> T:
        """Run the work in the thread, in a transaction unless told not to; its exceptions are raised here.

        If the caller is cancelled before the work has started, the work is not done. Work that is not `synced` survives
        the process, but reaches the disk only with the next commit that is.
        """
        if self._closed:
            raise StoreClosedError(self._store)
        job = Job(work, self._mailboxes.here(), transaction=transaction, synced=synced)
        self._queue.put(job)
        if self._ended:
            self._refuse_queued()
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.give_up() and self.outlasts and transaction:
                await job.outlast()
            raise

    def end(self) -> None:
        """Let the thread finish the queued jobs and end; `join` waits for that."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def let_go(self) -> None:
        """Close the mailboxes; late answers still reach their tasks."""
        self._mailboxes.close()

    def disown(self, store: str) -> None:
        """Refuse all further work: this process is a fork, and the thread stayed behind in the parent."""
        self._store = store
        self._closed = True

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            ends = False
            while len(jobs) < MAX_GROUP and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    ends = True
                    break
                jobs.append(following)
            self._work_off(jobs)
            _answer(jobs)
            self._follow_up()
            if ends:
                break
        if self._connection is not None:
            self._connection.close()
        # In this order, a job that another event loop queues now is refused either here or by its caller.
        self._ended = True
        self._refuse_queued()

    def _refuse_queued(self) -> None:
        """Refuse jobs that came too late; callable from any thread."""
        late: list[Job] = []
        with contextlib.suppress(Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    job.problem = StoreClosedError(self._store)
                    late.append(job)
        _answer(late)

    def _work_off(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._alone(job, "BEGIN")

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _alone(self, job: Job, begin: str) -> None:
        """Run one job in its own transaction, or in none."""
        job.problem = None
        try:
            connection = self._connected()
            connection.sync_commits(job.synced)
            if job.transaction:
                connection.execute(begin)
            if job.begin():
                job.result = job.work(connection)
            if job.transaction:
                connection.execute("COMMIT")
        except BaseException as problem:
            self._roll_back()
            job.problem = self._told(problem)
        else:
            self._committed(connection)

    def _committed(self, connection: Connection) -> None:
        connection.topics.clear()

    def _follow_up(self) -> None:
        """Do what is left once the callers have their answers."""

    def _roll_back(self) -> None:
        if self._connection is not None:
            self._connection.roll_back()

    def _told(self, problem: BaseException) -> BaseException:
        """The problem as an error of the domain."""
        if not isinstance(problem, UNTOLD):
            return problem
        told = meaning(problem, self._store)
        told.__cause__ = problem
        return told


class WriteLane(Lane):
    """The lane that writes: jobs queued at the same moment share one transaction and one sync to disk.

    A job that fails before it changed anything leaves the group intact. If one fails later, or makes SQLite abandon the
    whole transaction, the group is undone and each job runs again alone, so no job ever depends on its neighbours. A
    task that is cancelled in the middle of its job waits for the commit first, so that a look afterwards sees the
    outcome.
    """

    outlasts = True

    def __init__(
        self,
        name: str,
        store: str,
        connect: Callable[[], Connection],
        ring: Callable[[set[str]], None],
        ring_all: Callable[[], None],
    ) -> None:
        self._ring = ring
        self._ring_all = ring_all
        self._rung: set[str] = set()
        self._look_at = 0.0
        self.is_gone = False
        self.on_rollback: list[Callable[[], None]] = []
        super().__init__(name, store, connect)

    def _connected(self) -> Connection:
        connection = super()._connected()
        # A deleted file still accepts writes, so look for it. A busy writer need not look each time.
        if (now := time.monotonic()) >= self._look_at:
            self._look_for_files(connection)
            self._look_at = now + LOOK_AGAIN_SECONDS
        return connection

    def _look_for_files(self, connection: Connection) -> None:
        try:
            connection.check_files()
        except StoreReplacedError:
            was_gone, self.is_gone = self.is_gone, True
            if not was_gone:
                # Nothing that tasks here wait for will ever arrive.
                self._ring_all()
            raise
        self.is_gone = False

    async def check_files(self) -> None:
        """Check the files now.

        Raises:
            StoreReplacedError: one was deleted, moved or replaced.
        """
        await self.do(lambda _: None, transaction=False)

    def _work_off(self, jobs: list[Job]) -> None:
        if len(jobs) > 1 and all(job.transaction for job in jobs) and self._together(jobs):
            return
        for job in jobs:
            # IMMEDIATE takes the write lock before reading, so compare and swap see the same state.
            self._alone(job, "BEGIN IMMEDIATE")

    def _together(self, jobs: list[Job]) -> bool:
        """Run all jobs in one transaction; False if each has to be tried alone."""
        working = False
        try:
            connection = self._connected()
            connection.sync_commits(any(job.synced for job in jobs))
            connection.execute("BEGIN IMMEDIATE")
            working = True
            for job in jobs:
                if not job.begin():
                    continue
                before = connection.raw.total_changes()
                try:
                    job.result = job.work(connection)
                except Exception as problem:
                    # On a full disk and the like, SQLite undoes the transaction, so later jobs would run outside of
                    # any.
                    if connection.raw.total_changes() != before or not connection.raw.in_transaction:
                        raise
                    job.problem = self._told(problem)
            working = False
            connection.execute("COMMIT")
        except BaseException as problem:
            self._roll_back()
            for job in jobs:
                # If the transaction could not begin, all jobs fail at once rather than waiting for the same lock one
                # after the other. If the commit failed, it may have taken place all the same, so its jobs must not be
                # tried again.
                job.problem = None if working else self._told(problem)
            return not working
        self._committed(connection)
        return True

    def _committed(self, connection: Connection) -> None:
        self._rung |= connection.topics
        connection.topics.clear()

    def _follow_up(self) -> None:
        """Announce what has changed, then maintain the log."""
        if self._rung:
            topics, self._rung = self._rung, set()
            self._ring(topics)
        if self._connection is not None and self._connection.log is not None:
            self._connection.log.tend()

    def _roll_back(self) -> None:
        super()._roll_back()
        for forget in self.on_rollback:
            forget()


def _answer(jobs: list[Job]) -> None:
    """Answer the waiting tasks; each event loop wakes once, however many jobs were grouped."""
    if len(jobs) == 1:
        jobs[0].mailbox.post(jobs)
        return
    by_mailbox: dict[Mailbox, list[Job]] = {}
    for job in jobs:
        by_mailbox.setdefault(job.mailbox, []).append(job)
    for mailbox, done in by_mailbox.items():
        mailbox.post(done)

"""Wakes processes that wait for a change in a shared SQLite file, because SQLite itself notifies nobody.

Beside the file lies a folder with one named pipe per listening event loop. Each commit writes a short line into every
pipe. A pipe is a hint and never the truth: listeners look again by themselves after a while, so a platform without
named pipes, a full pipe or a lost line only costs time.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from helix_agents.backends.wakeups import Waiter, Wakeups

BELL = ".bell"
UNFINISHED = ".making"
READ_BYTES = 65_536
# The smallest size that every system guarantees to write into a pipe in one piece.
ATOMIC_BYTES = 512
# A pipe that held more than this may have been full when a process rang, and the topics it lost are unknown.
CROWDED_BYTES = 16_384
# Folder times advance with the kernel's coarse clock, so a change right after such a fresh listing may go unseen.
SETTLED_NS = 100_000_000
ABANDONED_SECONDS = 60.0
MAKING_TRIES = 5


class Doorbell:
    """The bell of one open file. Rings reach listeners in this process directly and other processes through pipes."""

    def __init__(self, path: Path) -> None:
        self._folder = path.with_name(f"{path.name}-bells")
        self._wakeups = Wakeups()
        self._ears: dict[asyncio.AbstractEventLoop, _Ear] = {}
        self._others = _Others(self._folder)

    def ring(self, topics: Iterable[str]) -> None:
        """Wake every listener of these topics, in any process. Never waits or fails; callable from any thread.

        Every commit rings and delays the next one meanwhile, so a ring must cost next to nothing where nobody listens.
        """
        others = self._others.are_there()
        if not others and not self._wakeups.anybody():
            return
        keys = {_key(topic) for topic in topics}
        self._wakeups.ring(keys)
        if others:
            self._others.ring(keys)

    def wake_everybody_here(self) -> None:
        """Make every listener of this process look again, whatever its topic."""
        self._wakeups.ring_everybody()

    @asynccontextmanager
    async def listen(self, topic: str) -> AsyncGenerator[Waiter]:
        """Listen to a topic for as long as the block lasts; rings are remembered from its start."""
        ear = self._ear_of(asyncio.get_running_loop())
        with self._wakeups.listen(_key(topic)) as waiter:
            await ear.open()
            yield waiter

    async def close(self) -> None:
        """Remove our pipes and close those of other processes; idempotent."""
        await asyncio.to_thread(self.leave())

    def leave(self) -> Callable[[], None]:
        """Stop listening at once. The returned function removes the files; it may be called in any thread."""
        self.wake_everybody_here()
        ears = list(self._ears.values())
        self._ears.clear()
        for ear in ears:
            ear.stop_reading()
        return partial(self._let_go, ears)

    def _ear_of(self, loop: asyncio.AbstractEventLoop) -> "_Ear":
        ear = self._ears.get(loop)
        if ear is None:
            over = [self._ears.pop(known, None) for known in list(self._ears) if known.is_closed()]
            ear = _Ear(loop, self._folder, self._wakeups, instead_of=[each for each in over if each is not None])
            self._ears[loop] = ear
            self._others.ignore(ear.name)
        return ear

    def _let_go(self, ears: list["_Ear"]) -> None:
        self._others.close()
        for ear in ears:
            ear.remove()
        with contextlib.suppress(OSError):
            # Only an empty folder is removed, because other processes may be listening.
            self._folder.rmdir()


class _Ear:
    """The pipe on which one event loop hears other processes; it replaces those of closed loops, `instead_of`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        wakeups: Wakeups,
        *,
        instead_of: "Sequence[_Ear]" = (),
    ) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}{BELL}"
        self._loop = loop
        self._folder = folder
        self._wakeups = wakeups
        self._opening = asyncio.Lock()
        self._instead_of = instead_of
        self._files = threading.Lock()
        self._removed = False
        self._tried = False
        self._fd: int | None = None
        self._rest = b""

    async def open(self) -> None:
        """Create the pipe, once. Where that is impossible, listeners have to look by themselves."""
        if self._tried:
            return
        async with self._opening:
            if not self._tried:
                await asyncio.to_thread(self._make)
                self._tried = True
                if self._fd is not None:
                    self._loop.add_reader(self._fd, self._hear)

    def stop_reading(self) -> None:
        """Remove the pipe from its event loop, from whichever thread."""
        if self._fd is None or self._loop.is_closed():
            return
        if self._loop is asyncio.get_running_loop():
            self._loop.remove_reader(self._fd)
        else:
            self._loop.call_soon_threadsafe(self._loop.remove_reader, self._fd)

    def remove(self) -> None:
        """Remove the pipe for good."""
        with self._files:
            self._removed = True
            self._drop()

    def _drop(self) -> None:
        if self._fd is not None:
            _unlink(self._folder / self.name)
            os.close(self._fd)
            self._fd = None

    def _make(self) -> None:
        for over in self._instead_of:
            over.remove()
        self._instead_of = ()
        if not hasattr(os, "mkfifo"):
            return
        # A task cancelled while waiting for this leaves its thread running, and the next task starts another thread.
        with self._files:
            # The last process to leave removes the folder, possibly between two lines of this.
            for _ in range(MAKING_TRIES):
                if self._fd is not None or self._removed:
                    return
                self._try_to_make(self._folder / f"{self.name}{UNFINISHED}")

    def _try_to_make(self, making: Path) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            _sweep(self._folder)
            os.mkfifo(making)
            # Open for reading and writing, so that the pipe does not end when the last ringer leaves.
            self._fd = os.open(making, os.O_RDWR | os.O_NONBLOCK)
            # It gets its real name only now, because a pipe that no process has open looks like one left by a dead
            # process.
            making.rename(self._folder / self.name)
        except OSError:
            _unlink(making)
            self._drop()

    def _hear(self) -> None:
        heard = b"".join(_drain(self._fd)) if self._fd is not None else b""
        *lines, self._rest = (self._rest + heard).split(b"\n")
        if len(heard) > CROWDED_BYTES:
            self._wakeups.ring_everybody()
        else:
            self._wakeups.ring({line.decode("ascii", "replace") for line in lines})


class _Others:
    """The pipes of all other listeners, kept open and listed again when the folder has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._own: set[str] = set()
        self._bells: dict[str, int] = {}
        self._listed_at: int | None = None

    def ignore(self, name: str) -> None:
        """Never ring this pipe: its listeners are woken directly."""
        self._own.add(name)

    def are_there(self) -> bool:
        """Whether anybody listens elsewhere, according to the folder's present contents."""
        with self._lock:
            self._look_around()
            return bool(self._bells)

    def ring(self, keys: Iterable[str]) -> None:
        """Ring the listeners found at the last look."""
        lines = "".join(f"{key}\n" for key in keys).encode("ascii")
        with self._lock:
            for name, fd in list(self._bells.items()):
                self._press(name, fd, lines)

    def close(self) -> None:
        with self._lock:
            for name in list(self._bells):
                self._forget(name)
            self._listed_at = None

    def _look_around(self) -> None:
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            if changed_at == self._listed_at:
                return
            names = {name for name in os.listdir(self._folder) if name.endswith(BELL)} - self._own
        except OSError:
            changed_at, names = None, set[str]()
        for name in self._bells.keys() - names:
            self._forget(name)
        for name in names - self._bells.keys():
            self._meet(name)
        settled = changed_at is not None and time.time_ns() - changed_at > SETTLED_NS
        self._listed_at = changed_at if settled else None

    def _meet(self, name: str) -> None:
        path = self._folder / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as problem:
            if problem.errno == errno.ENXIO:
                # No process has it open for reading: its owner died.
                _unlink(path)
            return
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            self._bells[name] = fd
        else:
            os.close(fd)

    def _press(self, name: str, fd: int, lines: bytes) -> None:
        size = ATOMIC_BYTES - ATOMIC_BYTES % LINE_BYTES
        try:
            for start in range(0, len(lines), size):
                os.write(fd, lines[start : start + size])
        except BlockingIOError:
            # The pipe is full. Its owner is about to wake up anyway, and knows that a crowded pipe may have lost lines.
            return
        except OSError:
            self._forget(name)
            _unlink(self._folder / name)

    def _forget(self, name: str) -> None:
        os.close(self._bells.pop(name))


def _key(topic: str) -> str:
    """A topic's short hash, so that a line is never written in two pieces. A collision causes a needless wake-up."""
    return hashlib.blake2b(topic.encode(), digest_size=8).hexdigest()


LINE_BYTES = len(_key("")) + 1


def _drain(fd: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        while heard := os.read(fd, READ_BYTES):
            yield heard


def _sweep(folder: Path) -> None:
    """Remove pipes whose creator died before finishing them."""
    for path in folder.glob(f"*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()

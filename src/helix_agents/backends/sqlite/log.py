"""The log beside a SQLite file: extended before commits need the room, and folded into the file when it is long."""

# apsw's stubs name types of Python 3.12, which a checker on 3.11 cannot resolve.
# pyright: reportUnknownMemberType=false

import contextlib
import os
from io import FileIO

import apsw

# The number of pages in the log, 16 MB in all, after which they are copied into the file. Every step changes many of
# the same pages, and each is copied only once. So a longer log costs less, until reading it costs more.
LOG_PAGES = 4_000
# The log of a short-lived process is left alone. Any other is doubled shortly before it is full, by at most this many
# bytes at a time.
FEW_PAGES = 128
STRIDE = 1 << 20
SPARE_PAGES = 16
HEADER, FRAME_HEADER = 32, 24


class Log:
    """Maintenance of the log, done by the writing thread while nobody waits for a commit.

    Syncing an overwritten part of a file takes half as long as syncing an extension, because the file system has no
    metadata to record. So the log is extended with zeros. SQLite takes them for the end of the log, as it does with
    frames left over from before the log was restarted.
    """

    def __init__(self, raw: apsw.Connection, *, synced: bool) -> None:
        self.pages = 0
        self._raw = raw
        # A log whose syncs nobody waits for need not be quick to sync.
        self._first_look = self._next_look = FEW_PAGES if synced else LOG_PAGES
        # This replaces SQLite's own hook, which copies a long log into the file before the commit returns.
        raw.set_wal_hook(self._measure)

    def tend(self) -> None:
        """Fold or extend the log when it is due."""
        if self.pages >= LOG_PAGES:
            self.fold()
        elif self.pages >= self._next_look:
            self._lengthen()

    def fold(self) -> None:
        """Copy the log into the file, as far as readers and writers allow, so that the log starts over."""
        self.pages = 0
        self._next_look = self._first_look
        with contextlib.suppress(apsw.Error):
            self._raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _lengthen(self) -> None:
        """Make room for the coming commits; without it, they extend the log themselves."""
        self._next_look = self.pages + FEW_PAGES
        with contextlib.suppress(apsw.Error, OSError), open(self._raw.filename_wal, "r+b", buffering=0) as file:
            room = self._room(file)
            self._next_look = max(self._next_look, room - SPARE_PAGES)
            os.fsync(file.fileno())

    def _room(self, file: FileIO) -> int:
        """The number of pages that fit into the log, which is extended if it is nearly full."""
        frame = FRAME_HEADER + int(self._raw.pragma("page_size"))
        # Only the holder of the write lock writes to the log, restarts it or deletes it.
        self._raw.execute("BEGIN IMMEDIATE")
        try:
            size = file.seek(0, os.SEEK_END)
            if size < HEADER + (self.pages + FEW_PAGES) * frame:
                size += file.write(bytes(min(size, STRIDE)))
        finally:
            self._raw.execute("ROLLBACK")
        return (size - HEADER) // frame

    def _measure(self, _: apsw.Connection, __: str, pages: int) -> int:
        self.pages = pages
        return apsw.SQLITE_OK

"""The log beside a SQLite file: lengthened before commits need the room, and folded into the file when it is long."""

# apsw's stubs name types of Python 3.12, which a checker on 3.11 cannot resolve.
# pyright: reportUnknownMemberType=false

import contextlib
import os
from io import FileIO

import apsw

# Pages in the log, 16 MB of them, after which they are copied into the file. Many are in it again and again, as every
# step changes them, and are copied once: a longer log costs less, up to where reading it does.
LOG_PAGES = 4_000
# The log of a short life is left alone. Another doubles shortly before its end, by at most so many bytes at a time.
FEW_PAGES = 128
STRIDE = 1 << 20
SPARE_PAGES = 16
HEADER, FRAME_HEADER = 32, 24


class Log:
    """What the writing thread does for the log while nobody waits for a commit.

    Syncing what overwrites a part of a file takes half as long as syncing what makes it longer, as the file system has
    nothing to note of its own. So the log is lengthened with zeros, which SQLite takes for the end, as it does the
    frames that were left from before the log began anew.
    """

    def __init__(self, raw: apsw.Connection, *, synced: bool) -> None:
        self.pages = 0
        self._raw = raw
        # What is never waited for need not be quick to sync.
        self._first_look = self._next_look = FEW_PAGES if synced else LOG_PAGES
        # In place of SQLite's own hook, which copies a long log into the file before the commit returns.
        raw.set_wal_hook(self._measure)

    def tend(self) -> None:
        """Fold the log, or lengthen it, if it is time to."""
        if self.pages >= LOG_PAGES:
            self.fold()
        elif self.pages >= self._next_look:
            self._lengthen()

    def fold(self) -> None:
        """Copy what the log holds into the file, so that the log begins anew; as far as readers and writers allow."""
        self.pages = 0
        self._next_look = self._first_look
        with contextlib.suppress(apsw.Error):
            self._raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _lengthen(self) -> None:
        """Have room for the commits that come next; one that does not get it makes the log longer itself."""
        self._next_look = self.pages + FEW_PAGES
        with contextlib.suppress(apsw.Error, OSError), open(self._raw.filename_wal, "r+b", buffering=0) as file:
            room = self._room(file)
            self._next_look = max(self._next_look, room - SPARE_PAGES)
            os.fsync(file.fileno())

    def _room(self, file: FileIO) -> int:
        """The pages that fit into the log, which is made longer if there are hardly more in it."""
        frame = FRAME_HEADER + int(self._raw.pragma("page_size"))
        # Whoever has the write lock is alone in writing to the log, restarting or deleting it.
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

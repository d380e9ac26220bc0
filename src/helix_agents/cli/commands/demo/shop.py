"""The world outside the store: a shop whose order book is a file, written by workers and counted at the end."""

import os
import shutil
import time
from pathlib import Path
from typing import Literal, TypeAlias

from helix_agents.domain.records import Record, decode, encode

Deed: TypeAlias = Literal["order", "publish"]


class Entry(Record):
    """One thing that really happened: which process did it, and under which idempotency key."""

    deed: Deed
    title: str
    key: str
    pid: int


class Shop:
    """An order book that only grows. An entry is on disk before the shop confirms it, whatever happens to the
    caller."""

    def __init__(self, folder: Path) -> None:
        self._book = folder / "order-book.jsonl"
        self._confirmed = folder / "confirmed"

    def clear(self) -> None:
        """Start a new book."""
        self._book.unlink(missing_ok=True)
        shutil.rmtree(self._confirmed, ignore_errors=True)

    def write(self, deed: Deed, title: str, key: str) -> None:
        """Add an entry to the book; a second entry under the same key would be a second order."""
        line = encode(Entry(deed=deed, title=title, key=key, pid=os.getpid())) + b"\n"
        book = os.open(self._book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(book, line)
            os.fsync(book)
        finally:
            os.close(book)

    def entries(self) -> list[Entry]:
        """Everything in the book."""
        if not self._book.exists():
            return []
        return [decode(line, Entry) for line in self._book.read_bytes().splitlines()]

    def find(self, key: str) -> Entry | None:
        """The entry under a key: how a worker finds out whether an order took place."""
        return next((entry for entry in self.entries() if entry.key == key), None)

    def confirm(self, key: str) -> None:
        """The shop's side: answer an order."""
        self._confirmed.mkdir(exist_ok=True)
        (self._confirmed / key.replace("/", "-")).touch()

    def wait_for_confirmation(self, key: str, seconds: float = 60.0) -> None:
        """The worker's side: wait for the shop's answer to an order."""
        mark = self._confirmed / key.replace("/", "-")
        give_up = time.monotonic() + seconds
        while not mark.exists() and time.monotonic() < give_up:
            time.sleep(0.02)

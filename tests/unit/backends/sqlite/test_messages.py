"""Where messages are read: a few right where they are asked for, many in a thread, so that nobody else waits."""

import threading
from pathlib import Path

import pytest

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.backends.sqlite.messages import READ_INLINE
from helix_agents.testing.scenes import SESSION, commit, said, start


class Threads:
    """The threads that send statements."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, statement: str, /) -> None:
        self.seen.add(threading.current_thread().name.split()[0])


@pytest.mark.parametrize("count", [READ_INLINE, READ_INLINE + 1])
async def test_few_messages_are_read_here_and_many_elsewhere(tmp_path: Path, count: int):
    threads = Threads()
    store = await SQLiteStateStore.open(tmp_path / "helix.db", seam=threads)
    await start(store)
    await commit(store, messages=[said(str(n)) for n in range(READ_INLINE + 10)])
    threads.seen.clear()
    page = await store.get_messages(SESSION, limit=count)
    assert ("helix-read" in threads.seen) == (count > READ_INLINE)
    assert [row.sequence for row in page.items] == list(range(READ_INLINE + 10, READ_INLINE + 10 - count, -1))
    threads.seen.clear()
    transcript = await store.load_transcript(SESSION, after=READ_INLINE + 10 - count)
    assert ("helix-read" in threads.seen) == (count > READ_INLINE)
    assert len(transcript) == count
    await store.close()

"""Chunks that came together are few rows, and nobody who reads, trims or discards them can tell."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.backends.sqlite import chunk_rows
from helix_agents.backends.sqlite.chunk_rows import ChunkRows
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.migrations import migrate
from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.records import decode
from helix_agents.ports.backend import open_backend
from helix_agents.testing.stream_scenes import STREAM, delta
from tests.unit.backends.sqlite.older_files import file_at

NUMBERS = st.integers(0, 40)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    path = str(tmp_path_factory.mktemp("chunks") / "helix.db")
    connection = Connection(path, synchronous="NORMAL", seam=None, busy_ms=0, read_only=False, create=True)
    migrate(connection)
    usual = chunk_rows.MOST_IN_A_ROW
    yield connection
    chunk_rows.MOST_IN_A_ROW = usual
    connection.close()


def said(chunks: Iterable[StreamChunk]) -> list[tuple[int, str]]:
    return [(chunk.sequence, chunk.delta) for chunk in chunks if isinstance(chunk, TextDelta)]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    cuts=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5),
    begin=NUMBERS,
    limit=st.integers(-1, 12),
    most=st.sampled_from((2, 4, 256)),
)
@pytest.mark.may_block("looks into the file")
def test_rows_tell_what_single_chunks_would(
    connection: Connection, sizes: list[int], cuts: list[tuple[int, int]], begin: int, limit: int, most: int
) -> None:
    chunk_rows.MOST_IN_A_ROW = most
    for key in (7, 8, 9):
        ChunkRows(connection, key).delete(0, 2**32 - 1)
    for neighbour in (7, 9):
        ChunkRows(connection, neighbour).add(1, [delta("beside")] * 3)
    rows, texts = ChunkRows(connection, 8), dict[int, str]()
    for size in sizes:
        first = len(texts) + 1
        together = {number: f"{number} {{é}}" for number in range(first, first + size)}
        rows.add(first, [delta(text) for text in together.values()])
        texts |= together
    latest = len(texts)
    for low, high in cuts:
        expected = [number for number in texts if low <= number <= high]
        assert rows.delete(low, high) == len(expected)
        for number in expected:
            del texts[number]
        numbers = sorted(texts)
        assert said(rows.since(0, latest)) == sorted(texts.items())
        assert rows.oldest(0, latest) == (numbers[0] if numbers else None)
        for count in range(1, len(numbers) + 1):
            assert rows.newest(count, 0, latest) == numbers[-count]
        assert rows.newest(len(numbers) + 1, 0, latest) == latest + 1
    found = [number for number in sorted(texts) if number >= begin]
    expected = found if limit < 0 else found[:limit]
    assert [chunk.sequence for chunk in rows.since(begin, latest, limit)] == expected
    for neighbour in (7, 9):
        assert len(ChunkRows(connection, neighbour).since(0, 3)) == 3


@pytest.mark.may_block("looks into the file")
def test_a_reader_that_wants_few_chunks_of_a_long_row_decodes_no_others(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_rows, "MOST_IN_A_ROW", 256)
    rows = ChunkRows(connection, 12)
    rows.add(1, [delta(f"{number} [{{,é]") for number in range(1, 601)])
    decoded: list[int] = []

    def watched(data: Any, kind: Any) -> Any:
        found = decode(data, kind)
        decoded.append(len(found) if kind == list[StreamChunk] else 0)
        return found

    monkeypatch.setattr(chunk_rows, "decode", watched)
    for begin, limit, most in ((1, 8, 8), (250, 16, 16), (1, 64, 64), (590, 50, 11), (1, 256, 256), (1, -1, 600)):
        decoded.clear()
        end = 601 if limit < 0 else min(begin + limit, 601)
        expected = [(number, f"{number} [{{,é]") for number in range(begin, end)]
        assert said(rows.since(begin, 600, limit)) == expected
        assert sum(decoded) == most


@pytest.mark.may_block("makes a file by hand")
async def test_streams_outlive_the_change_of_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "helix.db"
    connection = file_at(file, 4)
    connection.execute(
        "INSERT INTO __agents_streams (key, namespace, stream_id, agent_type, status, run_id, turn, attempt, writer,"
        " batch, latest, floor, count, committed, top_step, top_first, created_at, updated_at)"
        " VALUES (3, '', ?, 'writer', 'active', 'r-1', 1, 1, 1, 1, 5, 0, 3, 0, 1, 1, 0, 0)",
        (STREAM,),
    )
    for number, text in ((1, "one"), (2, "two"), (5, "five")):
        body = (
            f'{{"type":"text_delta","session_id":"s","run_id":"r-1","agent_type":"writer","step":1,"delta":"{text}"}}'
        )
        connection.execute(
            "INSERT INTO __agents_stream_chunks (id, run_id, step, type, body) VALUES (?, 'r-1', 1, 'text_delta', ?)",
            (3 << 32 | number, body),
        )
    connection.close()
    async with await open_backend(f"sqlite:///{file}") as backend:
        chunks = await backend.streams.get_all_chunks(STREAM)
        assert said(chunks) == [(1, "one"), (2, "two"), (5, "five")]
        assert await backend.streams.cleanup_to_step(STREAM, "r-1", 0) == 3

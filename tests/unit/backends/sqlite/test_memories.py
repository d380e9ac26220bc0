"""Memories in a file: what is deleted is gone, and vectors are compared alike with and without the extension."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from helix_agents.backends.sqlite import SQLiteStateStore, open_backend
from helix_agents.domain.memories import digest_of
from helix_agents.domain.memory_search import unit_vector
from helix_agents.domain.records import encode
from helix_agents.testing.contracts.memories import by_words, embed, memories_of, save
from tests.unit.backends.sqlite.older_files import file_at


async def test_deleting_memories_and_vacuuming_leaves_no_byte_of_them_behind(tmp_path: Path) -> None:
    """Words are in an index of their own, which by itself keeps what was deleted until its parts are put together."""
    async with await open_backend(f"sqlite:///{tmp_path / 'helix.db'}") as backend:
        memories = memories_of(backend)
        secret, vector = "xylophone", unit_vector([0.1234, 0.5678])
        for n in range(60):
            await save(memories, f"m-{n}", f"{secret} {n}", entity="ann" if n % 2 else "bob")
            await embed(memories, f"m-{n}", 0.1234, 0.5678, entity="ann" if n % 2 else "bob")
        assert await memories.delete_memories("ann") + await memories.delete_memories("bob") == 60
        assert isinstance(backend.state, SQLiteStateStore)
        await backend.state.vacuum()

        def found() -> list[str]:
            files = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
            return [name for name, body in files.items() if secret[1:].encode() in body or vector in body]

        assert await asyncio.to_thread(found) == []


@pytest.mark.may_block("makes a file by hand")
@pytest.mark.parametrize("version", [8, 9])
async def test_memories_outlive_the_change_of_their_index(tmp_path: Path, version: int) -> None:
    """Words stood beside what they belong to, and were looked for in what everybody said."""
    file = tmp_path / "helix.db"
    connection = file_at(file, version)
    if version == 9:
        scope = sha256(encode(["", "ann"])).hexdigest()[:32]
        for key, text, words in ((1, "Has a cat", "cat"), (2, "Lives in Bern", "live bern"), (3, "To be", "")):
            connection.execute(
                "INSERT INTO __agents_memories VALUES (?, '', 'ann', ?, 'chat', ?, '', 1, 0, 0, NULL, '{}', ?)",
                (key, f"m-{key}", digest_of(text), text),
            )
            connection.execute(
                "INSERT INTO __agents_memory_words (rowid, scope, words) VALUES (?, ?, ?)", (key, scope, words)
            )
    connection.close()
    async with await open_backend(f"sqlite:///{file}") as backend:
        memories = memories_of(backend)
        expected = "known" if version == 9 else "created"
        assert (await save(memories, "m-1", "Has a cat")).outcome == expected
        assert (await save(memories, "m-2", "Lives in Bern")).outcome == expected
        assert await by_words(memories, "cats") == ["m-1"]
        assert await by_words(memories, "in Bern") == ["m-2"]
        assert await by_words(memories, "cats", "bob") == []
        assert await memories.delete_memories("ann") == (3 if version == 9 else 2)
        assert isinstance(backend.state, SQLiteStateStore)
        await backend.state.vacuum()
    assert b"bern" not in file.read_bytes()


async def test_vectors_are_compared_alike_with_and_without_the_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_backend(f"sqlite:///{tmp_path / 'helix.db'}") as backend:
        memories = memories_of(backend)
        for n in range(30):
            await save(memories, f"m-{n}", f"Fact {n}")
            await embed(memories, f"m-{n}", n % 7 - 3, n % 5 - 2, n % 3)
        asked = unit_vector([1.0, -0.5, 0.25])
        in_c = await memories.search_meaning("ann", asked, "small", limit=30)
        monkeypatch.setattr("helix_agents.backends.sqlite.memories.compares_in_c", lambda _: False)
        one_by_one = await memories.search_meaning("ann", asked, "small", limit=30)
        assert [each.similarity for each in in_c] == pytest.approx([each.similarity for each in one_by_one], abs=1e-6)
        assert {each.memory.id for each in in_c[:5]} == {each.memory.id for each in one_by_one[:5]}

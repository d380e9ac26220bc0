"""Memories in a file: what is deleted is gone, and vectors are compared alike with and without the extension."""

import asyncio
from pathlib import Path

import pytest

from helix_agents.backends.sqlite import SQLiteStateStore, open_backend
from helix_agents.domain.memory_search import unit_vector
from helix_agents.testing.contracts.memories import embed, memories_of, save


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

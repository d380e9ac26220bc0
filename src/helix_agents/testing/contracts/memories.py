"""The contract of memories: kept once, found by words and meaning, seen by no other entity, gone when deleted."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from helix_agents.domain.errors import (
    InvalidIdError,
    InvalidInputError,
    InvalidPageError,
    MemoryChangedError,
    MemoryNotFoundError,
    StoreClosedError,
    StoreUnavailableError,
    UnstorableValueError,
)
from helix_agents.domain.memories import (
    MOST_CHARACTERS,
    MOST_DIMENSIONS,
    MemoryEmbedding,
    MemoryEntity,
    MemoryRecord,
    SavedMemory,
    SaveMemory,
    UpdateMemory,
)
from helix_agents.domain.memory_search import unit_vector
from helix_agents.domain.memory_words import words_of
from helix_agents.ports.backend import Backend
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.contracts.parts import OpenParts as OpenParts
from helix_agents.testing.contracts.parts import PartsContract
from helix_agents.testing.requirements.memories import MEMORIES
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import ConnectionLostError, DyingSeam

ANN, BOB = "ann", "böb {1}/%"
MOST_STATEMENTS = 50


def memories_of(backend: Backend) -> MemoryStore:
    """The backend's store of memories, which it must have."""
    assert backend.memories is not None, "this backend has no memories"
    return backend.memories


async def save(
    store: MemoryStore, id: str, text: str, entity: str = ANN, source: str = "chat", **fields: Any
) -> SavedMemory:
    """Keep a memory of the usual entity and source, or as the fields say."""
    return await store.save_memory(SaveMemory(id=id, entity=entity, source=source, text=text, **fields))


async def embed(
    store: MemoryStore, id: str, *values: float, entity: str = ANN, text: str | None = None, by: str = "small"
) -> bool:
    """Keep a vector for a memory: of what it says, or of this text."""
    found = await store.find_memory(entity, id)
    text = text or ("Gone" if found is None else found.text)
    vector = unit_vector(values)
    return await store.put_embedding(MemoryEmbedding(entity=entity, id=id, text=text, embedded_by=by, vector=vector))


async def by_words(store: MemoryStore, question: str, entity: str = ANN, **options: Any) -> list[str]:
    """The ids of what is found by the words of a query."""
    return [each.id for each in await store.search_words(entity, words_of(question), **options)]


async def by_meaning(
    store: MemoryStore, *values: float, entity: str = ANN, by: str = "small", **options: Any
) -> list[str]:
    """The ids of what is found near a vector."""
    return [each.memory.id for each in await store.search_meaning(entity, unit_vector(values), by, **options)]


class MemoryStoreContract(PartsContract):
    """Everything a store of memories has to guarantee: inherit it and provide the fixture `open_parts`."""

    port: ClassVar[str] = "memory store"
    requirements = MEMORIES

    @pytest.fixture
    def store(self, parts: Backend) -> MemoryStore:
        return memories_of(parts)

    @proves("memories.round-trip")
    async def test_every_field_comes_back_as_it_was(self, store: MemoryStore, clock: ManualClock) -> None:
        text = 'Likes "naïve" 日本 – {x}: 100 % \\ \' \n ☕'
        metadata = {"a": [None, {"n": 2**80}, "\0"]}
        now = clock.now_ms()
        saved = await save(store, "m-1", text, BOB, "a/b", metadata=metadata, session_id="s-1")
        assert saved == SavedMemory(
            outcome="created",
            memory=MemoryRecord(
                id="m-1",
                entity=BOB,
                source="a/b",
                text=text,
                metadata=metadata,
                session_id="s-1",
                created_at=now,
                updated_at=now,
            ),
        )
        assert await store.find_memory(BOB, "m-1") == saved.memory
        assert saved.memory.embedding_status == "pending"
        assert await store.find_memory(BOB, "m-2") is None

    @proves("memories.round-trip")
    async def test_a_memory_saved_under_its_own_id_takes_its_place(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        first = await save(store, "m-1", "Lives in Bern")
        assert (await save(store, "m-1", "Lives in Bern")).outcome == "known"
        clock.advance(5)
        second = await save(store, "m-1", "Lives in Basel")
        assert (second.outcome, second.memory.version) == ("replaced", 2)
        assert (second.memory.created_at, second.memory.updated_at) == (first.memory.created_at, clock.now_ms())
        assert await by_words(store, "Bern Basel") == ["m-1"]
        assert await by_words(store, "Bern") == []

    @proves("memories.said-once")
    async def test_one_source_says_a_thing_once(self, handles: Handles[Backend]) -> None:
        stores = [memories_of(await handles.open()) for _ in range(3)]
        saved = await asyncio.gather(
            *(save(each, f"m-{n}-{turn}", "Has  two\ncats ") for n, each in enumerate(stores) for turn in range(3))
        )
        assert sorted(each.outcome for each in saved) == ["created", *["known"] * 8]
        assert len({each.memory.id for each in saved}) == 1
        assert (await save(stores[0], "m-x", "has two CATS")).outcome == "known"
        assert (await save(stores[0], "m-y", "Has two cats", source="crm")).outcome == "created"
        assert (await save(stores[0], "m-z", "Has two cats", entity=BOB)).outcome == "created"

    @proves("memories.said-once", "memories.updated")
    async def test_a_text_that_was_changed_or_deleted_can_be_said_again(self, store: MemoryStore) -> None:
        await save(store, "m-1", "Has a cat")
        await store.update_memory(UpdateMemory(entity=ANN, id="m-1", text="Has a dog"))
        assert (await save(store, "m-2", "Has a cat")).outcome == "created"
        # Both may end up with the same text: no change is refused because of that.
        await store.update_memory(UpdateMemory(entity=ANN, id="m-2", text="Has a dog"))
        assert sorted(await by_words(store, "dog")) == ["m-1", "m-2"]
        assert await store.delete_memories(ANN) == 2
        assert (await save(store, "m-3", "Has a dog")).outcome == "created"

    @proves("memories.nothing-lost")
    async def test_of_memories_saved_at_once_none_is_lost(self, handles: Handles[Backend]) -> None:
        one, two = memories_of(await handles.open()), memories_of(await handles.open())
        await asyncio.gather(
            *(
                save(each, f"{name}-{n}", f"{name} fact {n}")
                for name, each in (("a", one), ("b", two))
                for n in range(25)
            )
        )
        assert (await one.list_memories(ANN)).total == 50
        assert await two.list_entities() == await one.list_entities()
        assert (await two.list_entities()).items == (MemoryEntity(entity=ANN, source="chat", memories=50),)

    @proves("memories.whole")
    async def test_a_write_cut_off_at_any_statement_is_whole_or_not_there(self, handles: Handles[Backend]) -> None:
        healthy = memories_of(await handles.open())
        lost = (ConnectionLostError, StoreUnavailableError)
        for statement in range(1, MOST_STATEMENTS):
            entity = f"case-{statement}"
            await save(healthy, "m-1", "Has a cat", entity)
            await embed(healthy, "m-1", 1.0, entity=entity)
            seam = DyingSeam()
            dying = await handles.open(seam=seam)
            seam.arm(after=statement)
            try:
                await memories_of(dying).update_memory(UpdateMemory(entity=entity, id="m-1", text="Has a dog"))
                completed = True
            except lost:
                completed = False
            finally:
                seam.disarm()
                await dying.close()
            seen = (
                await by_words(healthy, "cat", entity),
                await by_words(healthy, "dog", entity),
                await by_meaning(healthy, 1.0, entity=entity),
            )
            assert seen == ([], ["m-1"], []) if completed else seen in ((["m-1"], [], ["m-1"]), ([], ["m-1"], []))
            if completed:
                return
        pytest.fail(f"a change takes more than {MOST_STATEMENTS} statements")

    @proves("memories.scoped")
    async def test_nobody_gets_at_memories_of_another_entity_or_namespace(self, handles: Handles[Backend]) -> None:
        store, other = memories_of(await handles.open()), memories_of(await handles.open(namespace="other"))
        await save(store, "m-1", "Has a cat")
        await save(store, "m-2", "Has a cat", BOB)
        await save(other, "m-1", "Has a cat and a dog")
        for entity, name in ((ANN, "m-1"), (BOB, "m-2")):
            assert await embed(store, name, 1.0, entity=entity)
            assert await by_words(store, "cat", entity) == await by_meaning(store, 1.0, entity=entity) == [name]
        assert await store.find_memory(ANN, "m-2") is None
        with pytest.raises(MemoryNotFoundError):
            await store.update_memory(UpdateMemory(entity=ANN, id="m-2", text="Has a dog"))
        assert not await embed(store, "m-2", 1.0, text="Has a cat")
        assert await store.delete_memories(ANN, ids=["m-2"]) == 0
        assert await store.delete_memories(BOB) == 1
        assert await by_words(store, "dog") == []
        assert await by_words(other, "dog") == ["m-1"]
        assert [each.entity for each in await store.list_entities()] == [ANN]
        assert [each.id for each in await other.list_unembedded()] == ["m-1"]

    @proves("memories.updated")
    async def test_a_change_counts_the_version_and_the_second_writer_is_told(self, handles: Handles[Backend]) -> None:
        one, two = memories_of(await handles.open()), memories_of(await handles.open())
        await save(one, "m-1", "Has a cat", metadata={"sure": True})
        change = UpdateMemory(entity=ANN, id="m-1", text="Has a dog", expected_version=1)
        changed = await one.update_memory(change)
        assert (changed.text, changed.metadata, changed.version) == ("Has a dog", {"sure": True}, 2)
        with pytest.raises(MemoryChangedError) as refused:
            await two.update_memory(replace(change, text="Has a bird"))
        assert (refused.value.expected, refused.value.found) == (1, 2)
        assert await two.find_memory(ANN, "m-1") == changed
        # A change to the same values is no change.
        assert await two.update_memory(UpdateMemory(entity=ANN, id="m-1", text="Has a dog")) == changed

    @proves("memories.words")
    async def test_memories_are_found_by_their_words_the_best_first(self, store: MemoryStore) -> None:
        await save(store, "m-1", "Their favourite colour is blue")
        await save(store, "m-2", "The car is blue", source="crm")
        await save(store, "m-3", "Plays the violin")
        await save(store, "m-4", "東京に住んでいます")
        assert await by_words(store, "Which colours are my favourites? Is it BLUE?") == ["m-1", "m-2"]
        assert await by_words(store, "favourite blue", limit=1) == ["m-1"]
        assert await by_words(store, "blue", sources=["crm"]) == ["m-2"]
        assert await by_words(store, "blue", sources=["nowhere"]) == await by_words(store, "blue", sources=[]) == []
        assert await by_words(store, "violín") == ["m-3"]
        assert await by_words(store, "東京のタワー") == ["m-4"]
        # Vowels are marks there: without them, these would share every word.
        await save(store, "m-5", "मेरी बिल्ली का नाम मोती है")
        await save(store, "m-6", "قِطَّتِي صغيرة ❤️")
        assert await by_words(store, "बिल्ली कहाँ?") == ["m-5"]
        assert await by_words(store, "मेरा बाल") == await by_words(store, "🌧️") == []
        assert await by_words(store, "قطتي") == ["m-6"]
        assert await by_words(store, "Who is it, and what is this?") == await by_words(store, "tuba") == []

    @proves("memories.words", "memories.scoped")
    async def test_what_others_say_does_not_change_what_counts_for_one(self, store: MemoryStore) -> None:
        await save(store, "m-1", "Plays violin")
        await save(store, "m-2", "Drinks tea")
        before = await by_words(store, "Violin or tea?")
        for n, word in enumerate(["tea"] * 9 if before[0] == "m-2" else ["violin"] * 9):
            await save(store, f"m-{n}", f"Number {n} is {word}", BOB)
        assert await by_words(store, "Violin or tea?") == before

    @proves("memories.meaning")
    async def test_memories_are_found_by_their_meaning_the_nearest_first(self, store: MemoryStore) -> None:
        vectors = {"m-1": (1.0, 0.0), "m-2": (0.8, 0.6), "m-3": (0.0, 1.0), "m-4": (-1.0, 0.0), "m-5": (0.0, 0.0)}
        for name, values in vectors.items():
            await save(store, name, f"Fact {name}", source="crm" if name == "m-2" else "chat")
            assert await embed(store, name, *values)
        near = await store.search_meaning(ANN, unit_vector((2.0, 0.2)), "small", limit=3)
        assert [each.memory.id for each in near] == ["m-1", "m-2", "m-3"]
        assert [each.similarity for each in near] == pytest.approx([0.995, 0.856, 0.0995], abs=1e-3)
        assert near[0].memory.embedding_status == "complete"
        assert await by_meaning(store, 1.0, 0.0, sources=["crm"]) == ["m-2"]
        assert await by_meaning(store, 1.0, 0.0, by="large") == []
        # A vector of another length can be compared with nothing here.
        assert await by_meaning(store, 1.0, 0.0, 0.0) == []
        assert len(await store.search_meaning(ANN, unit_vector((0.0, 0.0)), "small")) == 5

    @proves("memories.embedded")
    async def test_an_embedding_is_of_one_text_and_no_later_one(self, store: MemoryStore) -> None:
        await save(store, "m-1", "Has a cat")
        assert await embed(store, "m-1", 1.0, 0.0)
        await store.update_memory(UpdateMemory(entity=ANN, id="m-1", metadata={"sure": True}))
        assert await by_meaning(store, 1.0, 0.0) == ["m-1"]
        changed = await store.update_memory(UpdateMemory(entity=ANN, id="m-1", text="Has a dog"))
        assert (changed.version, changed.embedding_status) == (3, "pending")
        assert await by_meaning(store, 1.0, 0.0) == []
        assert not await embed(store, "m-1", 1.0, 0.0, text="Has a cat")
        assert await embed(store, "m-1", 0.0, 1.0)
        assert await embed(store, "m-1", 0.0, 1.0, by="large")
        assert await by_meaning(store, 0.0, 1.0) == []
        assert await by_meaning(store, 0.0, 1.0, by="large") == ["m-1"]
        # After deleting and saving again, it is the first version of another text.
        await store.delete_memories(ANN)
        await save(store, "m-1", "Has a bird")
        assert not await embed(store, "m-1", 0.0, 1.0, text="Has a dog")
        # If a text is the same again, its embedding counts, whatever else has changed.
        await store.update_memory(UpdateMemory(entity=ANN, id="m-1", metadata={"sure": True}))
        assert await embed(store, "m-1", 0.0, 1.0, text="Has a bird")

    @proves("memories.unembedded")
    async def test_what_an_embedder_has_not_read_is_listed(self, store: MemoryStore, clock: ManualClock) -> None:
        for entity in (BOB, ANN):
            for n in (2, 1, 3):
                await save(store, f"m-{n}", f"Fact {n}", entity)
        clock.advance(10)
        assert await store.list_unembedded(before_ms=clock.now_ms() - 10) == ()
        await embed(store, "m-1", 1.0)
        await embed(store, "m-2", 1.0, by="large")

        async def listed(*args: Any, **options: Any) -> list[tuple[str, str]]:
            return [(each.entity, each.id) for each in await store.list_unembedded(*args, **options)]

        of_bob = [(BOB, f"m-{n}") for n in (1, 2, 3)]
        assert await listed() == [(ANN, "m-3"), *of_bob]
        assert await listed("small") == [(ANN, "m-2"), (ANN, "m-3"), *of_bob]
        assert await listed("small", after=(ANN, "m-2"), limit=2) == [(ANN, "m-3"), (BOB, "m-1")]
        assert len(await listed("small", before_ms=clock.now_ms())) == 5

    @proves("memories.deleted")
    async def test_deleted_memories_leave_nothing_by_which_they_are_found(self, store: MemoryStore) -> None:
        for name, source in (("m-1", "chat"), ("m-2", "crm"), ("m-3", "chat"), ("m-4", "crm")):
            await save(store, name, f"Fact {name}", source=source)
            await embed(store, name, 1.0)
        await save(store, "m-5", "Fact of another", BOB)
        assert await store.delete_memories(ANN, ids=["m-1", "m-9"]) == 1
        assert await store.delete_memories(ANN, ids=[]) == 0
        assert await store.delete_memories(ANN, ids=[f"x-{n}" for n in range(33_000)]) == 0
        assert await store.delete_memories(ANN, sources=["crm"]) == 2
        assert await by_words(store, "fact") == await by_meaning(store, 1.0) == ["m-3"]
        assert await store.delete_memories(ANN) == 1
        assert await store.delete_memories(ANN) == 0
        assert await by_words(store, "fact") == await by_meaning(store, 1.0) == []
        assert await store.find_memory(ANN, "m-3") is None
        assert (await store.list_entities()).items == (MemoryEntity(entity=BOB, source="chat", memories=1),)
        # A new memory in its place is not found by what the old one meant.
        await save(store, "m-1", "Fact again")
        assert await by_meaning(store, 1.0) == []

    @proves("memories.listed")
    async def test_memories_and_entities_are_paged(self, store: MemoryStore, clock: ManualClock) -> None:
        for n in range(5):
            await save(store, f"m-{n}", f"Fact {n}", source="crm" if n % 2 else "chat")
            clock.advance(1)
        await save(store, "m-9", "Fact", BOB)
        page = await store.list_memories(ANN, offset=1, limit=2)
        assert ([each.id for each in page], page.total, page.has_more) == (["m-3", "m-2"], 5, True)
        assert [each.id for each in await store.list_memories(ANN, sources=["crm"])] == ["m-3", "m-1"]
        assert (await store.list_memories("nobody")).total == 0
        entities = await store.list_entities()
        assert [(each.entity, each.source, each.memories) for each in entities] == [
            (ANN, "chat", 3),
            (ANN, "crm", 2),
            (BOB, "chat", 1),
        ]
        assert (await store.list_entities(offset=2, limit=1)).items == entities.items[2:]
        broken: Sequence[dict[str, Any]] = ({"limit": 0}, {"offset": -1})
        for wrong in broken:
            with pytest.raises(InvalidPageError):
                await store.list_memories(ANN, **wrong)
            with pytest.raises(InvalidPageError):
                await store.list_entities(**wrong)

    @proves("memories.refused")
    async def test_what_cannot_be_kept_is_refused(self, store: MemoryStore) -> None:
        wrong: Any
        for wrong in (" \n", "x" * (MOST_CHARACTERS + 1), "a\0b", "a\ud800b", 7):
            with pytest.raises((InvalidInputError, UnstorableValueError)):
                await save(store, "m-1", wrong)
        for fields in ({"entity": ""}, {"entity": "a\nb"}, {"source": ""}, {"session_id": ""}):
            with pytest.raises(InvalidIdError):
                await save(store, "m-1", "Has a cat", **fields)
        for metadata in ({"a": float("nan")}, ["a"], {"a": "x" * 20_000}):
            with pytest.raises((InvalidInputError, UnstorableValueError)):
                await save(store, "m-1", "Has a cat", metadata=metadata)
        await save(store, "m-1", "Has a cat")
        with pytest.raises(InvalidInputError):
            await store.update_memory(UpdateMemory(entity=ANN, id="m-1", text=""))
        broken: Sequence[dict[str, Any]] = (
            {"vector": b""},
            {"vector": b"abc"},
            {"vector": bytes(4 * (MOST_DIMENSIONS + 1))},
            {"vector": array("f", [1.0, float("nan")]).tobytes()},
            {"embedded_by": ""},
            {"text": " "},
        )
        for fields in broken:
            embedding = MemoryEmbedding(entity=ANN, id="m-1", text="Has a cat", embedded_by="small", vector=bytes(4))
            with pytest.raises(InvalidInputError):
                await store.put_embedding(embedding._replace(**fields))
        assert [(each.text, each.embedding_status) for each in await store.list_memories(ANN)] == [
            ("Has a cat", "pending")
        ]

    @proves("memories.closed")
    async def test_a_closed_part_refuses_work_and_the_others_go_on(self, parts: Backend) -> None:
        store = memories_of(parts)
        await store.close()
        await store.close()
        with pytest.raises(StoreClosedError):
            await save(store, "m-1", "Has a cat")
        with pytest.raises(StoreClosedError):
            await store.search_words(ANN, ("cat",))
        assert (await parts.usage.query_usage()).total == 0

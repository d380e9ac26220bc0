"""A program looks after memories: what an embedder has to do with it, and what is left when that fails."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helix_agents import (
    Agent,
    BackgroundEmbeddingExecutor,
    DefinitionError,
    Executor,
    HashingEmbedder,
    Memory,
    MemoryManager,
    MemoryStore,
    ScriptedModel,
    ask_human,
)
from helix_agents.domain.errors import (
    InvalidInputError,
    InvalidPageError,
    MemoryChangedError,
    ModelRefusedError,
    ModelUnavailableError,
)
from helix_agents.memory import memory_manager
from helix_agents.ports.backend import open_backend
from helix_agents.ports.embeddings import EmbeddingPurpose
from helix_agents.testing import call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import until

ANN = "ann"


class Embedder:
    """Counts how many ask it at once; does not answer while it is down, and never reads a poem."""

    def __init__(self, name: str = "small") -> None:
        self.name = name
        self.down = False
        self.refuses: BaseException | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.two_ask = asyncio.Event()
        self.asked = self.at_once = self.most = 0

    async def is_asked(self) -> bool:
        return self.asked > 0

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        if self.at_once == 2:
            self.two_ask.set()
        try:
            await self.answers.wait()
        finally:
            self.at_once -= 1
        if self.refuses is not None:
            raise self.refuses
        if self.down:
            raise ModelUnavailableError(self.name, "no route")
        if any("poem" in text for text in texts):
            raise ModelRefusedError(self.name, "no poems")
        return await HashingEmbedder().embed(texts, purpose=purpose)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with await open_backend("memory://") as backend:
        assert backend.memories is not None
        yield backend.memories


async def test_a_memory_is_embedded_before_its_save_is_answered(store: MemoryStore) -> None:
    memories = MemoryManager(store, embedder=Embedder())
    saved = await memories.save(ANN, "Collects colourful stamps")
    assert (saved.outcome, saved.memory.embedding_status) == ("created", "complete")
    [hit] = await memories.search(ANN, "colour")
    assert (hit.memory.id, hit.by_words) == (saved.memory.id, False)
    assert hit.similarity is not None
    assert await memories.search(ANN, "colour", min_similarity=0.99) == ()
    changed = await memories.update(ANN, saved.memory.id, text="Collects coins", expected_version=1)
    assert changed.embedding_status == "complete"
    with pytest.raises(MemoryChangedError):
        await memories.update(ANN, saved.memory.id, text="Collects shells", expected_version=1)
    assert await memories.delete(ANN, saved.memory.id) == 1
    assert await memories.search(ANN, "coins") == ()


async def test_beside_whoever_saves_only_so_many_are_embedded_at_once_and_shutdown_waits_for_all(
    store: MemoryStore,
) -> None:
    embedder = Embedder()
    embedder.answers.clear()
    memories = MemoryManager(store, embedder=embedder, embedding_executor=BackgroundEmbeddingExecutor(2))
    for n in range(6):
        assert (await memories.save(ANN, f"Fact {n}")).memory.embedding_status == "pending"
    # What is pending is found by its words at once.
    assert len(await store.search_words(ANN, ("fact",))) == 6
    async with asyncio.timeout(10):
        await embedder.two_ask.wait()
    embedder.answers.set()
    await memories.shutdown()
    assert embedder.most == 2
    assert {each.embedding_status for each in await memories.list_memories(ANN)} == {"complete"}
    # It begins anew.
    await memories.save(ANN, "One more fact")
    await memories.shutdown()
    assert await store.list_unembedded() == ()


async def test_a_shutdown_does_not_wait_for_ever_and_loses_nothing(store: MemoryStore) -> None:
    embedder = Embedder()
    embedder.answers.clear()
    executor = BackgroundEmbeddingExecutor(1, shutdown_seconds=0.01)
    memories = MemoryManager(store, embedder=embedder, embedding_executor=executor)
    for n in range(3):
        await memories.save(ANN, f"Fact {n}")
    async with asyncio.timeout(10):
        await memories.shutdown()
    embedder.answers.set()
    assert len(await store.list_unembedded()) == 3
    done = await memories.process_unembedded_memories()
    assert (done.embedded, done.left) == (3, 0)


async def test_what_was_left_while_the_embedder_was_down_is_embedded_later(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = Embedder()
    embedder.down = True
    memories = MemoryManager(store, embedder=embedder)
    with caplog.at_level(logging.ERROR, "helix_agents"):
        for n in range(120):
            await store_one(memories, n)
        assert await memories.search(ANN, "fact 7") != ()
        asked = embedder.asked
        done = await memories.process_unembedded_memories()
    # Once it does not answer, it is not asked for each of the rest.
    assert (done.embedded, embedder.asked - asked) == (0, 1)
    embedder.down = False
    await memories.store.delete_memories(ANN, ids=["m-3"])
    await memories.save(ANN, "A poem of many lines", memory_id="m-003b")
    done = await memories.process_unembedded_memories()
    assert (done.embedded, done.left) == (119, 1)
    assert [each.text for each in await store.list_unembedded()] == ["A poem of many lines"]
    # Another embedder reads all of it anew, and finds nothing by what the first one read.
    other = MemoryManager(store, embedder=Embedder("large"))
    assert (await other.process_unembedded_memories(only_pending=True)).embedded == 0
    assert (await other.process_unembedded_memories()).embedded == 119
    assert await store.search_meaning(ANN, bytes(4 * 256), "small") == ()


async def test_texts_that_an_embedder_refuses_do_not_hold_up_those_behind_them(store: MemoryStore) -> None:
    embedder = Embedder()
    embedder.down = True
    memories = MemoryManager(store, embedder=embedder)
    for n in range(60):
        await memories.save(ANN, f"A poem of {n} lines", memory_id=f"a-{n:02}")
    await memories.save(ANN, "Has a cat", memory_id="b-1")
    embedder.down = False
    done = await memories.process_unembedded_memories()
    assert (done.embedded, done.left) == (1, 60)
    # One that reads nothing at all is not asked for each of them.
    embedder.name, asked = "poem-reader", embedder.asked
    refused = ModelRefusedError("small", "no key")
    embedder.refuses = refused
    assert (await memories.process_unembedded_memories()).embedded == 0
    assert embedder.asked - asked == 2


async def test_a_janitor_embeds_some_in_each_round_and_comes_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for what a janitor does next."""
    monkeypatch.setattr("helix_agents.memory.memory.MOST_SWEPT", 50)
    monkeypatch.setattr("helix_agents.memory.memory.LEFT_ALONE_MS", 0)
    embedder = Embedder()
    broken = Agent(name="broken", model=ScriptedModel([]), memory=Memory(embedder="nobody:knows"))
    friend = Agent(name="friend", model=ScriptedModel([]), memory=Memory(embedder=embedder))
    async with Executor.open("memory://", agents=[broken, friend]) as helix:
        assert helix.memories is not None
        plain = MemoryManager(helix.memories)
        for n in range(70):
            await plain.save(ANN, f"A poem of {n} lines", memory_id=f"a-{n:02}")
        for n in range(40):
            await plain.save(ANN, f"Fact {n}", memory_id=f"b-{n}")
        left: list[int] = []
        for _ in range(4):
            await helix.sweep()
            left.append(len(await helix.memories.list_unembedded(limit=200)))
    assert left == [110, 80, 70, 70]


async def test_a_round_of_the_janitor_waits_for_no_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helix_agents.memory.memory.LEFT_ALONE_MS", -1_000)
    embedder = Embedder()
    embedder.answers.clear()
    asks = ScriptedModel([call("ask_human", {"question": "Which boat?"})])
    friend = Agent(name="friend", model=asks, tools=[ask_human()], memory=Memory(embedder=embedder, retrieve=False))
    async with Executor.open("memory://", agents=[friend], janitor_seconds=0.01) as helix, asyncio.timeout(10):
        await MemoryManager(helix.memories).save(ANN, "Has a cat")
        await until(embedder.is_asked)
        # While the embedder says nothing, others are looked after.
        await (await helix.execute(friend, "Book a boat", "s-1", expires_in=0.001)).result()

        async def is_expired() -> bool:
            return (await helix.sessions.get("s-1")).failure_reason == "session_expired"

        await until(is_expired)
        embedder.answers.set()


async def test_a_janitor_asks_for_a_refused_text_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helix_agents.memory.memory.LEFT_ALONE_MS", 0)
    embedder = Embedder()
    embedder.down = True
    memory = Memory(embedder=embedder)
    clock = ManualClock()
    async with await open_backend("memory://", clock=clock) as backend:
        store = backend.memories
        assert store is not None
        plain = MemoryManager(store)
        await plain.save(ANN, "A poem of 1 line", memory_id="a-1")

        async def asked() -> int:
            before = embedder.asked
            clock.advance(1_000)
            for _ in range(4):
                await memory.sweep(store)
            return embedder.asked - before

        # An embedder that is down is asked each time a round comes to the text: that says nothing about the text.
        assert await asked() == 2
        embedder.down = False
        # The text, and something else to see whether the embedder reads anything.
        assert [await asked(), await asked()] == [2, 0]
        for n in range(60):
            await plain.save(ANN, f"Fact {n}", memory_id=f"b-{n:02}")
        await plain.save(ANN, "A poem of 2 lines", memory_id="c-1")
        assert await asked() > 0
        assert [each.id for each in await store.list_unembedded()] == ["a-1", "c-1"]
        assert await asked() == 0
        # Another text of the same memory was never refused.
        await plain.update(ANN, "a-1", text="A line of prose")
        await asked()
        assert [each.id for each in await store.list_unembedded()] == ["c-1"]
        assert await asked() == 0
        clock.advance(24 * 60 * 60 * 1000)
        assert await asked() == 2
        # Whoever asks for everything gets everything tried.
        before = embedder.asked
        await MemoryManager(store, embedder=embedder).process_unembedded_memories()
        assert embedder.asked - before == 1


async def test_an_embedder_that_hangs_or_cancels_itself_is_not_waited_for(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder()
    memories = MemoryManager(store, embedder=embedder)
    embedder.answers.clear()
    monkeypatch.setattr(memory_manager, "PATIENCE", {"query": 0.01, "document": 0.01})
    async with asyncio.timeout(10):
        assert (await memories.save(ANN, "Has a cat")).memory.embedding_status == "pending"
        assert len(await memories.search(ANN, "cats")) == 1
        embedder.answers.set()
        embedder.refuses = asyncio.CancelledError()
        assert len(await memories.search(ANN, "cats")) == 1


async def test_what_is_saved_while_others_are_waited_for_is_waited_for_too(store: MemoryStore) -> None:
    class ReadsDogsSlowly(Embedder):
        async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
            vectors = await super().embed(texts, purpose=purpose)
            for _ in range(50 if "dog" in texts[0] else 0):
                await asyncio.sleep(0)
            return vectors

    embedder = ReadsDogsSlowly()
    embedder.answers.clear()
    memories = MemoryManager(store, embedder=embedder, embedding_executor=BackgroundEmbeddingExecutor(2))
    await memories.save(ANN, "Has a cat")
    closing = asyncio.create_task(memories.shutdown())
    await asyncio.sleep(0)
    await memories.save(ANN, "Has a dog")
    embedder.answers.set()
    await closing
    assert await store.list_unembedded() == ()


async def store_one(memories: MemoryManager, n: int) -> None:
    saved = await memories.save(ANN, f"Fact {n}", memory_id=f"m-{n}")
    assert saved.memory.embedding_status == "pending"


@pytest.mark.parametrize("vectors", [[], [[]], [[1.0], [2.0]], [[float("nan")]], [[1.0] * 16_001], [["x"]], 7, None])
async def test_an_embedder_that_gives_nonsense_loses_nothing(store: MemoryStore, vectors: Any) -> None:
    class Nonsense(Embedder):
        async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
            return vectors

    memories = MemoryManager(store, embedder=Nonsense())
    assert (await memories.save(ANN, "Has a cat")).memory.embedding_status == "pending"
    assert len(await memories.search(ANN, "cats")) == 1


async def test_what_cannot_be_asked_is_refused(store: MemoryStore) -> None:
    memories = MemoryManager(store)
    wrong: Any = 7
    with pytest.raises(InvalidInputError):
        await memories.search(ANN, wrong)
    with pytest.raises(InvalidPageError):
        await memories.search(ANN, "cats", limit=0)
    with pytest.raises(DefinitionError, match="embedder"):
        await memories.process_unembedded_memories()
    with pytest.raises(DefinitionError, match=r"executor\.memories"):
        MemoryManager(wrong)
    assert await memories.search(ANN, " ") == ()


async def test_a_whole_page_can_be_asked_with(tmp_path: Path) -> None:
    """Words of a question are parts of one expression, which no database reads at any length."""
    async with MemoryManager.open(f"sqlite:///{tmp_path / 'helix.db'}", embedder=HashingEmbedder()) as memories:
        await memories.save(ANN, "Has a cat")
        page = " ".join(f"word{n}" for n in range(50_000))
        [hit] = await memories.search(ANN, f"{page} And my cat?")
        assert hit.by_words


SAVES = """
import asyncio, sys
from helix_agents import MemoryManager

async def main() -> None:
    async with MemoryManager.open(sys.argv[1], embedder="hashing:32") as memories:
        for n in range(40):
            await memories.save("ann", f"{sys.argv[2]} says {n}")
            await memories.save("ann", f"Everybody says {n}")

asyncio.run(main())
"""


async def test_two_processes_that_save_at_once_lose_nothing_and_say_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    processes = [subprocess.Popen([sys.executable, "-c", SAVES, url, name]) for name in ("One", "Two")]
    for process in processes:
        assert await asyncio.to_thread(process.wait, 60) == 0
    async with MemoryManager.open(url) as memories:
        assert (await memories.list_memories("ann")).total == 120
        assert await memories.store.list_unembedded() == ()

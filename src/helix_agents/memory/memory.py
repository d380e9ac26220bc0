"""What an agent remembers across conversations, and about whom, as one frozen definition."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from helix_agents.agent.calling import call_quick, is_generator
from helix_agents.agent.choices import check_switch, check_whole
from helix_agents.agent.context import RunContext
from helix_agents.agent.memory import AgentMemory, Lesson
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError, UnsupportedBackendError
from helix_agents.domain.ids import check_id
from helix_agents.domain.memories import EntityId, MemoryId, MemoryRecord
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_exception
from helix_agents.memory.executors import EmbeddingExecutor, InlineEmbeddingExecutor
from helix_agents.memory.learning import (
    MOST_AT_ONCE,
    REMEMBER,
    MemoryGeneration,
    ids_kept_under,
    keep,
    question_about,
)
from helix_agents.memory.memory_manager import LEAST_SIMILARITY, MemoryManager, check_embedder
from helix_agents.memory.refused import RefusedTexts
from helix_agents.memory.tools import SAVE_MEMORY, SEARCH_MEMORY, Desk, save_tool, search_tool
from helix_agents.ports.embeddings import EmbeddingAdapter, open_embedder
from helix_agents.ports.llm import LLMAdapter, ModelSettings
from helix_agents.ports.memory_store import MemoryStore

EntityOf: TypeAlias = Callable[[RunContext[Any, Any]], Awaitable[str | None] | str | None]

# A memory saved just now is probably being embedded by the process that saved it.
LEFT_ALONE_MS = 60_000
# A janitor has other things to do as well.
MOST_SWEPT = 500
# How many related memories the model sees when it makes new ones.
MOST_KNOWN = 20
# What was said last shows best what a conversation is about, and embedders read no more at once.
_ASKED_WITH = 4_000
_MOST_ASKED = 60
_TOOLS = (SEARCH_MEMORY, SAVE_MEMORY)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Lets an agent remember across conversations: `Agent(memory=Memory())`.

    Memories belong to an entity: by default the session's user. Whenever the user speaks, the model is told the related
    memories in a hidden message: each once for as long as the model still sees it, and again when it has changed. A
    session without an entity has no memories and gets none.

    Args:
        entity: Whose memories they are: a function of the run. None means no one. Defaults to `ctx.user_id`.
        sources: Which of the entity's memories the agent sees, by where they come from. Defaults to all.
        save_as: The source of what the agent saves. Defaults to the agent's name.
        embedder: What reads the meaning of memories: a name such as `"openai:text-embedding-3-small"`, or an adapter.
            Without one, memories are found by their words.
        embedding_executor: When memories are embedded. By default before a save returns.
        retrieve: Whether the model is told related memories without asking.
        limit: The most memories that it is told at once.
        max_characters: How much text these may have in total.
        min_similarity: How near the meaning of a memory has to be if it shares no word with the query, from -1 to 1.
        tools: Whether the model gets `search_memory` and `save_memory`, or which of them.
        generation: Whether a model makes memories from what was said.

    Raises:
        DefinitionError: the settings could not work; the message says why.
    """

    entity: EntityOf | None = None
    sources: Sequence[str] | None = None
    save_as: str | None = None
    embedder: str | EmbeddingAdapter | None = None
    embedding_executor: EmbeddingExecutor | None = None
    retrieve: bool = True
    limit: int = 8
    max_characters: int = 4_000
    min_similarity: float = LEAST_SIMILARITY
    tools: bool | Sequence[str] = True
    generation: MemoryGeneration | None = None

    def __post_init__(self) -> None:
        given = vars(self)
        if self.entity is not None and (not callable(given["entity"]) or is_generator(self.entity)):
            raise DefinitionError(
                "Memory", f"entity={self.entity!r} is not a function of the run, such as lambda ctx: …."
            )
        if isinstance(given["sources"], str):
            raise DefinitionError("Memory", f"sources={self.sources!r} is not a list; write sources=[…].")
        for source in (*(self.sources or ()), *(() if self.save_as is None else (self.save_as,))):
            check_id(source, "source")
        check_switch("Memory", "retrieve", self.retrieve)
        check_whole("Memory", "limit", self.limit, 1)
        check_whole("Memory", "max_characters", self.max_characters, 1)
        if isinstance(self.min_similarity, bool) or not -1 <= self.min_similarity <= 1:
            raise DefinitionError("Memory", f"min_similarity={self.min_similarity!r} has to be from -1 to 1.")
        if not isinstance(given["generation"], MemoryGeneration | None):
            raise DefinitionError("Memory", f"generation={self.generation!r} is not a MemoryGeneration(…).")
        check_embedder("Memory", self.embedder)
        if not isinstance(given["tools"], bool) and not {*given["tools"]} <= {*_TOOLS}:
            raise DefinitionError("Memory", f"tools={self.tools!r} is neither True nor False; the tools are {_TOOLS}.")

    @property
    def all_tools(self) -> Sequence[Tool[..., Any]]:
        """`search_memory` and `save_memory`, as far as the model gets them."""
        return self._made_tools

    @cached_property
    def _made_tools(self) -> tuple[Tool[..., Any], ...]:
        wanted = _TOOLS if self.tools is True else self.tools or ()
        sources = None if self.sources is None else tuple(self.sources)
        made = (search_tool(self._desk, sources, self.min_similarity), save_tool(self._desk, sources))
        return tuple(each for each in made if each.name in wanted)

    @property
    def recalls(self) -> bool:
        """Whether the model is told related memories."""
        return self.retrieve

    @property
    def learns_every(self) -> int | None:
        """After how many turns memories are made from them."""
        return None if self.generation is None else self.generation.every_turns

    @property
    def model(self) -> str | LLMAdapter | None:
        """The model that makes them."""
        return None if self.generation is None else self.generation.model

    @property
    def settings(self) -> ModelSettings | None:
        """How that model should answer."""
        return None if self.generation is None else self.generation.settings

    async def recall(
        self, context: RunContext[Any, Any], question: str, told: Mapping[MemoryId, int]
    ) -> Sequence[MemoryRecord]:
        """The memories that relate to a query. If the search fails, that is logged, and the result is empty.

        Raises:
            DefinitionError, MissingExtraError, Exception: the entity or the embedder could not be determined.
        """
        desk = await self._desk(context)
        if desk.entity is None:
            return ()
        try:
            # Some of the best may have been told already.
            hits = await desk.manager.search(
                desk.entity,
                question,
                sources=self.sources,
                limit=min(self.limit * 2, _MOST_ASKED),
                min_similarity=self.min_similarity,
            )
        except Exception as problem:
            log_exception("memory.recall_failed", problem, session_id=context.session_id)
            return ()
        found: list[MemoryRecord] = []
        room = self.max_characters
        for memory in (each.memory for each in hits):
            if told.get(memory.id) == memory.version or len(memory.text) > room:
                continue
            room -= len(memory.text)
            found.append(memory)
            if len(found) == self.limit:
                break
        return found

    async def lesson(self, context: RunContext[Any, Any], conversation: str, once: str) -> Lesson | None:
        """The request to a model that makes memories. It sees those that it may change: its own, as they were before an
        attempt that died."""
        assert self.generation is not None
        desk = await self._desk(context)
        if desk.entity is None:
            return None
        hits = await desk.manager.search(
            desk.entity,
            conversation[-_ASKED_WITH:],
            sources=(desk.source,),
            limit=MOST_KNOWN + MOST_AT_ONCE,
            min_similarity=self.min_similarity,
        )
        kept_before = ids_kept_under(once)
        known = tuple(each.memory for each in hits if each.memory.id not in kept_before)[:MOST_KNOWN]
        text = question_about(conversation, known)
        return Lesson(desk.entity, self.generation.instructions, text, REMEMBER, known)

    async def learn(
        self, context: RunContext[Any, Any], lesson: Lesson, answer: Mapping[str, JSON], once: str
    ) -> Sequence[MemoryId]:
        """Keep what a model found."""
        desk = await self._desk(context)
        return await keep(
            desk.manager,
            lesson.entity,
            lesson.known,
            answer,
            source=desk.source,
            session_id=context.session_id,
            once=once,
        )

    async def sweep(self, store: MemoryStore) -> None:
        """Embed some memories that were left over because their process died or the embedder was down. The next call
        continues."""
        if self.embedder is None:
            return
        swept = await self._manager(store).process_unembedded_memories(
            older_than_ms=LEFT_ALONE_MS,
            only_pending=True,
            after=self._swept.after,
            at_most=MOST_SWEPT,
            refused=self._swept.refused,
        )
        self._swept.after = swept.after

    async def close(self) -> None:
        """Finish embeddings that are under way, and release an embedder that was opened here by its name."""
        await self._executor.shutdown()
        opened = vars(self).pop("_embedder", None) if isinstance(self.embedder, str) else None
        close = getattr(opened, "close", None)
        if close is not None:
            await close()

    async def _desk(self, context: RunContext[Any, Any]) -> Desk:
        store = context.link.memories
        if store is None:
            raise UnsupportedBackendError("This backend", "memories")
        return Desk(self._manager(store), await self._entity(context), self.save_as or context.agent)

    async def _entity(self, context: RunContext[Any, Any]) -> EntityId | None:
        """Whose memories a run is about; a function that returns anything but an id or None is an error."""
        if self.entity is None:
            return context.user_id
        found = await call_quick("The entity of a memory", self.entity, context)
        if found is None:
            return None
        if not isinstance(found, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            problem = f"its function returned a {type(found).__name__}; it has to return an id, or None for nobody."
            raise DefinitionError("The entity of a memory", problem)
        return check_id(found, "entity")

    def _manager(self, store: MemoryStore) -> MemoryManager:
        return MemoryManager(store, embedder=self._embedder, embedding_executor=self._executor)

    @cached_property
    def _embedder(self) -> EmbeddingAdapter | None:
        return open_embedder(self.embedder) if isinstance(self.embedder, str) else self.embedder

    @cached_property
    def _swept(self) -> "_Swept":
        return _Swept()

    @cached_property
    def _executor(self) -> EmbeddingExecutor:
        return self.embedding_executor or InlineEmbeddingExecutor()


@dataclass
class _Swept:
    """How far this process has come with embedding what was left over, and what the embedder refused of it."""

    after: tuple[EntityId, MemoryId] | None = None
    refused: RefusedTexts = field(default_factory=RefusedTexts)


_: type[AgentMemory] = Memory

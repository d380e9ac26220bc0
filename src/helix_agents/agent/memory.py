"""What the engine needs of an agent's memory: what to tell its model, and what to keep of a turn."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from helix_agents.agent.context import RunContext
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.memories import EntityId, MemoryId, MemoryRecord
from helix_agents.domain.records import JSON
from helix_agents.ports.llm import LLMAdapter, ModelSettings, ToolSpec
from helix_agents.ports.memory_store import MemoryStore


class Lesson(NamedTuple):
    """What a model is asked that looks for something to remember in a conversation, and what it was shown of what is
    known already."""

    entity: EntityId
    instructions: str
    text: str
    tool: ToolSpec
    known: tuple[MemoryRecord, ...]


class AgentMemory(Protocol):
    """The memory of an agent. Whose it is, it finds out from the run each time; that of nobody is empty."""

    @property
    def all_tools(self) -> Sequence[Tool[..., Any]]:
        """What the model may call to search and to save."""
        ...

    @property
    def recalls(self) -> bool:
        """Whether the model is told what is remembered."""
        ...

    @property
    def learns_every(self) -> int | None:
        """After how many turns a model looks for something to remember; None is never."""
        ...

    @property
    def model(self) -> str | LLMAdapter | None:
        """Who looks for it; the agent's own model if None."""
        ...

    @property
    def settings(self) -> ModelSettings | None:
        """How that model should answer; as the agent's own does if None."""
        ...

    async def recall(
        self, context: RunContext[Any, Any], question: str, told: Mapping[MemoryId, int]
    ) -> Sequence[MemoryRecord]:
        """What is remembered that has to do with a question, without what the model was told already."""
        ...

    async def lesson(self, context: RunContext[Any, Any], conversation: str, once: str) -> Lesson | None:
        """What to ask of a conversation; None where there is nobody to remember anything of. What was kept under this
        `once` before is not known yet: it will be replaced."""
        ...

    async def learn(
        self, context: RunContext[Any, Any], lesson: Lesson, answer: Mapping[str, JSON], once: str
    ) -> Sequence[MemoryId]:
        """Keep what a model found; the same again under the same `once` leaves nothing twice."""
        ...

    async def sweep(self, store: MemoryStore) -> None:
        """What has to be done now and then, by any number of processes at once."""
        ...

    async def close(self) -> None:
        """Finish what is under way in this process, and let go of what is open; a later call opens it again."""
        ...


def check_memory(memory: object, subject: str) -> None:
    """Refuse what is no memory.

    Raises:
        DefinitionError: says what to write.
    """
    if memory is not None and not (callable(getattr(memory, "recall", None)) and hasattr(memory, "learns_every")):
        raise DefinitionError(subject, f"memory={memory!r} is no Memory(…).")


def tools_of(memory: object) -> Sequence[Tool[..., Any]]:
    """The tools that a memory gives its agent."""
    return () if memory is None else cast("AgentMemory", memory).all_tools

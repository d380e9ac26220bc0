"""What the engine needs from an agent's memory: what to tell its model, and what to keep of a turn."""

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
    """The request to a model that looks for something to remember in a conversation, and the memories it was shown as
    already known."""

    entity: EntityId
    instructions: str
    text: str
    tool: ToolSpec
    known: tuple[MemoryRecord, ...]


class AgentMemory(Protocol):
    """The memory of an agent. It finds out from the run each time whose memory it is; without an owner it is empty."""

    @property
    def all_tools(self) -> Sequence[Tool[..., Any]]:
        """The tools the model may call to search and to save."""
        ...

    @property
    def recalls(self) -> bool:
        """Whether the model is told what is remembered."""
        ...

    @property
    def learns_every(self) -> int | None:
        """After how many turns a model looks for something to remember; None means never."""
        ...

    @property
    def model(self) -> str | LLMAdapter | None:
        """The model that looks for it; None for the agent's own."""
        ...

    @property
    def settings(self) -> ModelSettings | None:
        """How that model should answer; None for the agent's own settings."""
        ...

    async def recall(
        self, context: RunContext[Any, Any], question: str, told: Mapping[MemoryId, int]
    ) -> Sequence[MemoryRecord]:
        """The memories that relate to a question, without those the model was already told."""
        ...

    async def lesson(self, context: RunContext[Any, Any], conversation: str, once: str) -> Lesson | None:
        """What to ask about a conversation; None if there is no one to remember anything about. What was kept before
        under the same `once` does not count as known: it will be replaced."""
        ...

    async def learn(
        self, context: RunContext[Any, Any], lesson: Lesson, answer: Mapping[str, JSON], once: str
    ) -> Sequence[MemoryId]:
        """Keep what a model found. Repeating it under the same `once` stores nothing twice."""
        ...

    async def sweep(self, store: MemoryStore) -> None:
        """Periodic work, done by any number of processes at once."""
        ...

    async def close(self) -> None:
        """Finish what is under way in this process, and release what is open. A later call opens it again."""
        ...


def check_memory(memory: object, subject: str) -> None:
    """Reject anything that is not a memory.

    Raises:
        DefinitionError: says what to write instead.
    """
    if memory is not None and not (callable(getattr(memory, "recall", None)) and hasattr(memory, "learns_every")):
        raise DefinitionError(subject, f"memory={memory!r} is not a Memory(…).")


def tools_of(memory: object) -> Sequence[Tool[..., Any]]:
    """The tools that a memory gives its agent."""
    return () if memory is None else cast("AgentMemory", memory).all_tools

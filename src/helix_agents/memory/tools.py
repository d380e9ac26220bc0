"""The tools with which a model searches memories and saves new ones."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Field

from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.signatures import read_signature
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import InvalidIdError, InvalidInputError, MemoryNotFoundError, UnstorableValueError
from helix_agents.domain.memories import EntityId
from helix_agents.domain.records import JSON
from helix_agents.memory.memory_manager import MemoryManager

SEARCH_MEMORY = "search_memory"
SAVE_MEMORY = "save_memory"
MOST_FOUND = 20

_NOBODY = "This conversation belongs to no user, so nothing is remembered across conversations. Continue without it."


class Desk(NamedTuple):
    """What a tool works with in one run: whose memories they are, where they are saved, and under which source."""

    manager: MemoryManager
    entity: EntityId | None
    source: str


OpenDesk: TypeAlias = Callable[[RunContext[Any, Any]], Awaitable[Desk]]


def search_tool(desk_of: OpenDesk, sources: tuple[str, ...] | None, min_similarity: float) -> Tool[..., Any]:
    """`search_memory`."""

    async def search_memory(
        ctx: ToolContext[Any, Any],
        query: Annotated[str, Field(description="What to look for, in words that the memory may contain.")],
        limit: Annotated[int, Field(ge=1, le=MOST_FOUND, description="How many to return at most.")] = 5,
    ) -> dict[str, JSON]:
        desk = await desk_of(ctx)
        if desk.entity is None:
            raise ToolFailed(_NOBODY)
        hits = await desk.manager.search(
            desk.entity, query, sources=sources, limit=limit, min_similarity=min_similarity
        )
        found = (each.memory for each in hits)
        return {"memories": [{"id": each.id, "text": each.text, "since": each.day} for each in found]}

    return Tool(
        name=SEARCH_MEMORY,
        description="Search what is remembered from earlier conversations with this user.",
        input=read_signature(search_memory, f"Tool {SEARCH_MEMORY!r}", {}),
        function=search_memory,
        effect="repeatable",
    )


def save_tool(desk_of: OpenDesk, sources: tuple[str, ...] | None) -> Tool[..., Any]:
    """`save_memory`. A call repeated after a crash saves nothing twice, and no call changes what was not shown."""

    async def save_memory(
        ctx: ToolContext[Any, Any],
        text: Annotated[str, Field(description="One fact, as a short sentence that can be understood alone.")],
        replaces: Annotated[
            str | None, Field(description="The id of a memory, as search_memory gives it, that this corrects.")
        ] = None,
    ) -> dict[str, JSON]:
        desk = await desk_of(ctx)
        if desk.entity is None:
            raise ToolFailed(_NOBODY)
        try:
            if replaces:
                found = await desk.manager.find(desk.entity, replaces)
                if found is None or (sources is not None and found.source not in sources):
                    raise MemoryNotFoundError(desk.entity, replaces)
                changed = await desk.manager.update(desk.entity, replaces, text=text)
                return {"id": changed.id, "outcome": "replaced"}
            memory_id = f"mem_{sha256(ctx.idempotency_key.encode()).hexdigest()[:26]}"
            saved = await desk.manager.save(
                desk.entity, text, source=desk.source, session_id=ctx.session_id, memory_id=memory_id
            )
        except (InvalidIdError, InvalidInputError, MemoryNotFoundError, UnstorableValueError) as problem:
            # The model may try again, and a turn does not fail because something was not remembered.
            raise ToolFailed(str(problem)) from problem
        return {"id": saved.memory.id, "outcome": saved.outcome}

    return Tool(
        name=SAVE_MEMORY,
        description=(
            "Remember something about this user in later conversations: a fact, a wish or a decision that will still "
            "hold then. Never secrets."
        ),
        input=read_signature(save_memory, f"Tool {SAVE_MEMORY!r}", {}),
        function=save_memory,
        effect="repeatable",
    )

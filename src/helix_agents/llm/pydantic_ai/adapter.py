"""A model behind Pydantic AI's providers, loaded when it is first asked."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, overload

from helix_agents.llm.pydantic_ai.provider_support import Support, refusal
from helix_agents.ports.llm import LLMAdapter, ModelEvent, ModelRequest
from helix_agents.ports.provider_tools import ProviderTool

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from pydantic_ai.models import Model

    from helix_agents.llm.pydantic_ai.connections import Connection
    from helix_agents.llm.pydantic_ai.exchange import Exchange

ConnectionT = TypeVar("ConnectionT", bound="Connection")


class PydanticAIModel(LLMAdapter):
    """Any model that Pydantic AI can reach. `build` creates it, in a thread, when it is first asked.

    `build` gets an HTTP client for the model's provider, or what `connect` opens instead; `close` closes it. One
    instance serves any number of sessions, and any event loop, one loop at a time. `provider_tools` says which tools
    its provider runs; without it, that is found out when the model is first asked.
    """

    @overload
    def __init__(
        self, name: str, build: "Callable[[AsyncClient], Model[Any]]", *, provider_tools: Support | None = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        build: "Callable[[ConnectionT], Model[Any]]",
        *,
        connect: "Callable[[], ConnectionT]",
        provider_tools: Support | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        build: "Callable[[Any], Model[Any]]",
        *,
        connect: "Callable[[], Connection] | None" = None,
        provider_tools: Support | None = None,
    ) -> None:
        self._name = name
        self._build = build
        self._connect = connect
        self._provider_tools = provider_tools
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Task[Exchange]] | None = None

    @property
    def name(self) -> str:
        return self._name

    def refuse_provider_tools(self, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
        """Why these tools cannot be used with this model; None if they can be."""
        if self._provider_tools is None:
            return None
        return refusal(self._name, self._provider_tools, tools, beside_tools=beside_tools)

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply. Closing the iterator early closes the connection to the provider.

        Raises:
            ModelError: what went wrong, and whether asking again may help. Nothing was asked twice.
        """
        exchange = await self._exchange()
        async with aclosing(exchange.ask(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Close the connections to the provider; idempotent. Another request opens new ones."""
        opening, self._opening = self._opening, None
        if opening is None or opening[0] is not asyncio.get_running_loop():
            return
        await asyncio.wait([opening[1]])
        if not _failed(opening[1]):
            await opening[1].result().close()

    async def _exchange(self) -> "Exchange":
        loop = asyncio.get_running_loop()
        # Connections belong to the loop that opened them; a process may use several loops, one after another.
        if self._opening is None or self._opening[0] is not loop or _failed(self._opening[1]):
            self._opening = (loop, loop.create_task(self._open()))
        # Several sessions may wait for the same opening; if one gives up, it must not end it for the others.
        return await asyncio.shield(self._opening[1])

    async def _open(self) -> "Exchange":
        # The providers' libraries take seconds to import: in the event loop, that would starve every other run.
        return await asyncio.to_thread(self._load)

    def _load(self) -> "Exchange":
        from helix_agents.llm.pydantic_ai.exchange import Exchange

        return Exchange(self._name, self._build, self._connect)


def _failed(task: "asyncio.Task[Exchange]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)

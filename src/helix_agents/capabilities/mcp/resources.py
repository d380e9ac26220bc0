"""Shared keys and the inbox as MCP resources. An update is only a signal: the client reads what changed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
import msgspec
from mcp.server.subscriptions import ListenHandler, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError

from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.scopes import SHARED
from helix_agents.capabilities.watching import Subscription, subscriptions_of
from helix_agents.domain.capability_errors import CapabilityError
from helix_agents.domain.entries import EntryEvent
from helix_agents.domain.errors import HelixError
from helix_agents.engine.log import log_exception

SHARED_URI = "state://shared/"
INBOX_URI = "state://inbox"
JSON_TYPE = "application/json"
LOOK_AGAIN_SECONDS = 1.0

TEMPLATES = [
    types.ResourceTemplate(
        uri_template=f"{SHARED_URI}{{+key}}",
        name="shared",
        description="A key of the state that all agents share. Listen to it to be told that it has changed.",
        mime_type=JSON_TYPE,
    )
]
INBOX = types.Resource(
    uri=INBOX_URI,
    name="inbox",
    description="Messages, and changes that state.shared.watch subscribed to. Listen to it to be told of new ones.",
    mime_type=JSON_TYPE,
)


class Resources:
    """What one agent may read and listen to; every read passes the same checks as a call of its tool."""

    def __init__(self, gateway: Gateway, agent: str) -> None:
        self._gateway = gateway
        self._caller = Caller(agent=agent, face="mcp")
        self._bell = _Bell(gateway, agent)
        self._handler = ListenHandler(self._bell)

    async def list_templates(self, _ctx: Any, _params: Any) -> types.ListResourceTemplatesResult:
        """The template for the address of a shared key."""
        return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)

    async def list_resources(self, _ctx: Any, _params: Any) -> types.ListResourcesResult:
        """The inbox; keys are listed by `state.shared.list`, page by page."""
        return types.ListResourcesResult(resources=[INBOX])

    async def read(self, _ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """The present content of a resource."""
        capability, inputs = _call_behind(params.uri)
        try:
            answer = await self._gateway.call(self._caller, capability, inputs)
        except CapabilityError as problem:
            raise MCPError(code=types.INVALID_PARAMS, message=str(problem), data=problem.as_data()) from problem
        text = msgspec.json.encode(answer).decode()
        content = types.TextResourceContents(uri=params.uri, mime_type=JSON_TYPE, text=text)
        return types.ReadResourceResult(contents=[content])

    async def listen(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
        """Signal whenever one of the named resources has changed, until the client leaves.

        The time of a change says something about a key, so a client that may not read it may not listen either.
        """
        uris = params.notifications.resource_subscriptions or []
        for uri in uris:
            capability, inputs = _call_behind(uri)
            decision = await self._gateway.judge(self._caller, CATALOGUE[capability], inputs)
            if decision.tier in ("blocked", "approval_required"):
                raise MCPError(code=types.INVALID_PARAMS, message=f"{uri!r} is not yours to read: {decision.reason}.")
        async with self._bell.rung_for(uris):
            return await self._handler(ctx, params)

    def hang_up(self) -> None:
        """Tell all listeners that nothing more will come."""
        self._handler.close()


class _Bell:
    """The store's log of changes as the protocol's bus, followed while there are listeners."""

    def __init__(self, gateway: Gateway, agent: str) -> None:
        self._store = gateway.store
        self._agent = agent
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}
        self._uris: list[str] = []
        self._following: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    async def publish(self, event: ServerEvent) -> None:
        """Tell all listeners here."""
        for listener in list(self._listeners.values()):
            listener(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener; returns a function that removes it."""
        token = object()
        self._listeners[token] = listener

        def leave() -> None:
            self._listeners.pop(token, None)

        return leave

    @contextlib.asynccontextmanager
    async def rung_for(self, uris: list[str]) -> AsyncGenerator[None]:
        """Follow the log from here on, and signal for these addresses as the client spelled them."""
        self._uris.extend(uris)
        try:
            async with self._beginning:
                if self._following is None or self._following.done():
                    self._following = await self._begin()
            yield
        finally:
            for uri in uris:
                self._uris.remove(uri)
            if not self._uris and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _begin(self) -> asyncio.Task[None]:
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        following = asyncio.create_task(self._follow(begun))
        await asyncio.wait({begun, following}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            # It follows forever unless it could not start: then the caller learns why.
            await following
        return following

    async def _follow(self, begun: "asyncio.Future[None]") -> None:
        async with self._store.listen() as waiting:
            revision = (await self._store.list_events(0, limit=1)).head
            begun.set_result(None)
            while True:
                await waiting.wait(LOOK_AGAIN_SECONDS)
                try:
                    revision = await self._look(revision)
                except HelixError as problem:
                    log_exception("mcp.listen_failed", problem)

    async def _look(self, revision: int) -> int:
        """Signal what changed since a revision of the log; returns where the log ends now."""
        page = await self._store.list_events(revision, scope=SHARED)
        mine = [each[1] for each in await subscriptions_of(self._store, self._agent) if each[1].until is None]
        changed = {event.key for event in page.events}
        inbox = any(_concerns(each, event) for each in mine for event in page.events)
        # Changes that are no longer known could have been anything.
        everything = revision < page.compacted
        for uri in dict.fromkeys(self._uris):
            if everything or (inbox if uri == INBOX_URI else _key_of(uri) in changed):
                await self.publish(ResourceUpdated(uri=uri))
        return page.reached


def _concerns(subscription: Subscription, event: EntryEvent) -> bool:
    own = event.owner == subscription.agent and not subscription.include_own
    return not own and event.key.startswith(subscription.prefix) and event.revision > subscription.cursor


def _key_of(uri: str) -> str:
    return unquote(uri.removeprefix(SHARED_URI))


def uri_of(key: str) -> str:
    """The address of a shared key."""
    return f"{SHARED_URI}{quote(key, safe='')}"


def _call_behind(uri: str) -> tuple[str, dict[str, Any]]:
    """The call that reads a resource."""
    if uri == INBOX_URI:
        return "inbox.read", {}
    if uri.startswith(SHARED_URI) and len(uri) > len(SHARED_URI):
        return "state.shared.get", {"key": _key_of(uri), "must_exist": True}
    raise MCPError(
        code=types.INVALID_PARAMS,
        message=f"There is no resource {uri[:80]!r}; there are {INBOX_URI} and {SHARED_URI}KEY.",
    )

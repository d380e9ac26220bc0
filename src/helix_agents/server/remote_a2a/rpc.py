"""Requests of A2A over JSON-RPC: the agent is found by its card, and asked."""

import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any, TypeVar, cast

import msgspec

from helix_agents.domain.errors import RemoteProtocolError, RemoteRefusedError, RemoteUnavailableError
from helix_agents.domain.records import JSON
from helix_agents.server.a2a.protocol import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION,
    REASONS,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    VERSION_HEADER,
    Told,
    Wire,
)
from helix_agents.server.remote_a2a.cards import Endpoint, UnusableCardError, card_address, origin_of, read_card
from helix_agents.server.remote_http import RemoteHttp
from helix_agents.server.remote_wire import NotOursError, read_events, read_json

WireT = TypeVar("WireT", bound=Wire)

UNUSABLE_CARD = "unusable_card"
# How long a card is believed before it is read again.
_CARD_SECONDS = 300.0
_STATUSES = {TASK_NOT_FOUND: 404, TASK_NOT_CANCELABLE: 409, METHOD_NOT_FOUND: 405}
_VERSION = {VERSION_HEADER: PROTOCOL_VERSION}


class A2ARpc:
    """The requests to one agent. The card is kept for some minutes; nothing else is."""

    def __init__(self, http: RemoteHttp, *, origins: Collection[str], silence_seconds: float, event_bytes: int) -> None:
        self._http = http
        self._card = card_address(http.url)
        self._allowed = frozenset((origin_of(self._card), *map(origin_of, origins)))
        self._silence_seconds = silence_seconds
        self._event_bytes = event_bytes
        self._found: tuple[float, Endpoint] | None = None

    async def endpoint(self, *, begun: bool) -> Endpoint:
        """Where the agent is talked to. A card that is missing for a moment does not lose work that has begun.

        Raises:
            RemoteAgentError: the card cannot be read, or the agent cannot be talked to.
        """
        known = self._found
        if known is not None and time.monotonic() - known[0] < _CARD_SECONDS:
            return known[1]
        try:
            found = read_card(await self._http.ask("GET", self._card, None, _VERSION), self._allowed)
        except (RemoteProtocolError, RemoteRefusedError, UnusableCardError) as problem:
            if begun:
                raise RemoteUnavailableError(self._http.url, f"its card cannot be used: {problem}") from None
            if isinstance(problem, RemoteRefusedError):
                raise RemoteRefusedError(self._card, problem.status, problem.refusal, problem.detail) from None
            raise RemoteRefusedError(self._http.url, 200, UNUSABLE_CARD, str(problem)) from None
        self._found = time.monotonic(), found
        return found

    async def call(
        self, method: str, params: dict[str, JSON], *, begun: bool = True, seconds: float | None = None
    ) -> dict[str, Any]:
        """The result of a method. A request that begins something is not repeated after an error inside the server.

        Raises:
            RemoteAgentError: there is none. A protocol error is a refusal under its name, such as `task_not_found`.
        """
        endpoint = await self.endpoint(begun=begun)
        told = await self._http.ask("POST", endpoint.url, _request(endpoint, method, params), _VERSION, seconds=seconds)
        return self._result(told, begun=begun)

    async def follow(self, method: str, params: dict[str, JSON]) -> AsyncGenerator[Told, None]:
        """The events of a method that streams.

        Raises:
            RemoteAgentError: the method is refused, the connection is lost, or an event is none.
        """
        endpoint = await self.endpoint(begun=True)
        headers = {**_VERSION, "accept": "text/event-stream"}
        body = _request(endpoint, method, params)
        async with self._http.response("POST", endpoint.url, body, headers, self._silence_seconds) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                # A refusal comes as a plain answer.
                raw = await self._http.body(response)
                self._result(self._http.read(lambda: _object(raw)))
                raise RemoteProtocolError(self._http.url, "it answered with something that is not a stream")
            async with aclosing(read_events(response.aiter_raw(), self._event_bytes)) as events:
                try:
                    async for event in events:
                        yield self.read(self._result(self._http.read(lambda event=event: _object(event.data))), Told)
                except NotOursError as problem:
                    raise RemoteProtocolError(self._http.url, str(problem)) from None

    def read(self, value: Any, kind: type[WireT]) -> WireT:
        """An object of the protocol.

        Raises:
            RemoteProtocolError: it is no such object.
        """
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as problem:
            raise RemoteProtocolError(
                self._http.url, f"it sent an invalid {kind.__name__} ({str(problem)[:200]})"
            ) from None

    def _result(self, told: dict[str, Any], *, begun: bool = True) -> dict[str, Any]:
        match told:
            case {"error": {"code": int() as code, **more}}:
                raise self._refusal(code, cast("dict[str, Any]", more), begun)
            case {"result": dict()}:
                return cast("dict[str, Any]", told["result"])
            case _:
                raise RemoteProtocolError(self._http.url, "it sent an answer that is not one of JSON-RPC")

    def _refusal(self, code: int, more: dict[str, Any], begun: bool) -> RemoteUnavailableError | RemoteRefusedError:
        detail = str(more.get("message") or "no reason given")[:1_000]
        if code == INTERNAL_ERROR and begun:
            return RemoteUnavailableError(self._http.url, f"internal error: {detail}")
        name = REASONS.get(code, f"rpc_{code}").lower()
        return RemoteRefusedError(self._http.url, _STATUSES.get(code, 400), name, detail)


def _request(endpoint: Endpoint, method: str, params: dict[str, JSON]) -> dict[str, JSON]:
    sent = params if endpoint.tenant is None else {"tenant": endpoint.tenant, **params}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}


def _object(raw: bytes) -> dict[str, Any]:
    value = read_json(raw)
    if not isinstance(value, dict):
        raise NotOursError("it sent an answer that is not an object")
    return cast("dict[str, Any]", value)

"""The card of another agent, read with distrust: where the agent is talked to, and what it can do."""

from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from helix_agents.server.a2a.protocol import (
    BINDING,
    CARD_PATH,
    PROTOCOL_VERSION,
    AgentCapabilities,
    AgentInterface,
    Wire,
)


class FoundCard(Wire, frozen=True, kw_only=True):
    """What of a card matters to a client."""

    supported_interfaces: tuple[AgentInterface, ...]
    capabilities: AgentCapabilities = AgentCapabilities()


class Endpoint(NamedTuple):
    """Where an agent is talked to. `tenant` is what its requests have to name, if anything."""

    url: str
    streaming: bool
    tenant: str | None


class UnusableCardError(Exception):
    """No agent can be talked to by this card; the message says why."""


def card_address(url: str) -> str:
    """The address of the card: the given one, or the usual place below the agent's address."""
    path = urlsplit(url).path
    return url if path.endswith(".json") else f"{url.rstrip('/')}{CARD_PATH}"


def origin_of(url: str) -> str:
    """The part of an address that says which server it is: `https://example.com:8000`."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def read_card(value: Any, allowed: Collection[str]) -> Endpoint:
    """Where the agent of a card is talked to, if that is at one of the allowed origins.

    Raises:
        UnusableCardError: the agent cannot be talked to.
    """
    try:
        card = msgspec.convert(value, FoundCard)
    except msgspec.ValidationError as problem:
        raise UnusableCardError(f"it is not the card of an A2A {PROTOCOL_VERSION} agent ({problem})") from None
    required = [each.uri for each in card.capabilities.extensions or () if each.required]
    if required:
        raise UnusableCardError(f"the agent requires the extension {required[0][:200]!r}")
    interface = next(filter(_is_spoken, card.supported_interfaces), None)
    if interface is None:
        spoken = ", ".join(f"{each.protocol_binding} {each.protocol_version}" for each in card.supported_interfaces)
        raise UnusableCardError(
            f"the agent speaks {spoken[:200] or 'no protocol'}, and not {BINDING} {PROTOCOL_VERSION}"
        )
    if not _is_allowed(interface.url, allowed):
        raise UnusableCardError(
            f"it sends its callers to {interface.url[:200]!r}, which is another server; if that one may have your "
            "requests and credentials, name it in origins=…"
        )
    return Endpoint(interface.url, card.capabilities.streaming is True, interface.tenant or None)


def _is_spoken(interface: AgentInterface) -> bool:
    same = interface.protocol_version.split(".")[:2] == PROTOCOL_VERSION.split(".")
    return interface.protocol_binding == BINDING and same


def _is_allowed(url: str, allowed: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.username is None and parts.password is None and origin_of(url) in allowed
    except ValueError:
        return False

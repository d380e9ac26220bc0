"""The client at the other end: the version it speaks, and how it can be asked something.

Nothing is remembered about a client. Newer clients say everything with each request. Older ones say it once, in a
handshake, and get it back as the id of their connection, which they send with each request. So every instance knows
every client, before and after a restart.
"""

import re
from typing import Any, Literal, TypeAlias, cast
from uuid import uuid4

from helix_agents import __version__
from helix_agents.domain.records import Record
from helix_agents.server.calls import Call
from helix_agents.server.errors import RefusedError
from helix_agents.server.mcp.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    RPCError,
)
from helix_agents.server.mcp.names import read_header

WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions in which a client introduces itself once, and is asked questions while it waits for a result."""
MODERN = "2026-07-28"
"""The version in which each request stands alone. A question to the client is a result, and the client sends the call
again with the answer."""

SERVER = {"name": "helix-agents", "version": __version__}
"""How this server introduces itself: to an older client in the handshake, to a newer one with each result."""

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

_CONNECTION = re.compile(r"(?P<version>\d{4}-\d{2}-\d{2})\.(?P<asks>[fn])\.(?P<one>[0-9a-f]{32})")
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

Asks: TypeAlias = Literal["never", "meanwhile", "in_result"]


class Peer(Record):
    """A client. `asks` says how it is asked something: while it waits for a result, or in a result. `connection` is the
    id of its connection; within one, no two requests have the same id."""

    version: str
    asks: Asks = "never"
    connection: str | None = None

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN

    def told(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result in the form that this client reads."""
        return {"resultType": "complete", **result, "_meta": {SERVER_KEY: SERVER}} if self.is_modern else result

    @property
    def comes_back(self) -> bool:
        """Whether a stream may start with an empty event that only tells the client where to continue."""
        return self.version == WITH_HANDSHAKE[-1]


def introduced(params: dict[str, Any]) -> Peer:
    """A client that introduces itself; its `connection` is new."""
    wanted = params.get("protocolVersion")
    version = wanted if wanted in WITH_HANDSHAKE else WITH_HANDSHAKE[-1]
    asks: Asks = "meanwhile" if _has_forms(params.get("capabilities")) else "never"
    connection = f"{version}.{'f' if asks == 'meanwhile' else 'n'}.{uuid4().hex}"
    return Peer(version=version, asks=asks, connection=connection)


def peer_of(call: Call, method: str | None, params: dict[str, Any]) -> Peer:
    """The client that sent a message.

    Raises:
        RPCError: it speaks no version that is spoken here, or contradicts itself.
        RefusedError: the id of its connection is not from here.
    """
    headers = call.request.headers
    version = headers.get(VERSION_HEADER)
    meta = params.get("_meta")
    told: dict[str, Any] = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    if version == MODERN or (VERSION_KEY in told and version not in WITH_HANDSHAKE):
        return _modern(call, method, params, told)
    if version is not None and version not in WITH_HANDSHAKE:
        raise _unsupported(version)
    connection = headers.get(SESSION_HEADER)
    if connection is None:
        return Peer(version=version or WITH_HANDSHAKE[1])
    known = _CONNECTION.fullmatch(connection)
    if known is None or known["version"] not in WITH_HANDSHAKE:
        # The status that makes a client introduce itself again.
        raise RefusedError(404, "unknown_connection", "This Mcp-Session-Id is not from this server; initialize again.")
    asks: Asks = "meanwhile" if known["asks"] == "f" else "never"
    return Peer(version=known["version"], asks=asks, connection=connection)


def _modern(call: Call, method: str | None, params: dict[str, Any], told: dict[str, Any]) -> Peer:
    if method is None or method.startswith("notifications/"):
        return Peer(version=MODERN)
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in told]
    if missing:
        raise RPCError(INVALID_PARAMS, f"params._meta needs {' and '.join(missing)}.")
    headers = call.request.headers
    expected = {VERSION_HEADER: told[VERSION_KEY], "mcp-method": method}
    name = params.get(_NAMED_BY.get(method, ""))
    if name is not None:
        expected["mcp-name"] = name
    for header, value in expected.items():
        if read_header(headers.get(header)) != value:
            raise RPCError(HEADER_MISMATCH, f"The header {header} does not say the same as the body.")
    if told[VERSION_KEY] != MODERN:
        raise _unsupported(str(told[VERSION_KEY]))
    return Peer(version=MODERN, asks="in_result" if _has_forms(told[CAPABILITIES_KEY]) else "never")


def _unsupported(version: str) -> RPCError:
    return RPCError(
        UNSUPPORTED_PROTOCOL_VERSION,
        f"This server does not speak version {version[:40]!r} of MCP.",
        data={"supported": [MODERN, *reversed(WITH_HANDSHAKE)], "requested": version[:40]},
    )


def _has_forms(capabilities: Any) -> bool:
    """Whether a client shows forms to a person. One that names no kind of elicitation means forms."""
    if not isinstance(capabilities, dict):
        return False
    elicitation = cast("dict[str, Any]", capabilities).get("elicitation")
    return isinstance(elicitation, dict) and (not elicitation or "form" in elicitation)

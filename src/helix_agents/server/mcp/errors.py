"""The errors that an MCP client gets when a request cannot be served, in the terms of its protocol."""

from typing import Any

import msgspec
from starlette.responses import Response

from helix_agents.server.errors import ErrorShape, RefusedError
from helix_agents.server.wire import to_json

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_SERVED = -32000
HEADER_MISMATCH = -32020
UNSUPPORTED_PROTOCOL_VERSION = -32022

_BY_STATUS = {400: INVALID_PARAMS, 500: INTERNAL_ERROR}


class RPCError(Exception):
    """A request that is answered with a protocol error, under this HTTP status."""

    def __init__(self, code: int, message: str, *, status: int = 400, data: Any = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status
        self.data = data

    @property
    def body(self) -> dict[str, Any]:
        about = {} if self.data is None else {"data": self.data}
        return {"code": self.code, "message": self.message, **about}


class MCPProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused. If this server refused it, `data` has the `code` that it uses on every route."""

    code: int
    message: str
    data: Any = None


class MCPError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of JSON-RPC. `id` is null where the request could not be read."""

    jsonrpc: str
    id: str | int | None
    error: MCPProblem


def answer(rpc_id: Any, result: dict[str, Any]) -> dict[str, Any]:
    """A result in its envelope."""
    return {"jsonrpc": "2.0", "id": rpc_id, "result": result}


def failure(rpc_id: Any, problem: RPCError) -> dict[str, Any]:
    """An error in its envelope."""
    return {"jsonrpc": "2.0", "id": rpc_id, "error": problem.body}


def _refused(refusal: RefusedError) -> Response:
    problem = RPCError(
        _BY_STATUS.get(refusal.status, NOT_SERVED),
        refusal.detail,
        data={"code": refusal.code, "retryable": refusal.retryable},
    )
    return Response(
        to_json(failure(None, problem)),
        status_code=refusal.status,
        media_type="application/json",
        headers=refusal.headers,
    )


MCP_ERRORS = ErrorShape(body=MCPError, refused=_refused)

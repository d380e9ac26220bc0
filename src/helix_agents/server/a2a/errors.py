"""The errors that an A2A client gets when a request cannot be served, in the terms of its protocol."""

from typing import Any

from helix_agents.server.errors import RefusedError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
PUSH_NOTIFICATION_NOT_SUPPORTED = -32003
UNSUPPORTED_OPERATION = -32004
VERSION_NOT_SUPPORTED = -32009

_REASONS = {
    PARSE_ERROR: "JSON_PARSE_ERROR",
    INVALID_REQUEST: "INVALID_REQUEST",
    METHOD_NOT_FOUND: "METHOD_NOT_FOUND",
    INVALID_PARAMS: "INVALID_PARAMS",
    INTERNAL_ERROR: "INTERNAL",
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOTIFICATION_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}
_BY_STATUS = {400: INVALID_PARAMS, 404: INVALID_PARAMS, 409: UNSUPPORTED_OPERATION}


class RPCError(Exception):
    """A request that is answered with a protocol error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    @property
    def body(self) -> dict[str, Any]:
        detail = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": _REASONS[self.code],
            "domain": "a2a-protocol.org",
        }
        return {"code": self.code, "message": self.message, "data": [detail]}


def as_rpc(refusal: RefusedError) -> RPCError | None:
    """A refusal as a protocol error; None where an HTTP status says it better: identity, size, rate, unavailability."""
    code = _BY_STATUS.get(refusal.status)
    return None if code is None else RPCError(code, refusal.detail)

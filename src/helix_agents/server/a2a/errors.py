"""The errors that an A2A client gets when a request cannot be served, in the terms of its protocol."""

from typing import Any

from helix_agents.server.a2a.protocol import INVALID_PARAMS, REASONS, UNSUPPORTED_OPERATION
from helix_agents.server.errors import RefusedError

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
            "reason": REASONS[self.code],
            "domain": "a2a-protocol.org",
        }
        return {"code": self.code, "message": self.message, "data": [detail]}


def as_rpc(refusal: RefusedError) -> RPCError | None:
    """A refusal as a protocol error; None where an HTTP status says it better: identity, size, rate, unavailability."""
    code = _BY_STATUS.get(refusal.status)
    return None if code is None else RPCError(code, refusal.detail)

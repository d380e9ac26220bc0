"""What goes wrong between us and a server, by what it means for the call that met it."""

from typing import Any, Literal, TypeAlias, cast

from helix_agents.domain.errors import (
    MCPProtocolError,
    MCPRefusedError,
    MCPServerError,
    MCPUnauthorizedError,
    MCPUnavailableError,
)
from helix_agents.domain.texts import said_by, storable

Trouble: TypeAlias = Literal["not_sent", "session_gone", "unavailable", "unauthorized", "lost", "refused", "protocol"]
"""Whether the server can have started the call: not with the first four, and not if it refused; otherwise it is not
known."""

_CODE = 1
_SECRET, _TROUBLE = "helix", "trouble"
_LONGEST = 2_000


class CallRefused(Exception):  # noqa: N818  # what it means is up to the code that catches it
    """The server's own answer to a call is an error of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = storable(message, _LONGEST)


class TroubleMet(Exception):  # noqa: N818  # likewise
    """A call that got no answer from the server itself. `early` means that this was before there was a connection;
    `aside` is for people, and not for a model."""

    def __init__(self, trouble: Trouble, reason: str, *, early: bool = False, aside: str = "") -> None:
        super().__init__(trouble, reason)
        self.trouble: Trouble = trouble
        self.reason = storable(reason, _LONGEST)
        self.early = early
        self.aside = storable(aside, _LONGEST)

    @property
    def was_not_begun(self) -> bool:
        """Whether the same call can safely be sent again."""
        return self.trouble in ("not_sent", "session_gone")

    @property
    def may_have_been_done(self) -> bool:
        """Whether it is unknown what happened to the call."""
        return not self.early and self.trouble in ("lost", "protocol")

    def as_error(self, server: str, *, calling: bool = False) -> MCPServerError:
        """The error for the caller."""
        reason = f"{self.reason}; {self.aside}" if self.aside and not calling else self.reason
        match self.trouble:
            case "unauthorized":
                return MCPUnauthorizedError(server, f"{reason}.")
            case "refused":
                return MCPRefusedError(server, f"{reason}.")
            case "protocol":
                return MCPProtocolError(server, reason)
            case _:
                return MCPUnavailableError(server, reason)


def marked(secret: str, trouble: Trouble, reason: str) -> dict[str, Any]:
    """Trouble in the form of the protocol's errors; it cannot be forged without the secret."""
    return {"code": _CODE, "message": reason, "data": {_SECRET: secret, _TROUBLE: trouble}}


def trouble_in(secret: str, data: object, reason: str) -> TroubleMet | None:
    """The trouble that an error stands for, if it is one of ours."""
    if not isinstance(data, dict):
        return None
    told = cast("dict[str, Any]", data)
    return TroubleMet(told[_TROUBLE], reason) if told.get(_SECRET) == secret else None


def first_in(problem: BaseException) -> BaseException:
    """The cause inside a group of exceptions, which task groups make of whatever they meet."""
    while isinstance(problem, BaseExceptionGroup):
        problem = cast("BaseExceptionGroup[BaseException]", problem).exceptions[0]
    return problem


def in_words(problem: BaseException) -> str:
    """What went wrong, on one line."""
    return f"{type(problem).__name__}: {said_by(problem, _LONGEST)}".rstrip(": ").rstrip(".")

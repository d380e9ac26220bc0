"""Authentication: every request belongs to a user, or it is refused."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import check_id
from helix_agents.domain.records import Record

if TYPE_CHECKING:
    from starlette.requests import Request


class Principal(Record):
    """The user on whose behalf a request is made. Sessions belong to the user who started them; a caller without a
    `user_id` cannot start any.

    An `operator` may list the sessions, waiting calls and usage of all users. Only the owner may read, answer and stop
    a conversation.
    """

    user_id: str | None
    operator: bool = False


Authenticate: TypeAlias = Callable[["Request"], Awaitable[Principal | None] | Principal | None]
"""Returns the principal of a request; None refuses the request."""

ANYBODY = Principal(user_id=None, operator=True)
"""The caller of a server that was deliberately opened to everybody."""


def bearer_tokens(tokens: Mapping[str, Principal]) -> "Callable[[Request], Principal | None]":
    """Authentication by `Authorization: Bearer …`, for services that know each other.

    Every known token is compared, each in constant time, so that response times reveal nothing about them.
    """
    if not isinstance(tokens, Mapping) or not all(isinstance(each, Principal) for each in tokens.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError("bearer_tokens", "write it as {token: Principal(user_id=…)}.")
    known = [(token.encode(), principal) for token, principal in tokens.items()]
    if not known or not all(token for token, _ in known):
        raise ValueError("bearer_tokens needs at least one token, and none may be empty")
    for _, principal in known:
        if principal.user_id is not None:
            check_id(principal.user_id, "user id")

    def authenticate(request: "Request") -> Principal | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        found = None
        # A header is bytes, read as Latin-1 here. Its contents may be that, but are more often UTF-8.
        sent = [given.strip().encode(encoding, "replace") for encoding in ("latin-1", "utf-8")]
        for token, principal in known:
            if sum(hmac.compare_digest(token, each) for each in sent):
                found = principal
        return found

    return authenticate

"""Who calls: every request is somebody's, or it is refused."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from helix_agents.domain.ids import check_id
from helix_agents.domain.records import Record

if TYPE_CHECKING:
    from starlette.requests import Request


class Principal(Record):
    """The user a request speaks for. Sessions belong to the user who made them; who has no `user_id` begins none.

    An `operator` may list sessions and waiting calls of all users, and what they used; reading, answering and stopping
    a conversation remain its owner's alone.
    """

    user_id: str | None
    operator: bool = False


Authenticate: TypeAlias = Callable[["Request"], Awaitable[Principal | None] | Principal | None]
"""Looks at a request and says whose it is; None refuses it."""

ANYBODY = Principal(user_id=None, operator=True)
"""Who calls a server that was opened to everybody on purpose."""


def bearer_tokens(tokens: Mapping[str, Principal]) -> "Callable[[Request], Principal | None]":
    """Authentication by `Authorization: Bearer …`, for services that know each other.

    Every known token is compared, each in constant time, so that an answer's delay says nothing about them.
    """
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
        # A header is bytes, read as Latin-1 here: what is in it may be that, and is more often UTF-8.
        sent = [given.strip().encode(encoding, "replace") for encoding in ("latin-1", "utf-8")]
        for token, principal in known:
            if sum(hmac.compare_digest(token, each) for each in sent):
                found = principal
        return found

    return authenticate

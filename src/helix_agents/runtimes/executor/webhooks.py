"""Webhooks as operators configure them, and what is still owed to them."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from helix_agents.agent.durations import Duration, milliseconds
from helix_agents.domain.errors import DefinitionError, DeliveryNotFoundError, InvalidIdError, InvalidInputError
from helix_agents.domain.ids import check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.urls import web_address
from helix_agents.domain.webhooks import (
    SECRET_BYTES,
    SECRET_PREFIX,
    Delivery,
    DeliveryId,
    DeliveryState,
    WebhookEvent,
    key_of,
    owed_again,
)
from helix_agents.ports.clock import IdSource
from helix_agents.ports.state_store import SessionStateStore

# A part of a path that is surely no token.
_WORD = re.compile(r"[a-z][a-z._-]*|v[0-9]+")

EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)


@dataclass(frozen=True)
class Webhook:
    """An address that is told over HTTP how turns end, and which calls wait for an answer.

    Args:
        url: Where messages are sent, with POST. Redirects are not followed.
        secret: What messages are signed with, as Standard Webhooks defines it: `whsec_` and 24 to 64 random bytes in
            base64. Give several while you replace one: a message then has a signature for each.
        events: What is told; everything by default.
        name: By which name the store knows what is owed to this webhook, and the log shows it. It stays the same if the
            address moves. By default the host and path of the address; whatever in the path may be a token is left out,
            with a digest in its place.
        timeout: How long the receiver may take to answer. Defaults to 15 seconds.
        give_up_after: How long a message is tried again. Defaults to 3 days.

    Raises:
        DefinitionError: an argument is not valid.
    """

    url: str
    secret: str | Sequence[str] = field(kw_only=True, repr=False)
    events: Iterable[WebhookEvent] = field(default=EVENTS, kw_only=True)
    name: str = field(default="", kw_only=True)
    timeout: Duration = field(default=15.0, kw_only=True)
    give_up_after: Duration = field(default=259_200.0, kw_only=True)
    keys: tuple[bytes, ...] = field(init=False, repr=False)
    timeout_ms: int = field(init=False, repr=False)
    give_up_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = _checked_name(self.url, self.name)
        subject = f"Webhook {name!r}"
        for attribute, value in {
            "name": name,
            "events": _checked_events(subject, self.events),
            "keys": _checked_keys(subject, self.secret),
            "timeout_ms": milliseconds(self.timeout, subject, "timeout"),
            "give_up_ms": milliseconds(self.give_up_after, subject, "give_up_after"),
        }.items():
            object.__setattr__(self, attribute, value)


def _checked_name(url: object, name: str) -> str:
    parts = web_address(url)
    if parts is None:
        # Not shown as it is: an address may hold a token.
        raise DefinitionError("Webhook", "its url is not an http or https address; give one like https://example.com/x")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise DefinitionError(
            "Webhook",
            f"the url to {parts.hostname!r} has credentials or a fragment, which are not sent; receivers know us by the"
            " signature that secret=… makes.",
        )
    try:
        return check_id(name or f"{parts.netloc}{_plain(parts.path)}"[:200], "webhook name")
    except InvalidIdError as problem:
        raise DefinitionError("Webhook", f"{problem} Give it another name=….") from None


def _plain(path: str) -> str:
    """A path that may be shown: names are stored and logged, and many services put a token into the path."""
    return "/".join(
        part if not part or _WORD.fullmatch(part) else f"~{hashlib.sha256(part.encode()).hexdigest()[:8]}"
        for part in path.split("/")
    )


def _checked_events(subject: str, events: Iterable[object]) -> tuple[WebhookEvent, ...]:
    given = () if isinstance(events, str) else tuple(events)
    unknown = [each for each in given if each not in EVENTS]
    if unknown or not given:
        wrong = f"there is no event {unknown[0]!r}" if unknown else f"events={events!r} is not a list of events"
        raise DefinitionError(subject, f"{wrong}; there are {', '.join(EVENTS)}.")
    return tuple(dict.fromkeys(cast("tuple[WebhookEvent, ...]", given)))


def _checked_keys(subject: str, secret: object) -> tuple[bytes, ...]:
    secrets = cast(
        "Sequence[object]", secret if isinstance(secret, Sequence) and not isinstance(secret, str) else [secret]
    )
    keys = [key_of(each) if isinstance(each, str) else None for each in secrets]
    least, most = SECRET_BYTES
    if not keys or None in keys:
        raise DefinitionError(
            subject,
            f"its secret is not {SECRET_PREFIX!r} and {least} to {most} bytes in base64; `helix webhooks secret` makes"
            " one.",
        )
    return tuple(key for key in keys if key is not None)


def checked_webhooks(kind: type[Any], webhooks: object) -> tuple[Webhook, ...]:
    """The webhooks given to an executor.

    Raises:
        DefinitionError: it is not a list of webhooks, or two have the same name.
    """
    if isinstance(webhooks, Webhook):
        raise DefinitionError(kind.__name__, "webhooks=… is one webhook, not a list; write webhooks=[…].")
    given: list[Webhook] = []
    for each in cast("Iterable[object]", webhooks or ()):
        if not isinstance(each, Webhook):
            raise DefinitionError(kind.__name__, f"a {type(each).__name__} in webhooks is not a Webhook(…).")
        given.append(each)
    names = [each.name for each in given]
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(kind.__name__, f"two webhooks are called {name!r}; give one of them another name=….")
    return tuple(given)


class Webhooks:
    """What webhooks are owed, and what they were told. The records of finished deliveries are kept for a while: those
    that were given up for 30 days, all others for an hour."""

    def __init__(
        self,
        store: SessionStateStore,
        ids: IdSource,
        *,
        changed: Callable[[], None] = lambda: None,
        tell: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._store = store
        self._ids = ids
        self._changed = changed
        self._tell = tell

    async def tell(self) -> int:
        """Tell this process's webhooks now what they are owed, and wait for their answers; returns how many messages
        were delivered."""
        return 0 if self._tell is None else await self._tell()

    async def list(
        self, *, states: Sequence[DeliveryState] = (), offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Delivery]:
        """The deliveries in these states, or all, newest first.

        Raises:
            InvalidInputError: there is no such state, or it is not a list.
        """
        _check_states(states)
        return await self._store.list_deliveries(states=states, offset=offset, limit=limit)

    async def find(self, delivery_id: DeliveryId) -> Delivery | None:
        """One delivery; None if it does not exist, or its record is no longer kept."""
        return await self._store.find_delivery(delivery_id)

    async def retry(self, delivery_id: DeliveryId) -> Delivery:
        """Try a delivery again now, whatever became of it, under the same id.

        Raises:
            DeliveryNotFoundError: there is no such delivery, or its record is no longer kept.
        """
        while True:
            stored = await self._store.find_delivery(delivery_id)
            if stored is None:
                raise DeliveryNotFoundError(delivery_id)
            again = owed_again(stored, now=self._store.now_ms(), revision=self._ids.new("revision"))
            if await self._store.save_delivery(again, replaces=stored.revision):
                self._changed()
                return again


def _check_states(given: object) -> None:
    known = get_args(DeliveryState)
    if isinstance(given, str) or any(each not in known for each in cast("Sequence[object]", given)):
        raise InvalidInputError("list of states", f"it is {given!r:.80}; give a list of some of {', '.join(known)}")

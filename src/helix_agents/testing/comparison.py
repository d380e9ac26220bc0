"""Compares what two stores return and show, apart from the ids that each generates as it likes."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, cast

from helix_agents.domain.errors import HelixError, SessionNotFoundError, StaleStateError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import PendingFilter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.observation import ALL_STATES, observe, plain

Act: TypeAlias = Callable[[SessionStateStore], Awaitable[Any]]


async def outcome(store: SessionStateStore, act: Act, sessions: Iterable[SessionId]) -> Any:
    """The act's result, or how it was refused; checkpoints of these sessions get names that all stores share."""
    try:
        answer = await act(store)
    except StaleStateError as refusal:
        return type(refusal), refusal.args
    except HelixError as refusal:
        # The wording of a refusal is the store's own.
        return type(refusal)
    return await _named(store, answer, sessions)


async def everything_visible(store: SessionStateStore, sessions: Iterable[SessionId]) -> Any:
    """All listings, and these sessions in detail."""
    seen = {
        "sessions": await observe(store, *sessions),
        "listed": await store.list_sessions(),
        "pending": await store.list_pending(ALL_STATES),
        "waiting": await store.list_pending(PendingFilter(root_session_id="a")),
        "expired": await store.find_expired_pending(),
        "unresumed": await store.list_unresumed(1),
        "orphans": await store.list_orphans(),
    }
    return plain(seen, lambda text: text)


def assert_same(found: Any, expected: Any, where: str = "the answer") -> None:
    """Fail at the first difference and name its place; comparing everything at once says too much."""
    for key in _shared_keys(found, expected):
        assert_same(found[key], expected[key], f"{where} / {key}")
    assert found == expected, f"{where}: {found!r} is not {expected!r} as on the reference"


def _shared_keys(one: Any, other: Any) -> Iterable[Any]:
    """Where to continue: under the same keys of two dicts, at the same positions of two lists of the same length."""
    match one, other:
        case dict(), dict():
            return [key for key in cast("dict[Any, Any]", one) if key in other]
        case list(), list() if len(cast("list[Any]", one)) == len(cast("list[Any]", other)):
            return range(len(cast("list[Any]", one)))
        case _:
            return ()


async def _named(store: SessionStateStore, answer: Any, sessions: Iterable[SessionId]) -> Any:
    names: dict[str, str] = {}
    for session in sessions:
        try:
            page = await store.list_checkpoints(session, limit=200)
        except SessionNotFoundError:
            continue
        names |= {each.checkpoint_id: f"{session} at {each.version}" for each in page.items}
    return plain(answer, lambda text: names.get(text, text))

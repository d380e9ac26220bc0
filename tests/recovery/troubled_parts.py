"""A store that does not always answer: what it was asked to do is not done, or is, and nobody hears of it."""

from dataclasses import replace
from inspect import iscoroutinefunction
from random import Random
from typing import Any

from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import Backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager

# A process that cannot say that it lives is another story, told by those that die.
_ALWAYS = ("renew_lease", "release_lease", "close")


class Trouble:
    """How likely it is at the moment that an answer is lost, on its way there or back."""

    def __init__(self, random: Random) -> None:
        self.chance = 0.0
        self._random = random

    def befall(self, parts: Backend) -> Backend:
        """The same parts, in trouble."""
        return replace(parts, state=_State(parts.state, self), streams=_Streams(parts.streams, self))

    def comes(self, side: str) -> None:
        """Lose an answer now, or not.

        Raises:
            StoreUnavailableError: it is lost.
        """
        if self.chance and self._random.random() < self.chance:
            raise StoreUnavailableError("troubled", f"it went away {side} it answered")


class _Troubled:
    """Stands in front of a part of a backend."""

    def __init__(self, part: Any, trouble: Trouble) -> None:
        self.part = part
        self.trouble = trouble


def _in_trouble(port: type[Any]) -> Any:
    """A class with everything that a port has."""
    names = [name for name in dir(port) if not name.startswith("_")]
    return type(port.__name__, (_Troubled,), {name: _asking(port, name) for name in names})


def _asking(port: type[Any], name: str) -> Any:
    if name in _ALWAYS or not iscoroutinefunction(getattr(port, name)):
        return property(lambda self: getattr(self.part, name))

    async def ask(self: _Troubled, *args: Any, **options: Any) -> Any:
        self.trouble.comes("before")
        answer = await getattr(self.part, name)(*args, **options)
        self.trouble.comes("after")
        return answer

    return ask


_State = _in_trouble(SessionStateStore)


class _Streams(_in_trouble(StreamManager)):
    def shares_transactions_with(self, store: object) -> bool:
        return isinstance(store, _Troubled) and self.part.shares_transactions_with(store.part)

"""A backend of somebody else's: wraps the state store of another backend and counts the calls it forwards."""

from collections import Counter
from dataclasses import replace
from typing import Any

from helix_agents.backends.in_memory import open_backend as open_memory
from helix_agents.ports.backend import Backend
from helix_agents.ports.state_store import REQUIRED_OPERATIONS, SessionStateStore


class TinyStore:
    """Forwards every operation of the port."""

    def __init__(self, inner: SessionStateStore) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()


def _forwarding(name: str) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return getattr(self._inner, name)(*args, **kwargs)

    return forward


for _name in REQUIRED_OPERATIONS - {"limits"}:
    setattr(TinyStore, _name, _forwarding(_name))
TinyStore.limits = property(lambda self: self._inner.limits)  # type: ignore[attr-defined]


async def open_backend(url: str, *, namespace: str = "", **options: Any) -> Backend:
    """Open `tiny://name`."""
    backend = await open_memory(url.replace("tiny://", "memory://"), namespace=namespace, **options)
    return replace(backend, url=url, state=TinyStore(backend.state))  # type: ignore[arg-type]

"""Agents that cannot lose work: the names a user meets, each loaded when it is first used."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    # For editors and type checkers, each as `from … import Name as Name`. At run time _HOME below does the same
    # work, later; a test keeps the lists equal.
    ...

# Where each public name lives. Importing this package must stay cheap, so a home is entered only when asked for.
_HOME: dict[str, str] = {}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

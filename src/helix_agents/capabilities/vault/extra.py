"""Whether the vault's optional dependencies are installed, checked before anything is written."""

from functools import cache
from importlib.util import find_spec

from helix_agents.domain.errors import MissingExtraError

_MODULES = ("argon2", "cryptography", "tink")


def require_vault_extra() -> None:
    """Check that everything the vault needs can be imported.

    Raises:
        MissingExtraError: the extra `vault` is not installed.
    """
    if not _installed():
        raise MissingExtraError("The vault", "vault")


@cache
def _installed() -> bool:
    return all(find_spec(module) is not None for module in _MODULES)

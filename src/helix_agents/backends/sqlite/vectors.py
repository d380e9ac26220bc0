"""Vector comparison in SQLite: in C if the extension `sqlite-vec` is installed, else one by one, with equal results."""

# apsw's stubs name types of Python 3.12, which a checker on 3.11 cannot resolve.
# pyright: reportUnknownMemberType=false

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import apsw

from helix_agents.backends.sqlite.connection import Connection

log = logging.getLogger(__name__)

EXTENSION = "sqlite_vec"


def compares_in_c(connection: Connection) -> bool:
    """Whether this connection has `vec_distance_cosine`; the first call loads the extension."""
    known = connection.has_vectors
    if known is None:
        known = connection.has_vectors = _load(connection)
    return known


def _load(connection: Connection) -> bool:
    if find_spec(EXTENSION) is None:
        return False
    extension: Any = import_module(EXTENSION)
    try:
        connection.raw.enable_load_extension(True)
        try:
            connection.raw.load_extension(extension.loadable_path())
        finally:
            connection.raw.enable_load_extension(False)
    except (apsw.Error, AttributeError) as problem:
        # This SQLite was built without extensions. The result is the same, only slower.
        log.warning("memory.extension_not_loaded", extra={"reason": str(problem)})
        return False
    return True

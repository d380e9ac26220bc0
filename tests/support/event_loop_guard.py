"""Makes a blocking call inside the event loop fail the test that made it.

Calls are judged, not durations, so the verdict is the same on a fast and on a busy machine:

- waiting (`time.sleep`, a blocking socket, a held lock) is wrong in any code that runs in the loop;
- touching a file is wrong in our package; a test's own lines may look at the files it made;
- a SQLite statement is wrong in our package unless it is a read that SQLite itself plans without a scan.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import apsw.ext
from blockbuster import BlockBuster, BlockBusterFunction, BlockingError

import helix_agents

__all__ = ["BlockingError", "event_loop_guard"]

# Importing a module, or listing the installed plugins, reads files once per process; Python itself does it that way.
ONCE_PER_PROCESS: tuple[tuple[str, Iterable[str]], ...] = (
    ("<frozen importlib._bootstrap>", {"_find_and_load"}),
    ("importlib/metadata/__init__.py", {"entry_points", "distributions", "version"}),
)

# Code that runs under these in the loop is not ours to judge: bookkeeping of pytest, hypothesis and drivers.
NOT_OURS: tuple[tuple[str, Iterable[str]], ...] = (
    ("_pytest/capture.py", {"read", "write", "flush"}),
    ("_pytest/assertion/rewrite.py", {"exec_module"}),
    # The Postgres driver looks for its password file and certificates with every new connection.
    ("asyncpg/connect_utils.py", {"_parse_connect_dsn_and_args"}),
)


def event_loop_guard() -> BlockBuster:
    """The guard for one test process; switch it on and off with `activate` and `deactivate`."""
    anywhere = BlockBuster()
    ours = {"scanned_modules": helix_agents, "excluded_modules": [_contracts_we_ship()]}
    in_our_package = BlockBuster(**ours)
    for name in anywhere.functions:
        if name.startswith(("os.", "io.")):
            anywhere.functions[name] = in_our_package.functions[name]
    for kind in (apsw.Connection, apsw.Cursor):
        for method in ("execute", "executemany"):
            anywhere.functions[f"apsw.{kind.__name__}.{method}"] = BlockBusterFunction(
                kind, method, can_block_predicate=_statement_is_a_read_by_key(), **ours
            )
    for function in anywhere.functions.values():
        for filename, functions in (*ONCE_PER_PROCESS, *NOT_OURS):
            function.can_block_in(filename, functions)
    return anywhere


def _contracts_we_ship() -> ModuleType:
    """Test code that lives in our package, named without importing it: pytest must see its asserts first."""
    contracts = ModuleType("helix_agents.testing")
    contracts.__path__ = [str(Path(helix_agents.__file__).parent / "testing")]
    return contracts


def _statement_is_a_read_by_key() -> Callable[..., bool]:
    """A judge of statements that remembers each text it has seen."""
    known: dict[str, bool] = {}

    def judge(target: apsw.Connection | apsw.Cursor, statement: str, *_: Any, **__: Any) -> bool:
        if statement not in known:
            connection = target if isinstance(target, apsw.Connection) else target.connection
            known[statement] = _reads_by_key(connection, statement)
        return known[statement]

    return judge


def _reads_by_key(connection: apsw.Connection, statement: str) -> bool:
    try:
        details = apsw.ext.query_info(connection, statement, explain_query_plan=True)
    except apsw.Error:
        return False
    return details.is_readonly and not details.is_explain and not _scans(details.query_plan)


def _scans(plan: apsw.ext.QueryPlan | None) -> bool:
    if plan is None:
        return False
    # A list passed as a bound JSON value is as short as its caller made it. The result of a subquery is read to its
    # end; whether it was bounded is part of the subquery's own plan.
    bounded = any(kind in plan.detail for kind in ("VIRTUAL TABLE", "CONSTANT ROW", "(subquery"))
    scans = plan.detail.startswith("SCAN") and not bounded
    return scans or any(_scans(part) for part in plan.sub or [])

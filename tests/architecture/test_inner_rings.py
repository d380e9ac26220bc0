"""The inner rings read no clock, draw no id and no random number, and read no setting from the process.

Replay is only true when the same inputs give the same decisions, so all of these are handed in through ports.
"""

import ast
import json
import subprocess
import sys

import pytest

from tests.architecture.source_tree import INNER_RINGS, PACKAGE, ROOT, imports_of, modules, shown, syntax_of

BANNED_MODULES = {"time", "random", "secrets", "uuid", "socket", "sqlite3", "subprocess", "threading"}
BANNED_CALLS = {"now", "utcnow", "today", "urandom", "getenv", "monotonic", "perf_counter", "uuid4", "token_hex"}


def lint(code: str, *, filename: str) -> list[str]:
    ruff = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--output-format=json"]
    answer = subprocess.run(
        [*ruff, f"--stdin-filename={filename}", "-"],
        check=False,
        cwd=ROOT,
        input=code,
        capture_output=True,
        text=True,
    )
    return [finding["code"] for finding in json.loads(answer.stdout)]


@pytest.mark.parametrize("ring", INNER_RINGS)
def test_the_linter_bans_the_outside_world_from_the_inner_rings(ring: str) -> None:
    code = (
        '"""A module."""\n\n'
        "import os\nimport random\nimport secrets\nimport time\nimport uuid\nfrom datetime import UTC, datetime\n\n"
        "print_me = (os.environ, random, secrets, time, uuid, datetime.now(UTC))\n"
    )
    assert lint(code, filename=f"src/helix_agents/{ring}/made_up.py") == ["TID251"] * 6


def test_the_linter_lets_the_outer_rings_ask_the_world() -> None:
    code = '"""A module."""\n\nimport time\n\nstarted = time.monotonic()\n'
    assert lint(code, filename="src/helix_agents/backends/sqlite/made_up.py") == []


@pytest.mark.parametrize("ring", INNER_RINGS)
def test_an_inner_ring_asks_the_world_nothing(ring: str) -> None:
    """The same rule read from the syntax, so that a `noqa` cannot switch it off."""
    for path in modules(PACKAGE / ring):
        for name in imports_of(path):
            assert name.split(".")[0] not in BANNED_MODULES, f"{shown(path)} imports {name}"
        for node in ast.walk(syntax_of(path)):
            if isinstance(node, ast.Attribute):
                called = ast.unparse(node)
                assert called != "os.environ", f"{shown(path)}:{node.lineno} reads the environment"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                from_the_world = owner.rpartition(".")[2] in {"datetime", "date", "os", "time", "uuid", "secrets"}
                assert not (from_the_world and node.func.attr in BANNED_CALLS), (
                    f"{shown(path)}:{node.lineno} calls {owner}.{node.func.attr}()"
                )

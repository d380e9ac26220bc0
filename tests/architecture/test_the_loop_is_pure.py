"""The loop and its port reach nothing of the outside world, so that a durable engine may replay them.

Temporal's own sandbox is the judge: it imports the modules of a workflow afresh and refuses whatever would not come
out the same the next time. A second look reads the syntax, because a sandbox only sees what runs on import.
"""

import ast
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.worker.workflow_sandbox import (
    RestrictedWorkflowAccessError,
    SandboxedWorkflowRunner,
    SandboxRestrictions,
)

from tests.architecture import chance_workflow, loop_workflow
from tests.architecture.source_tree import PACKAGE, imports_of, shown, syntax_of

LOOP = PACKAGE / "engine" / "turn.py"
PORT = PACKAGE / "engine" / "effects.py"

# What the two may know beside their own package: words of the type checker, sums, encodings, and the library of the
# records.
HARMLESS = {"typing", "msgspec", "collections", "functools", "math", "base64"}
WORLDLY_BUILTINS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint", "id", "hash"}


def check_in_sandbox(defined: type) -> None:
    """Import a workflow's module as a Temporal worker does when it starts."""
    definition = workflow._Definition.must_from_class(defined)
    # A compiled library cannot be loaded a second time into one process; what is ours is judged line by line.
    restrictions = SandboxRestrictions.default.with_passthrough_modules("msgspec")
    SandboxedWorkflowRunner(restrictions=restrictions).prepare_workflow(definition)


async def test_the_loop_imports_under_the_workflow_sandbox() -> None:
    check_in_sandbox(loop_workflow.Turn)


async def test_the_sandbox_has_teeth() -> None:
    with pytest.raises(RestrictedWorkflowAccessError, match=r"random\.random"):
        check_in_sandbox(chance_workflow.Gamble)


def reachable(start: Path) -> set[Path]:
    """The modules of our package that importing this one brings in."""
    found: set[Path] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        todo += [home for name in imports_of(path) if (home := home_of(name)) is not None]
    return found


def home_of(name: str) -> Path | None:
    """The file of an imported name of ours; the name may be a module or something inside one."""
    parts = name.split(".")
    if parts[0] != "helix_agents":
        return None
    for length in (len(parts), len(parts) - 1):
        path = PACKAGE.joinpath(*parts[1:length]).with_suffix(".py")
        if path.exists():
            return path
    return None


def test_the_loop_knows_only_its_port() -> None:
    assert {home_of(name) for name in imports_of(LOOP)} == {PORT}


def test_the_loop_reaches_domain_records_and_nothing_else() -> None:
    strangers = reachable(LOOP) - {LOOP, PORT}
    assert strangers
    assert all(path.is_relative_to(PACKAGE / "domain") for path in strangers), sorted(map(shown, strangers))


@pytest.mark.parametrize("path", sorted(reachable(LOOP)), ids=shown)
def test_what_the_loop_reaches_imports_no_outside_world(path: Path) -> None:
    names = {name.split(".")[0] for name in imports_of(path)} - {"helix_agents"}
    assert names <= HARMLESS, f"{shown(path)} imports {sorted(names - HARMLESS)}"


@pytest.mark.parametrize("path", [LOOP, PORT], ids=shown)
def test_the_loop_awaits_effects_and_calls_nothing_of_the_world(path: Path) -> None:
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in WORLDLY_BUILTINS, f"{shown(path)}:{node.lineno} calls {called}()"
        if isinstance(node, ast.Await):
            awaited = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ast.unparse(node.value)
            assert awaited.startswith(("ops.", "_")), f"{shown(path)}:{node.lineno} awaits {awaited}"
        assert not isinstance(node, ast.Try), f"{shown(path)}:{getattr(node, 'lineno', 0)} catches an exception"

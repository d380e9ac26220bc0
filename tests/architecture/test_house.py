"""The repository keeps its own promises: what it commits, what it says, and how its parts are named."""

import ast
import os
import re
import subprocess
import sys

import pytest

from tests.architecture.source_tree import ROOT, committed_files, modules, project, shown, syntax_of

# Written in pieces, so that this file may be searched like any other.
REGISTRIES = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "ana" + "conda.org", "crates" + ".io")
MACHINE_FOLDERS = ("wo" + "rk", "ro" + "ot", "ho" + r"me/\w+")
NEIGHBOURS = ("sha" + "red", "see" + "ds")
PLACES_WE_DO_NOT_NAME = {
    "a package registry": "|".join(map(re.escape, REGISTRIES)),
    "a path of one machine": rf"(?<![\w.\-}}/])/(?:{'|'.join(MACHINE_FOLDERS)})(?![\w-])",
    "a folder outside the repository": rf"\.\./(?:{'|'.join(NEIGHBOURS)})\b",
}

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc", "manager", "managers"}


@pytest.mark.parametrize("what", PLACES_WE_DO_NOT_NAME)
def test_no_committed_text_names(what: str) -> None:
    """The text speaks of the product alone; where it was built and from where it was installed is nobody's concern."""
    pattern = re.compile(PLACES_WE_DO_NOT_NAME[what])
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in committed_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_lock_file_is_not_committed() -> None:
    """It records the address of every file it was resolved to; the pins in pyproject.toml say enough."""
    assert "uv.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert ROOT / "uv.lock" not in committed_files()


def test_every_development_tool_is_pinned_and_every_run_time_dependency_is_a_range() -> None:
    pinned = project()["dependency-groups"]["dev"]
    assert all("==" in requirement for requirement in pinned), pinned
    extras = project()["project"]["optional-dependencies"].values()
    for requirement in [*project()["project"]["dependencies"], *(r for extra in extras for r in extra)]:
        assert ">=" in requirement, requirement
        assert "==" not in requirement, requirement


def test_the_version_is_written_once() -> None:
    assert "version" in project()["project"]["dynamic"]
    assert "version" not in project()["project"]


def test_the_gates_run_the_command_the_readme_gives() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    gates = ROOT / ".ci" / "run"
    assert "pip install uv && uv run --no-dev helix demo" in readme
    assert "uv run pytest" in readme
    assert re.search(r"^\s*uv run pytest$", gates.read_text(encoding="utf-8"), re.MULTILINE)
    assert os.access(gates, os.X_OK)


def test_every_module_opens_with_a_sentence() -> None:
    for path in [*modules(), *modules(ROOT / "benchmarks"), *modules(ROOT / "examples")]:
        opening = (ast.get_docstring(syntax_of(path)) or "").partition("\n")[0]
        assert opening.endswith((".", ":", "?", "!")), f"{shown(path)} does not open with one sentence: {opening!r}"


def test_every_benchmark_that_runs_has_a_quick_way_and_ends_with_its_figures_as_json() -> None:
    for path in modules(ROOT / "benchmarks"):
        text = path.read_text(encoding="utf-8")
        if "__main__" not in text:
            continue
        assert f"Run: uv run python benchmarks/{path.name} [--quick]" in text.replace("--group bench ", ""), shown(path)
        assert 'add_argument("--quick"' in text, f"{shown(path)} has no --quick"
        [main] = [each for each in syntax_of(path).body if isinstance(each, ast.FunctionDef) and each.name == "main"]
        assert ast.unparse(main.body[-1]).startswith("print(json.dumps("), f"{shown(path)} does not end with JSON"


def test_a_benchmark_without_what_it_measures_beside_us_says_how_to_get_it() -> None:
    program = (
        "import runpy, sys; sys.modules['langgraph'] = None; sys.argv = ['state.py', '--quick']; "
        "runpy.run_path('benchmarks/state.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("run it with `uv run --group bench python benchmarks/state.py`.\n"), done.stderr


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        shown(path) for path in modules() if {path.stem.strip("_"), *path.relative_to(ROOT).parent.parts} & VAGUE_NAMES
    ]
    assert not vague, f"name these after what they hold: {vague}"


def test_nobody_waits_in_a_way_that_may_miss_a_cancellation() -> None:
    """Before Python 3.12, `asyncio.wait_for` forgets that it was cancelled when what it waits for has just come: a
    round that goes on for ever would never end. `asyncio.timeout` does not forget."""
    waiting = [
        shown(path) for path in modules() if "testing" not in path.parts and "asyncio.wait_for(" in path.read_text()
    ]
    assert not waiting, f"write `async with asyncio.timeout(…)` here: {waiting}"

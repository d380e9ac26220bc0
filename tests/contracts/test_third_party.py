"""Somebody else's backend is held to the contracts with nothing installed but wheels; a broken one fails by name."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore
from helix_agents.domain.errors import IncompleteStoreError
from helix_agents.ports.state_store import REQUIRED_OPERATIONS, check_complete

ROOT = Path(__file__).parents[2]
TINY_STORE = Path(__file__).parent / "third_party" / "tiny_store"
TIME_LIMIT = 110


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0) -> str:
    """The output of a command that ends as expected."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        list(map(str, command)), check=False, cwd=cwd, env=kept, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tests of the tiny store, and an environment with both wheels and the extra `testing`."""
    uv = os.environ.get("UV") or shutil.which("uv") or pytest.fail("uv is needed to build and install the wheels")
    home = tmp_path_factory.mktemp("third-party")
    project = shutil.copytree(TINY_STORE, home / "tiny_store")
    run(uv, "build", "--quiet", "--wheel", "--out-dir", home / "wheels", ROOT)
    run(uv, "build", "--quiet", "--wheel", "--out-dir", home / "wheels", project)
    run(uv, "venv", "--quiet", "--python", sys.executable, home / "venv")
    # What is proven here is our wheel, not the newest release of anything it uses.
    known = home / "constraints.txt"
    pins = sorted({f"{each.name}=={each.version}" for each in distributions() if each.name != "helix-agents"})
    known.write_text("\n".join(pins), encoding="utf-8")
    ours, theirs = sorted((home / "wheels").glob("*.whl"))
    install = ("pip", "install", "--quiet", "--python", home / "venv", "--constraint", known)
    run(uv, *install, f"{ours}[testing]", theirs)
    return home


def pytest_of(home: Path, *arguments: str, status: int) -> str:
    python = home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    located = run(python, "-c", "import helix_agents, tiny_store; print(helix_agents.__file__)", cwd=home)
    assert Path(located.strip()).is_relative_to(home / "venv"), "the installed wheel is tested, not the sources"
    quiet = ("-q", "-p", "no:cacheprovider", "--tb=short", "--no-header")
    return run(python, "-m", "pytest", *quiet, *arguments, cwd=home / "tiny_store", status=status)


def test_a_third_partys_store_passes_the_suite_of_the_installed_wheel(third_party: Path) -> None:
    output = pytest_of(third_party, "conformance.py", status=0)
    passed = re.search(r"^(\d+) passed", output, re.MULTILINE)
    assert passed, output
    assert int(passed[1]) > 300


def test_a_store_that_breaks_one_promise_fails_the_requirement_by_name(third_party: Path) -> None:
    output = pytest_of(third_party, "broken_stores.py", status=1)
    reports = re.split(r"^(?:_+ )?(Test\w+)\.test_.*$", output, flags=re.MULTILINE)
    blamed: dict[str, str] = {}
    for name, report in zip(reports[1::2], reports[2::2], strict=True):
        blamed[name] = blamed.get(name, "") + report
    source = (TINY_STORE / "broken_stores.py").read_text(encoding="utf-8")
    broken = re.findall(r"^class (Test\w+)\(.*# (\S+)$", source, re.MULTILINE)
    assert len(broken) >= 8
    for name, requirement in broken:
        assert f"Requirement {requirement}:" in blamed.get(name, ""), f"nothing blamed {name} for {requirement}"


def test_a_store_that_lacks_an_operation_is_refused_by_name() -> None:
    check_complete(InMemoryStateStore())

    class Empty: ...

    with pytest.raises(IncompleteStoreError) as refusal:
        check_complete(Empty())
    assert refusal.value.store == "Empty"
    assert refusal.value.missing == tuple(sorted(REQUIRED_OPERATIONS))
    assert "claim_run" in str(refusal.value)

"""Where HELIX_NO_SKIPS=1 is set, as the gates do, a test that does not run is a failure."""

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT

A_SKIP = """
import pytest

@pytest.mark.skip(reason="no server here")
def test_skipped():
    ...

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_to_fail():
    assert False
"""


def outcome(folder: Path, source: str, *, no_skips: bool) -> str:
    (folder / "test_made_up.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n0", folder],
        cwd=ROOT,
        env={**os.environ, "HELIX_NO_SKIPS": "1" if no_skips else "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_a_skipped_test_fails_and_says_why(tmp_path: Path) -> None:
    told = outcome(tmp_path, A_SKIP, no_skips=True)
    assert "1 xfailed, 1 error" in told
    assert "was skipped where every test must run: Skipped: no server here" in told


def test_a_module_that_skips_itself_fails(tmp_path: Path) -> None:
    told = outcome(tmp_path, "import pytest\npytest.skip('not today', allow_module_level=True)", no_skips=True)
    assert "1 error" in told
    assert "not today" in told


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    assert "1 skipped, 1 xfailed" in outcome(tmp_path, A_SKIP, no_skips=False)

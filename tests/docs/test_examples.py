"""Every example is a complete program: it runs as it stands, on the scripted model, and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {"report_writer.py": "Let me look that up. Tides"}


def test_every_example_is_known_here() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_from_an_empty_folder(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HELIX_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, SAYS[name]), done.stderr

"""A user's editor knows the types of agents and tools: what is right passes, what is wrong is reported on its line."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).with_name("defining_agents.py")
IGNORED = re.compile(r"  # pyright: ignore\[(?P<rules>[\w, ]+)\]")


def findings(*files: Path) -> list[tuple[str, int, str]]:
    """What the type checker reports: file name, line and rule."""
    checker = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(ROOT)]
    done = subprocess.run(
        [*checker, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found.get("rule", found["message"]))
        for found in json.loads(done.stdout)["generalDiagnostics"]
    ]


def test_what_is_right_passes_and_what_is_wrong_is_reported_on_its_line(tmp_path: Path) -> None:
    """The examples are checked as they are, and once more without the comments that excuse what is wrong in them."""
    text = EXAMPLES.read_text(encoding="utf-8")
    unexcused = tmp_path / "unexcused.py"
    unexcused.write_text(IGNORED.sub("", text), encoding="utf-8")
    expected = {
        (unexcused.name, number, rule)
        for number, line in enumerate(text.splitlines(), start=1)
        if (excused := IGNORED.search(line))
        for rule in excused["rules"].split(", ")
    }
    assert set(findings(EXAMPLES, unexcused)) == expected
    assert len(expected) > 20

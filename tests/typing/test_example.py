"""The examples, and the programs a newcomer copies, are strict about types: the editor knows what a run gives, and
misses no way it can end."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.docs.pages import DOCS, blocks

ROOT = Path(__file__).parents[2]
OF_SEVERAL_FILES = [ROOT / "examples" / name / "app.py" for name in ("mcp_tools", "skills")]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.py")), *OF_SEVERAL_FILES]
AS_IN_A_NOTEBOOK = """\
# pyright: reportUnusedFunction=false, reportUnusedClass=false, reportUnusedVariable=false, reportUnusedImport=false
async def main() -> None:
    pass
"""
EXAMPLE = ROOT / "examples" / "report_writer.py"


def diagnostics(*files: Path) -> dict[str, list[dict[str, Any]]]:
    """What a strict type checker says of each file."""
    checker = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(ROOT)]
    done = subprocess.run(
        [*checker, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    found: dict[str, list[dict[str, Any]]] = {file.name: [] for file in files}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        found[Path(each["file"]).name].append(each)
    return found


def test_the_report_is_a_report_and_a_missing_ending_is_reported(tmp_path: Path) -> None:
    text = "# pyright: strict\n" + EXAMPLE.read_text(encoding="utf-8")
    revealing = tmp_path / "revealing.py"
    revealing.write_text(text.replace("print(report.title)", "reveal_type(report)"), encoding="utf-8")
    lacking = tmp_path / "lacking.py"
    last_case = text.index("            case Interrupted()")
    lacking.write_text(text[:last_case] + text[text.index("if __name__") :], encoding="utf-8")
    programs = {example.name: example.read_text(encoding="utf-8") for example in EXAMPLES}
    for page in (ROOT / "README.md", DOCS / "index.md", *(DOCS / "tutorial").glob("*.md")):
        programs |= {
            f"{page.stem}-{n}.py": block.code for n, block in enumerate(blocks(page)) if block.language == "python"
        }
    for page in (*(DOCS / "guides").glob("*.md"), *(DOCS / "concepts").glob("*.md")):
        # The blocks of a page are one program, in which `await` may stand at the top.
        shown = [each for each in blocks(page) if each.language == "python" and each.not_run is None]
        body = "\n".join(each.code for each in shown if each.title is None)
        programs[f"{page.stem}.py"] = AS_IN_A_NOTEBOOK + textwrap.indent(body, "    ")
    whole: list[Path] = []
    for name, program in programs.items():
        whole.append(tmp_path / name)
        whole[-1].write_text("# pyright: strict\n" + program, encoding="utf-8")

    found = diagnostics(revealing, lacking, *whole)

    assert {name: found[name] for name in (each.name for each in whole) if found[name]} == {}
    assert [each["message"] for each in found["revealing.py"]] == ['Type of "report" is "Report"']
    assert "reportMatchNotExhaustive" in {each.get("rule") for each in found["lacking.py"]}

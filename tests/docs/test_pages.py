"""Every program in the documentation runs, and prints what its page says it prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks, written_pages

# Runs the snippets of a page as one program in which `await` may stand at the top, as in a notebook.
RUN_AS_ONE = """
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"__name__": "__main__"})
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(result)
"""


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(command[1:])}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", written_pages(), ids=lambda page: str(page.relative_to(DOCS)))
def test_the_programs_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    program: list[str] = []
    expected = ""
    after_program = False
    for block in blocks(page):
        if block.language == "python":
            compile(block.code, str(page), "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT
            after_program = block.not_run is None and block.title is None
            if after_program:
                program.append(block.code)
        elif block.language == "text" and after_program:
            expected += block.code
            after_program = False
    if not program:
        return
    (tmp_path / "page.py").write_text("\n".join(program), encoding="utf-8")
    printed = run([sys.executable, "-c", RUN_AS_ONE, "page.py"], tmp_path)
    assert printed == expected


def test_a_program_that_is_not_run_says_why() -> None:
    silent = [
        str(page.relative_to(DOCS))
        for page in written_pages()
        for block in blocks(page)
        if block.not_run is not None and not block.not_run
    ]
    assert silent == []

"""The tutorial followed to the letter: each program is taken from its page, run, killed and restarted as it says."""

import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helix_agents.testing.service_process import ServiceProcess, free_port, tied_to_us
from tests.docs.pages import DOCS, blocks

STEPS = sorted(page for page in (DOCS / "tutorial").glob("[1-9]-*.md"))


class Reader:
    """Somebody who follows the tutorial in an empty folder, with nothing but what the pages say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, step: int) -> list[str]:
        """Copy the step's program into a file, and learn what it is going to print, run by run."""
        page = next(page for page in STEPS if page.name.startswith(f"{step}-"))
        said: list[str] = []
        for block in blocks(page):
            if block.title is not None:
                (self.folder / block.title).write_text(block.code, encoding="utf-8")
            elif block.language == "text":
                said.append(block.code)
        return said

    def try_to_run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, program, *arguments],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def run(self, program: str, *arguments: str, killed: bool = False) -> str:
        done = self.try_to_run(program, *arguments)
        assert done.returncode == (-9 if killed else 0), f"{program}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_a_first_agent_remembers_its_session(reader: Reader) -> None:
    first, second = reader.read(1)
    assert reader.run("first_agent.py") == first
    assert reader.run("first_agent.py") == second
    done = reader.try_to_run("first_agent.py")
    assert done.returncode != 0
    assert "its script has no step 3, only 2" in done.stderr


def test_tools_write_into_one_state(reader: Reader) -> None:
    [said] = reader.read(2)
    assert reader.run("tools.py") == said


def test_a_killed_program_goes_on_when_it_is_started_again(reader: Reader) -> None:
    dies, goes_on = reader.read(3)
    assert reader.run("restart.py", killed=True) == dies
    assert reader.run("restart.py") == goes_on


def test_a_decision_is_given_to_another_process(reader: Reader) -> None:
    asked, done = reader.read(4)
    assert reader.run("ask_human.py") == asked
    assert reader.run("ask_human.py") == asked, "the same request a second time gives nothing up"
    assert reader.run("ask_human.py", "approve") == done


def test_the_shell_does_what_the_program_does(reader: Reader) -> None:
    """The commands of the page, one by one, each with the exit code a script would see."""
    reader.read(4)
    page = next(page for page in STEPS if page.name.startswith("4-"))
    script = next(block.code for block in blocks(page) if block.language == "sh" and "helix run" in block.code)
    export, *commands = script.splitlines()
    codes: list[int] = []
    for command in commands:
        line = f"{export}; {command.replace('helix', str(Path(sys.executable).with_name('helix')), 1)}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=reader.folder, capture_output=True, text=True, check=False, timeout=60
        )
        codes.append(done.returncode)
    assert codes == [6, 0, 0, 0]
    assert done.stdout == "The Petrel is yours.\n"


def test_a_sub_agent_is_answered_at_the_root(reader: Reader) -> None:
    [said] = reader.read(5)
    assert reader.run("team.py") == said


def test_an_agent_is_served_killed_and_served_again(reader: Reader) -> None:
    """As the page says, with the ids that the server names in place of those printed there."""
    reader.read(6)
    page = next(page for page in STEPS if page.name.startswith("6-"))
    terminal = [block.code for block in blocks(page) if block.title and block.title.startswith("terminal")]
    serve, start, status, submit = terminal
    port = free_port()

    def shell(script: str, **ids: str) -> str:
        for name, value in {":8700": f":{port}", "--port 8700": f"--port {port}", **ids}.items():
            script = script.replace(name, value)
        done = subprocess.run(
            ["bash", "-c", script], cwd=reader.folder, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def served() -> ServiceProcess:
        process = ServiceProcess("tutorial")
        helix = Path(sys.executable).with_name("helix")
        script = serve.replace("helix serve", f"exec {helix} serve").replace("--port 8700", f"--port {port}")
        command = ["bash", "-c", f"cd {reader.folder} && {script}"]
        process.start(tied_to_us(command), lambda: "Serving on" in process.told())
        return process

    first = served()
    asked = shell(start)
    assert "tool-approval-request" in asked
    first.end(signal.SIGKILL)
    second = served()
    try:
        [waiting] = json.loads(shell(status))["pending"]
        ids = {"approval_…": waiting["approvalId"], "call_1_1": waiting["toolCallId"]}
        assert "The Petr" in shell(submit, **ids)
    finally:
        second.end(signal.SIGTERM)
        first.remove()
        second.remove()


def test_the_programs_live_together_in_one_folder(reader: Reader) -> None:
    """A reader keeps the file of the last step, and its sessions with it; and runs a program again out of curiosity."""
    for step in (1, 2, 5):
        reader.read(step)
    reader.run("first_agent.py")
    for program in ("tools.py", "team.py"):
        assert reader.run(program) == reader.run(program)


def test_every_step_leads_to_the_next() -> None:
    for page, following in itertools.pairwise(STEPS):
        assert re.search(rf"\]\({re.escape(following.name)}\)", page.read_text(encoding="utf-8")), page.name

"""`helix run`, `resume` and `retry`: the answer on standard output, the rest beside it, an exit code per outcome."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.cli.conftest import NEEDS_DEPS, WAITS, begin_elsewhere
from tests.support.command_line import HELIX, environment, helix


def test_an_answer_goes_to_standard_output_and_the_rest_beside_it(folder: Path) -> None:
    done = helix(folder, "run", "agents:registry", "Count", "--session", "c-1", "--tag", "x", "--user", "ann")
    assert (done.code, done.out) == (ExitCode.OK, '{"words":3}\n')
    assert "session c-1" in done.err
    shown = helix(folder, "sessions", "show", "c-1", "--json").json["session"]
    assert (shown["tags"], shown["user_id"], shown["output"]) == (["x"], "ann", {"words": 3})


def test_a_run_that_needs_a_person_ends_with_the_commands_that_go_on(folder: Path) -> None:
    begun = helix(folder, "run", "agents.py:several", "-", "--agent", "clerk", "--session", "s-1", input="Write to Ann")
    assert (begun.code, begun.out) == (ExitCode.WAITING, "May I? \n")
    approve, deny = (f"helix pending {word} s-1 call_1_1 --agents agents.py:several" for word in ("approve", "deny"))
    assert approve in begun.err
    assert deny in begun.err
    assert "helix resume agents.py:several s-1" in begun.err
    early = helix(folder, "resume", "agents:clerk", "s-1", "--json")
    assert (early.code, early.json["error"]["code"]) == (ExitCode.WAITING, "still_waiting")
    told = helix(folder, "resume", "agents:clerk", "s-1").err
    assert "still waiting for call_1_1" in told
    assert "or give up the waiting calls with\n  helix resume agents:clerk s-1 --message TEXT\n" in told
    other = helix(folder, "resume", "agents:slow", "s-1").err
    assert "'agents:slow' has no agent 'clerk', which started session 's-1'; agents there: slow." in other
    told = helix(folder, "resume", "agents:clerk", "s-1")
    assert told.code == ExitCode.WAITING
    assert "helix pending approve s-1 call_1_1" in told.err
    approved = helix(folder, *approve.split()[1:])
    assert (approved.code, approved.out) == (ExitCode.OK, "Stored. Continue with: helix resume agents.py:several s-1\n")
    ended = helix(folder, "resume", "agents:clerk", "s-1", "--json")
    assert ended.code == ExitCode.OK
    assert ended.json | {"run_id": "", "usage": {}} == {
        "session_id": "s-1",
        "run_id": "",
        "status": "completed",
        "output": "It is done.",
        "pending": [],
        "reason": None,
        "error": None,
        "usage": {},
    }
    assert ended.json["usage"]["total"] > 0


def test_a_store_that_ends_with_the_command_suggests_nothing_to_go_on_with(folder: Path) -> None:
    waits = helix(folder, "run", "agents:clerk", "Do it", "--store", "memory://")
    assert waits.code == ExitCode.WAITING
    assert "memory:// keeps nothing after this command; to continue later, use another --store" in waits.err
    assert "  helix " not in waits.err


@pytest.mark.parametrize(
    ("words", "given", "named"),
    [
        (("run", "agents:clerk", "-"), "", "Standard input"),
        (("run", "agents:clerk", "-"), " \n", "Standard input"),
        (("run", "agents:clerk", ""), "", "MESSAGE"),
        (("resume", "agents:clerk", "s-1", "--message", " "), "", "--message"),
    ],
)
def test_a_message_that_says_nothing_begins_no_turn(
    folder: Path, words: tuple[str, ...], given: str, named: str
) -> None:
    refused = helix(folder, *words, input=given)
    assert refused.code == ExitCode.USAGE
    assert f"{named} is empty" in refused.err
    assert list(folder.glob("*.db")) == []


def test_a_store_without_a_name_is_not_taken_for_the_default_one(folder: Path) -> None:
    refused = helix(folder, "run", "agents:clerk", "Go", "--store", "")
    assert (refused.code, "Store URL '' cannot be used" in refused.err) == (ExitCode.SETUP, True)
    assert list(folder.glob("*.db")) == []


def test_a_session_whose_process_may_have_died_is_busy_until_its_lease_ends(folder: Path) -> None:
    begin_elsewhere(folder, 60_000)
    busy = helix(folder, "run", "agents:clerk", "Go", "--session", "s-1")
    assert busy.code == ExitCode.CONFLICT
    assert re.search(r"busy with run 'r-1'.* If its process has died, its lease ends in (60|5\d) s", busy.err)
    stopped = helix(folder, "interrupt", "s-1")
    assert stopped.out == "Run r-1 will be interrupted as soon as its process sees the request.\n"


@pytest.mark.parametrize(("command", "word"), [("interrupt", "interrupted"), ("abort", "aborted")])
def test_who_stops_a_run_whose_process_has_died_is_told_who_carries_it_out(
    folder: Path, command: str, word: str
) -> None:
    begin_elsewhere(folder, 1)
    stopped = helix(folder, command, "s-1")
    assert stopped.code == ExitCode.OK
    assert stopped.out.startswith(
        f"The process of run r-1 has died; the run will be {word} when another process takes it over: helix resume"
    )


def test_a_failed_run_is_told_and_can_be_tried_again(folder: Path) -> None:
    failed = helix(folder, "run", "agents:short_lived", "Go", "--session", "f-1", "--json")
    assert (failed.code, failed.json["error"]["code"]) == (ExitCode.FAILED, "max_steps")
    again = helix(folder, "retry", "agents:short_lived", "f-1")
    assert (again.code, again.out) == (ExitCode.OK, "Twice.\n")
    assert helix(folder, "retry", "agents:short_lived", "f-1", "--json").json["error"]["code"] == "nothing_to_retry"


def test_what_to_type_next_names_the_model_that_was_asked(folder: Path) -> None:
    failed = helix(folder, "run", "agents:clerk", "Go", "--session", "m-1", "--model", "anthropic:none")
    assert failed.code == ExitCode.FAILED, "there is no key"
    assert failed.err.endswith("\n  helix retry agents:clerk m-1 --model anthropic:none\n")


def test_a_session_goes_on_with_its_own_agent_where_the_module_has_several(office: Path) -> None:
    done = helix(office, "run", "agents:several", "Never mind", "--session", WAITS)
    assert done.code == ExitCode.OK, done.err
    assert helix(office, "sessions", "show", WAITS, "--json").json["session"]["agent_type"] == "clerk"
    refused = helix(office, "run", "agents:several", "Hi", "--session", "new")
    assert (refused.code, "choose one with --agent NAME" in refused.err) == (ExitCode.SETUP, True)


def test_a_session_goes_on_where_it_was(office: Path) -> None:
    message = helix(office, "resume", "agents:clerk", WAITS, "--message", "Rather not")
    assert (message.code, message.out) == (ExitCode.OK, "It is done.\n")
    checkpoints = helix(office, "sessions", "checkpoints", WAITS, "--json").json["items"]
    back = helix(office, "resume", "agents:clerk", WAITS, "--checkpoint", checkpoints[0]["checkpoint_id"])
    assert back.code == ExitCode.WAITING


class Running:
    """`helix run` on the agent that takes its time."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [HELIX, "run", "agents:slow", "Go", "--session", "r-1"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "linger {}" in line:
                return
        raise AssertionError("it never began to linger")

    def press_control_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        _, complaint = self._process.communicate(timeout=60)
        assert "Traceback" not in complaint
        return self._process.returncode


def test_control_c_interrupts_a_run_and_resume_goes_on(folder: Path) -> None:
    running = Running(folder)
    busy = helix(folder, "run", "agents:slow", "Me too", "--session", "r-1", "--json")
    assert (busy.code, busy.json["error"]["code"]) == (ExitCode.CONFLICT, "agent_already_running")
    running.press_control_c()
    assert running.end() == ExitCode.INTERRUPTED
    resumed = helix(folder, "resume", "agents:slow", "r-1")
    assert (resumed.code, resumed.out) == (ExitCode.OK, "There.\n")


@pytest.mark.parametrize(("command", "code"), [("interrupt", ExitCode.STOPPED), ("abort", ExitCode.FAILED)])
def test_a_run_is_stopped_from_another_process(folder: Path, command: str, code: ExitCode) -> None:
    running = Running(folder)
    stopped = helix(folder, command, "r-1", "--reason", "enough", "--json")
    assert (stopped.code, stopped.json["stopped"]) == (ExitCode.OK, True)
    assert running.end() == code
    nothing = helix(folder, command, "r-1")
    assert nothing.code == ExitCode.FAILED
    assert "Nothing is running" in nothing.out


BROKEN = {
    "raises.py": "x = 1\nraise ValueError('no luck')\n",
    "needs.py": "import nowhere_at_all\n",
    "empty.py": "\n",
    "makes.py": "def make() -> None: ...\n",
}
MISTAKES = [
    (["run", "nowhere:agent", "Hi"], "there is no module 'nowhere'"),
    (["run", "nowhere.py", "Hi"], "there is no file nowhere.py"),
    (["run", "agents:missing", "Hi"], "has no 'missing'; agents there: clerk"),
    (["run", "agents:not_an_agent", "Hi"], "it is of type int; it has to be an Agent"),
    (["run", "makes:make", "Hi"], "it is a function; give what it returns a name in the module: agent = make()."),
    (["run", ".", "Hi"], "it is a folder; name a file in it, such as ./agents.py."),
    (
        ["run", "agents:several", "Hi"],
        "'agents:several' has several agents (clerk, slow, short_lived); choose one with --agent",
    ),
    (["run", "agents:several", "Hi", "--agent", "eve"], "has no agent 'eve'; agents there: clerk, short_lived, slow."),
    (["run", "raises", "Hi"], "importing it failed: ValueError: no luck (raises.py, line 2)"),
    (["run", "needs:agent", "Hi"], "importing it needs 'nowhere_at_all', which is not installed"),
    (["run", "empty", "Hi"], "module 'empty' defines none"),
    (["run", "agents:foreign", "Hi"], "No provider is installed for 'teapot' models"),
    (["run", "agents:clerk", "Hi", "--model", "brew"], "does not name its provider"),
    (
        ["run", "agents:clerk", "Hi", "--model", "openai"],
        "'openai' names no model after its prefix; write 'openai:NAME'",
    ),
    (["run", "agents:clerk", "Hi", "--model", "openai:"], "names no model after its prefix; write 'openai:NAME'"),
    (["run", "agents:clerk", "Hi", "--model", ""], "'' names no model; write 'PREFIX:NAME'"),
    (["run", "agents:clerk", "Hi", "--store", "teapot://here"], "No backend is installed for 'teapot' URLs"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mistake_in_the_setup_is_one_sentence(folder: Path, arguments: list[str], sentence: str) -> None:
    for name, text in BROKEN.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = helix(folder, *arguments)
    assert (done.code, done.out) == (ExitCode.SETUP, "")
    assert sentence in done.err
    assert not (folder / "helix.db").exists(), "nothing is written before everything is clear"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "bank:boss", "Hi"],
        ["chat", "bank:teller"],
        ["serve", "bank:boss", "--token", "x"],
        ["janitor", "bank:boss"],
        ["worker", "temporal", "bank:boss"],
    ],
    ids=" ".join,
)
def test_an_agent_whose_tools_take_what_nothing_opens_is_not_run(folder: Path, arguments: list[str]) -> None:
    (folder / "bank.py").write_text(NEEDS_DEPS, encoding="utf-8")
    assert helix(folder, "run", "bank:content", "Hi").code == ExitCode.OK
    done = helix(folder, *arguments)
    assert (done.code, "its tool 'balance' needs a Bank as ctx.deps" in done.err) == (ExitCode.SETUP, True), done.err


def test_what_opens_the_deps_of_tools_is_named_like_agents_are(folder: Path) -> None:
    (folder / "bank.py").write_text(NEEDS_DEPS, encoding="utf-8")
    done = helix(folder, "run", "bank:teller", "Hi", "--deps", "bank:open_bank", "--json")
    assert (done.code, done.json["output"]) == (ExitCode.OK, "5 left.")
    assert helix(folder, "janitor", "bank", "--deps", "bank.py:open_bank").code == ExitCode.OK
    waits = helix(folder, "run", "bank:unsettled", "Hi", "--session", "s", "--deps", "bank:open_bank")
    assert waits.code == ExitCode.WAITING
    assert "helix resume bank:unsettled s --deps bank:open_bank\n" in waits.err


@pytest.mark.parametrize(
    ("deps", "problem"),
    [
        ("bank", "write module:name or file.py:name"),
        ("nowhere:open_bank", "there is no module 'nowhere'"),
        ("bank:nothing", "'nothing' does not exist; it has to be a function like an executor's deps"),
        ("bank:content", "'content' is Agent; it has to be a function"),
    ],
)
def test_deps_that_are_none_are_told_before_anything_is_written(folder: Path, deps: str, problem: str) -> None:
    (folder / "bank.py").write_text(NEEDS_DEPS, encoding="utf-8")
    done = helix(folder, "run", "bank:teller", "Hi", "--deps", deps)
    assert (done.code, f"No deps at {deps!r}: {problem}" in done.err) == (ExitCode.SETUP, True), done.err
    assert not (folder / "helix.db").exists()


def test_a_session_that_is_not_there_is_told_by_every_command_that_goes_on(folder: Path) -> None:
    for command in ("resume", "retry"):
        done = helix(folder, command, "agents:clerk", "nobody", "--json")
        assert (done.code, done.json["error"]["code"]) == (ExitCode.FAILED, "session_not_found")
    both = helix(folder, "resume", "agents:clerk", "s", "--message", "x", "--checkpoint", "y", "--json")
    assert (both.code, both.json["error"]["code"]) == (ExitCode.USAGE, "usage")


BREAKS = """
from helix_agents import Agent, Hooks, ScriptedModel

class Broken(Hooks):
    async def on_agent_complete(self, ctx, event):
        raise RuntimeError("out of ink")

writer = Agent(name="writer", model=ScriptedModel(["Done."]), hooks=Broken())
"""


@pytest.mark.parametrize("own", ["", "import logging\nlogging.basicConfig(level=logging.CRITICAL)\n"])
def test_a_hook_that_breaks_is_told_beside_the_answer_unless_the_module_says_otherwise(folder: Path, own: str) -> None:
    (folder / "broken.py").write_text(own + BREAKS, encoding="utf-8")
    ran = subprocess.run(
        [HELIX, "run", "broken:writer", "Write"],
        cwd=folder,
        check=False,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (ExitCode.OK, "Done.\n")
    assert ("hook.failed" in ran.stderr) is (not own)
    assert ("out of ink" in ran.stderr) is (not own)

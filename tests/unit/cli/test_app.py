"""The `helix` command answers in sentences, one JSON document or an exit code, never in a traceback."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import helix_agents
from helix_agents.cli.app import COMMANDS, app, run
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.output import Output
from helix_agents.domain.errors import (
    HelixError,
    LockHeldError,
    RemoteUnavailableError,
    RuntimeUnavailableError,
    SessionNotFoundError,
    StoreReadOnlyError,
    UnknownBackendError,
)
from tests.unit.cli import failing_command

TROUBLE = [
    (SessionNotFoundError("s-1"), ExitCode.FAILED),
    (StoreReadOnlyError("sqlite:///helix.db"), ExitCode.SERVICE),
    (RuntimeUnavailableError("Temporal", "127.0.0.1:7233", "connection refused"), ExitCode.SERVICE),
    (RemoteUnavailableError("http://127.0.0.1:8000", "connection refused"), ExitCode.SERVICE),
    (UnknownBackendError("x", ("memory", "sqlite")), ExitCode.SETUP),
    (LockHeldError("janitor"), ExitCode.CONFLICT),
]


@pytest.fixture
def meets_trouble(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(COMMANDS, "fail", "tests.unit.cli.failing_command")
    return lambda error: monkeypatch.setattr(failing_command, "trouble", error)


def test_the_version_is_told() -> None:
    helix = Path(sys.executable).parent / "helix"
    told = subprocess.run([helix, "--version"], capture_output=True, text=True, check=True).stdout
    assert told == f"helix, version {helix_agents.__version__}\n"


def test_every_command_is_listed_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == ExitCode.OK
    listed = capsys.readouterr().out.partition("Commands:")[2]
    for name in COMMANDS:
        assert f"\n  {name} " in listed
    assert "..." not in listed, "a purpose is cut off; make its first sentence shorter"


def commands_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands_of(below, (*path, name))


def test_every_command_answers_scripts_but_the_one_that_is_a_conversation() -> None:
    silent = [name for name, command in commands_of(app) if not any("--json" in each.opts for each in command.params)]
    assert silent == ["chat"]


def test_a_command_that_was_mistyped_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["session", "list"]) == ExitCode.USAGE
    assert "sessions" in capsys.readouterr().err


def test_every_exit_code_is_explained_in_the_help() -> None:
    explained = app.epilog or ""
    assert all(f"{code.value}  " in explained for code in ExitCode)


@pytest.mark.parametrize(("error", "code"), TROUBLE, ids=lambda value: type(value).__name__)
def test_an_error_is_a_sentence_and_an_exit_code(
    error: HelixError, code: ExitCode, meets_trouble, capsys: pytest.CaptureFixture[str]
) -> None:
    meets_trouble(error)
    assert run(["fail"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    # An error may be followed by where to look.
    assert f"Error: {error}\n" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(("error", "code"), TROUBLE, ids=lambda value: type(value).__name__)
def test_a_script_gets_the_error_as_json(
    error: HelixError, code: ExitCode, meets_trouble, capsys: pytest.CaptureFixture[str]
) -> None:
    meets_trouble(error)
    assert run(["fail", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"error": {"code": error.code, "message": str(error)}}


def test_a_bug_is_called_one_and_shown_to_whoever_looks_for_it(
    meets_trouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meets_trouble(ZeroDivisionError("nothing to share"))
    monkeypatch.delenv("HELIX_DEBUG", raising=False)
    assert run(["fail", "--json"]) == ExitCode.BUG
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "internal_error"
    assert "ZeroDivisionError: nothing to share" in error["message"]
    monkeypatch.setenv("HELIX_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["fail"])


def test_the_keyboard_ends_a_command_quietly(meets_trouble, capsys: pytest.CaptureFixture[str]) -> None:
    meets_trouble(KeyboardInterrupt())
    assert run(["fail"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.endswith("Interrupted.\n")


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["doctor", "--no-such-option"]])
def test_a_wrong_command_line_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == ExitCode.USAGE
    assert "Usage: helix" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["no-such-command"], ["doctor", "--no-such-option"], ["doctor", "\udcff"]])
def test_a_wrong_command_line_is_explained_to_scripts(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--json"]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert (json.loads(said.out)["error"]["code"], said.err) == ("usage", "")
    assert run([*arguments, "--", "--json"]) == ExitCode.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "environment", "store"),
    [
        ([], None, "sqlite:///helix.db"),
        ([], "memory://", "memory://"),
        (["--store", "redis://here"], "memory://", "redis://here"),
    ],
    ids=["the default", "HELIX_STORE", "--store wins"],
)
def test_the_store_is_chosen_by_option_then_environment_then_default(
    arguments, environment, store, meets_trouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HELIX_STORE", raising=False)
    if environment:
        monkeypatch.setenv("HELIX_STORE", environment)
    meets_trouble(SessionNotFoundError("s-1"))
    run(["fail", *arguments])
    assert capsys.readouterr().err.startswith(store)


class Shown(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_what_somebody_wrote_gives_a_terminal_no_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model or a tool could clear the screen, or show an approval as another one."""
    written = "one\x1b[2Jtwo\rthree\x9b1A\u202e\tfour\r\n"
    for terminal in (True, False):
        out, beside = Shown(terminal=terminal), Shown(terminal=terminal)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", beside)
        output = Output()
        output.say(written, end=False)
        output.table(("name",), [(written,)])
        output.note(written)
        output.fail_with("code", written)
        lines = out.getvalue() + beside.getvalue()
        assert lines.count(r"one\x1b[2Jtwo") == (4 if terminal else 0)
        assert out.getvalue().startswith("one\\x1b[2Jtwo\\rthree\\x9b1A\\u202e\tfour\r\n") == terminal
        assert "\x1b[2J" not in lines
        for_scripts = Output(as_json=True)
        for_scripts.answer({"said": written})
        document = out.getvalue().splitlines()[-1]
        assert json.loads(document) == {"said": written}
        assert ("\x9b" in document) == (not terminal)


def test_a_table_stays_one_where_characters_are_two_columns_wide_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", out := Shown(terminal=True))
    Output().table(("user", "said"), [("山田", "日本語のテキスト"), ("Zoe\u0301", "one two three four")])
    assert out.getvalue().splitlines() == [
        "USER  SAID",
        "山田  日本語のテキ…",
        "Zoe\u0301   one two three…",
    ]


def test_the_shell_is_told_how_to_complete() -> None:
    helix = Path(sys.executable).parent / "helix"
    asked = {"_HELIX_COMPLETE": "bash_complete", "COMP_WORDS": "helix se", "COMP_CWORD": "1"}
    told = subprocess.run([helix], capture_output=True, text=True, check=True, env=os.environ | asked).stdout
    assert told == "plain,serve\nplain,sessions\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_costs_no_answer(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text(
        "from helix_agents import Agent, ScriptedModel\n"
        "agent = Agent(name='agent', model=ScriptedModel(lambda _: 'Tide \\N{WATER WAVE}'), instructions='Talk.')\n",
        encoding="utf-8",
    )
    settings = {**os.environ, "PYTHONIOENCODING": encoding, "HELIX_STORE": f"sqlite:///{tmp_path}/helix.db"}
    command = [str(Path(sys.executable).with_name("helix")), "run", "talking.py:agent", "Hello"]
    told = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, check=True, timeout=60)
    assert told.stdout.startswith(b"Tide ")
    asked = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=settings, capture_output=True, check=True, timeout=60
    )
    assert json.loads(asked.stdout.decode("ascii"))["output"] == "Tide \N{WATER WAVE}"


def test_an_argument_that_is_no_text_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sessions", "show", "a\udcffb"]) == ExitCode.USAGE
    assert "is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:surrogateescape"])
def test_what_comes_in_and_is_no_text_is_told_and_not_called_a_bug(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text(
        "from helix_agents import Agent, ScriptedModel, tool\n"
        "from helix_agents.testing import call\n"
        "@tool(require_approval=True)\n"
        "def erase() -> str:\n"
        "    'Erase everything.'\n"
        "    return 'erased'\n"
        "agent = Agent(name='agent', model=ScriptedModel([call('erase'), 'Well.']), tools=[erase])\n",
        encoding="utf-8",
    )
    settings = {**os.environ, "PYTHONIOENCODING": encoding, "HELIX_STORE": f"sqlite:///{tmp_path}/helix.db"}
    helix = str(Path(sys.executable).with_name("helix"))

    def piped(lines: bytes, *command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [helix, *command],
            cwd=tmp_path,
            env=settings,
            input=lines,
            capture_output=True,
            timeout=60,
            check=False,
        )

    ran = piped(b"caf\xe9\n", "run", "talking.py", "-")
    assert (ran.returncode, b"Standard input is not UTF-8 text" in ran.stderr) == (ExitCode.USAGE, True), ran
    # The line that follows takes its place: it still answers the question, and starts no other turn.
    lines = b"caf\xe9\nErase it\nn caf\xe9\nn too early\n"
    talked = piped(lines, "chat", "talking.py", "--session", "s-1")
    assert (talked.returncode, talked.stderr.count(b"is not UTF-8 text")) == (ExitCode.OK, 2), talked
    told = piped(b"", "sessions", "messages", "s-1").stdout
    assert b"not approved by the user: too early" in told, told


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": ""}])
def test_a_terminal_without_styles_gets_none(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Shown(terminal=True)
    monkeypatch.setattr(sys, "stderr", beside)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    Output().note("session s-1")
    assert ("\x1b" in beside.getvalue()) == (settings.get("TERM") == "xterm")

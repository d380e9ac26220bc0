"""`helix chat`, typed at a real terminal: streaming, approvals, questions, stops, and coming back."""

from pathlib import Path

from helix_agents.cli.exit_codes import ExitCode
from tests.cli.conftest import TALKED
from tests.support.command_line import CONTROL_C, Terminal, helix

CONTROL_D = "\x04"


def test_a_conversation_with_everything_it_asks_of_a_person(folder: Path) -> None:
    with Terminal(folder, "chat", "agents:clerk", "--session", "c-1", "--user", "ann") as terminal:
        terminal.wait_for("you> ")
        terminal.press("Write to Ann\n")
        terminal.wait_for("approval send")
        terminal.wait_for("ater> ")
        terminal.press("maybe\n")
        terminal.wait_for("type y, n (optionally with a reason")
        terminal.press("e\n")
        terminal.wait_for("input as JSON> ")
        terminal.press('{"to": "Bob"}\n')
        terminal.wait_for("sent to Bob")
        terminal.wait_for("It is done.")
        terminal.wait_for("you> ")
        terminal.press("Next\n")
        terminal.wait_for("? Which?")
        terminal.wait_for("answer> ")
        terminal.press("/rewind 2\n")
        terminal.wait_for('/rewind is a command; press Enter to decide later, then type it, or put the answer into "…"')
        terminal.press("green\n")
        terminal.wait_for("that answer does not fit")
        terminal.press("blue\n")
        terminal.wait_for("result, JSON or text")
        terminal.press("12\n")
        terminal.wait_for("Thank you.")
        terminal.wait_for("you> ")
        terminal.press("/nonsense\n")
        terminal.wait_for("there is no command /nonsense")
        terminal.wait_for("you> ")
        terminal.interrupt("Ctrl-D or type /exit to leave")
        terminal.wait_for("you> ")
        terminal.press(CONTROL_D)
        terminal.wait_for("helix chat agents:clerk --session c-1")
        assert terminal.wait() == ExitCode.OK
    session = helix(folder, "sessions", "show", "c-1", "--json").json["session"]
    assert (session["custom_state"], session["user_id"]) == ({"sent": ["Bob"]}, "ann")


def test_commands_before_the_first_message_say_that_there_is_nothing_yet(folder: Path) -> None:
    typed = "/history\n/rewind\n/retry\n/checkpoints\nhello\nlater\n/rewind ²\n/rewind 5\n/rewind beginning\n"
    done = helix(folder, "chat", "agents:clerk", "--session", "c-2", input=typed)
    assert done.code == ExitCode.OK
    assert done.err.count("nothing yet: the session starts with your first message") == 4
    assert "Session 'c-2' has no checkpoint '²'" in done.err
    assert "there is only 1 checkpoint; /checkpoints lists them, /rewind beginning goes back" in done.err
    assert "back at beginning, 0 messages" in done.err


def test_a_session_is_picked_up_shown_and_rewound(office: Path) -> None:
    with Terminal(office, "chat", "agents:several", "--session", TALKED) as terminal:
        terminal.wait_for("assistant: It is done.")
        terminal.wait_for("you> ")
        terminal.press("/checkpoints\n")
        terminal.wait_for("CHECKPOINT")
        terminal.wait_for("you> ")
        terminal.press("/rewind 99\n")
        terminal.wait_for("there are only")
        terminal.wait_for("you> ")
        terminal.press("/rewind\n")
        terminal.wait_for("send a message, or /resume")
        terminal.wait_for("you> ")
        terminal.press("/history\n")
        terminal.wait_for("user: Write to Ann")
        terminal.wait_for("you> ")
        terminal.press("/usage\n")
        terminal.wait_for("tokens in")
        terminal.wait_for("you> ")
        terminal.press("/retry\n")
        terminal.wait_for("Error: ")
        terminal.wait_for("you> ")
        terminal.press("/interrupt\n")
        terminal.wait_for("nothing is running or waiting")
        terminal.wait_for("you> ")
        terminal.press("/exit\n")
        assert terminal.wait() == ExitCode.OK


def test_an_agent_at_work_is_interrupted_by_key_or_word_and_goes_on(folder: Path) -> None:
    with Terminal(folder, "chat", "agents.py:slow", "--session", "c-2") as terminal:
        terminal.wait_for("you> ")
        terminal.press("Go\n")
        terminal.wait_for("linger {}")
        terminal.press(CONTROL_C)
        terminal.wait_for("interrupted; /resume to continue")
        terminal.wait_for("you> ")
        terminal.press("/resume\n")
        terminal.wait_for("There.")
        terminal.wait_for("you> ")
        terminal.press("/exit\n")
        assert terminal.wait() == ExitCode.OK
    with Terminal(folder, "chat", "agents.py:slow", "--session", "c-3") as terminal:
        terminal.wait_for("you> ")
        terminal.press("Go\n")
        terminal.wait_for("linger {}")
        terminal.press("/interrupt\n")
        terminal.wait_for("interrupted; /resume to continue")
        terminal.wait_for("you> ")
        terminal.press("/exit\n")
        assert terminal.wait() == ExitCode.OK


def test_a_chat_whose_lines_come_from_a_pipe_ends_with_them(folder: Path) -> None:
    done = helix(folder, "chat", "agents:registry", input="Count\n")
    assert (done.code, '{"words":3}' in done.out) == (ExitCode.OK, True)
    missing = helix(folder, "chat", "agents:missing")
    assert missing.code == ExitCode.SETUP


BUSY = """
import asyncio
from helix_agents import Agent, ScriptedModel, tool
from helix_agents.testing import call

@tool
async def look() -> str:
    \"\"\"Look around for a while.\"\"\"
    await asyncio.sleep(1)
    return "seen"

@tool(require_approval=True)
def erase() -> str:
    \"\"\"Erase everything.\"\"\"
    return "erased"

model = ScriptedModel([call("look"), call("erase"), "Well.", "Heard."])
cleaner = Agent(name="cleaner", model=model, tools=[look, erase])
"""


def test_only_what_is_said_to_an_approval_decides_it(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    with Terminal(tmp_path, "chat", "busy.py", "--session", "c-1") as terminal:
        terminal.wait_for("you> ")
        terminal.press("Tidy up\n")
        terminal.wait_for("look {}")
        terminal.press("y\n")
        terminal.wait_for("approval erase")
        terminal.wait_for("ater> ")
        terminal.press("your choice\n")
        terminal.wait_for("nothing was decided")
        terminal.wait_for("ater> ")
        terminal.press("no not now\n")
        terminal.wait_for("Well.")
        terminal.wait_for("you> y")
        terminal.wait_for("Heard.")
        terminal.wait_for("you> ")
        terminal.press("/exit\n")
        assert terminal.wait() == ExitCode.OK
    messages = helix(tmp_path, "sessions", "messages", "c-1").out
    assert "not approved by the user: not now" in messages

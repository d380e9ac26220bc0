"""`helix sessions`: what is stored, for people and for scripts, and changes that need no agent."""

import subprocess
from pathlib import Path

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.cli.conftest import TALKED, WAITS, begin_elsewhere
from tests.support.command_line import HELIX, Terminal, environment, helix


def test_sessions_are_listed_and_narrowed_down(office: Path) -> None:
    listed = helix(office, "sessions", "list").out.splitlines()
    assert listed[0].split() == ["SESSION", "AGENT", "STATUS", "MESSAGES", "UPDATED"]
    assert [line.split()[0] for line in listed[1:]] == [TALKED, WAITS]
    page = helix(office, "sessions", "list", "--tag", "urgent", "--user", "ann", "--status", "active", "--json").json
    assert [item["session_id"] for item in page["items"]] == [WAITS]
    assert (page["total"], page["offset"], page["limit"], page["has_more"]) == (1, 0, 20, False)
    none = helix(office, "sessions", "list", "--agent", "nobody")
    assert (none.code, none.out) == (ExitCode.OK, "None.\n")
    assert "1 more; --offset 1" in helix(office, "sessions", "list", "--all", "--limit", "1").err


def test_a_session_is_shown_with_what_waits_in_it(office: Path) -> None:
    shown = helix(office, "sessions", "show", WAITS)
    assert "status     active" in shown.out
    assert 'waiting    approval call_1_1 send {"to":"Ann"}' in shown.out
    document = helix(office, "sessions", "show", WAITS, "--json").json
    assert set(document) == {"session", "current_run", "children"}
    assert document["session"]["pending_client_tool_calls"]["call_1_1"]["input"] == {"to": "Ann"}
    assert document["session"]["error"] is None, "a script finds every field, set or not"
    assert f"trace      {document['session']['tracing_context']['trace_id']}" in shown.out


def test_a_session_that_was_handed_over_goes_on_and_says_who_has_it(folder: Path) -> None:
    (folder / "pair.py").write_text(
        """
from helix_agents import Agent, ScriptedModel
from helix_agents.testing import call

model = ScriptedModel([call("handoff__billing", {"reason": "money"}), "Billing here.", "Billing again."])
billing = Agent(name="billing", description="Money.", version=3, model=model)
agents = [Agent(name="desk", model=model, handoffs=[billing])]
""",
        encoding="utf-8",
    )
    for said in ("Billing here.", "Billing again."):
        assert helix(folder, "run", "pair:agents", "Hello", "--session", "handed").out == f"{said}\n"
    assert "agent      desk, handed over to billing (version 3)" in helix(folder, "sessions", "show", "handed").out
    [listed] = helix(folder, "sessions", "list", "--agent", "desk", "--json").json["items"]
    assert (listed["agent_type"], listed["held_by"]) == ("desk", "billing")
    assert "handed   desk → billing  completed" in helix(folder, "sessions", "list").out


def test_messages_runs_and_checkpoints_are_shown(office: Path) -> None:
    messages = helix(office, "sessions", "messages", TALKED).out
    assert messages.startswith("   1  user: Write to Ann\n   2  assistant: May I? \n")
    assert "assistant: It is done." in messages
    latest = helix(office, "sessions", "messages", TALKED, "--limit", "2", "--json").json
    assert [item["message"]["role"] for item in latest["items"]] == ["user", "assistant"]
    runs = helix(office, "sessions", "runs", TALKED, "--json").json["items"]
    assert [(run["turn"], run["status"]) for run in runs] == [(2, "completed"), (1, "suspended_client_tool")]
    assert "CHECKPOINT" in helix(office, "sessions", "checkpoints", TALKED).out


def test_a_session_is_branched_rewound_and_deleted(office: Path) -> None:
    branched = helix(office, "sessions", "branch", TALKED, "copy", "--messages", "1", "--json").json
    assert branched["session"]["message_count"] == 1
    never_ran = helix(office, "resume", "agents:clerk", "copy")
    assert (never_ran.code, "it never had a run; a new message" in never_ran.err) == (ExitCode.FAILED, True)
    healed = helix(office, "sessions", "branch", TALKED, "healed", "--messages", "2")
    assert healed.out == f"healed is a branch of {TALKED}, with 3 messages.\n"
    [*_, earliest] = helix(office, "sessions", "checkpoints", TALKED, "--json").json["items"]
    rewound = helix(office, "sessions", "rewind", TALKED, earliest["checkpoint_id"])
    assert (rewound.code, earliest["checkpoint_id"] in rewound.out) == (ExitCode.OK, True)
    session = helix(office, "sessions", "show", TALKED, "--json").json["session"]
    # The call that was open there has the result that it was not executed: the transcript is legal.
    assert (session["status"], session["message_count"]) == ("interrupted", earliest["message_count"] + 1)
    gone_on = helix(office, "run", "agents:clerk", "Again", "--session", TALKED)
    assert (gone_on.code, gone_on.out) == (ExitCode.OK, "It is done.\n")
    refused = helix(office, "sessions", "delete", "copy")
    assert refused.code == ExitCode.USAGE
    assert "--yes" in refused.err
    deleted = helix(office, "sessions", "delete", "copy", "nobody", "--yes", "--json")
    expected = {"deleted": ["copy"], "missing": ["nobody"], "kept": [], "workspaces_left": []}
    assert (deleted.code, deleted.json) == (ExitCode.FAILED, expected)


def test_a_session_is_not_deleted_under_its_run(office: Path) -> None:
    begin_elsewhere(office, 60_000)
    refused = helix(office, "sessions", "delete", "s-1", "--yes")
    assert (refused.code, refused.out) == (ExitCode.FAILED, "")
    assert "'s-1' is busy with run 'r-1'" in refused.err
    told = helix(office, "sessions", "delete", "s-1", TALKED, "--yes", "--json")
    expected = {"deleted": [TALKED], "missing": [], "kept": ["s-1"], "workspaces_left": []}
    assert (told.code, told.json) == (ExitCode.FAILED, expected)


WITH_FILES = """
from helix_agents import Agent, LocalWorkspaces, ScriptedModel, Workspace
from helix_agents.testing import call

said = [call("workspace_write_file", {"path": "a.txt", "content": "A"}), "Written."]
writer = Agent(name="writer", model=ScriptedModel(said), workspace=Workspace(LocalWorkspaces("work")))
"""


def folders_in(place: Path) -> list[str]:
    return sorted(each.name for each in place.iterdir() if not each.name.startswith(".")) if place.exists() else []


def test_who_names_the_agents_deletes_the_files_of_a_session_with_it(folder: Path) -> None:
    (folder / "files.py").write_text(WITH_FILES, encoding="utf-8")
    for session in ("s-1", "s-2"):
        assert helix(folder, "run", "files:writer", "Write", "--session", session).code == ExitCode.OK
    first, second = folders_in(folder / "work")
    deleted = helix(folder, "sessions", "delete", "s-1", "--yes", "--agents", "files:writer", "--json")
    assert deleted.json == {"deleted": ["s-1"], "missing": [], "kept": [], "workspaces_left": []}
    assert folders_in(folder / "work") == [second]
    left = helix(folder, "sessions", "delete", "s-2", "--yes")
    assert (left.code, left.out) == (ExitCode.OK, "Deleted s-2.\n")
    assert f"Left 1 workspace with files: {second}. They go with their session where --agents" in left.err
    assert folders_in(folder / "work") == [second]
    assert first != second


def test_a_session_whose_process_has_died_can_be_deleted(office: Path) -> None:
    begin_elsewhere(office, 1)
    assert helix(office, "sessions", "delete", "s-1", "--yes").out == "Deleted s-1.\n"


def test_at_a_terminal_a_deletion_is_asked_about(office: Path) -> None:
    with Terminal(office, "sessions", "delete", TALKED) as terminal:
        terminal.wait_for("for good? [y/N]: ")
        terminal.press("n\n")
        terminal.wait_for("Nothing was deleted.")
        assert terminal.wait() == ExitCode.FAILED


def test_who_leaves_instead_of_answering_is_told_so_on_a_line_of_its_own(office: Path) -> None:
    with Terminal(office, "sessions", "delete", TALKED) as terminal:
        terminal.wait_for("for good? [y/N]: ")
        terminal.press("\x04")
        terminal.wait_for("\nInterrupted.")
        assert terminal.wait() == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "show", "nobody"],
        ["sessions", "messages", "nobody"],
        ["sessions", "branch", "nobody", "copy"],
        ["sessions", "rewind", "nobody", "cp"],
        ["usage", "nobody"],
        ["interrupt", "nobody"],
        ["pending", "approve", "nobody"],
    ],
    ids=" ".join,
)
def test_a_session_that_is_not_there_is_told(office: Path, arguments: list[str]) -> None:
    done = helix(office, *arguments, "--json")
    assert (done.code, done.json["error"]["code"]) == (ExitCode.FAILED, "session_not_found")


def test_a_checkpoint_that_is_not_there_is_told(office: Path) -> None:
    done = helix(office, "sessions", "rewind", TALKED, "cp-nowhere", "--json")
    assert (done.code, done.json["error"]["code"]) == (ExitCode.FAILED, "checkpoint_not_found")


def test_a_branch_after_more_messages_than_there_are_is_told_how_many_there_are(office: Path) -> None:
    done = helix(office, "sessions", "branch", WAITS, "copy", "--messages", "99")
    assert (done.code, done.err) == (
        ExitCode.FAILED,
        f"Error: Session {WAITS!r} has 2 messages; it cannot be branched after 99.\n",
    )


def test_looking_does_not_create_a_store(tmp_path: Path) -> None:
    for code, named in ((ExitCode.SETUP, ()), (ExitCode.SERVICE, ("--store", "sqlite:///nothing.db"))):
        done = helix(tmp_path, "sessions", "list", *named)
        assert (done.code, list(tmp_path.iterdir())) == (code, [])


@pytest.mark.parametrize(
    ("redirected", "code"),
    [
        ("sessions list >&-", ExitCode.OK),
        ("sessions list --json >&-", ExitCode.OK),
        ("sessions list --json >&- 2>&-", ExitCode.OK),
        ("chat agents:clerk <&-", ExitCode.OK),
        ("sessions list >/dev/full", ExitCode.SERVICE),
        ("sessions list --json >/dev/full", ExitCode.SERVICE),
        ("--help >/dev/full", ExitCode.SERVICE),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_bug(office: Path, redirected: str, code: ExitCode) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{HELIX} {redirected}"],
        cwd=office, env=environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ">&-" not in redirected or not done.stderr, "what nobody wants to hear is not told elsewhere"
    assert ("No space left on device" in done.stderr) == ("full" in redirected)

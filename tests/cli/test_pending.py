"""`helix pending`: what waits for people is listed and answered without the agents, and each answer counts once."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from helix_agents.cli.exit_codes import ExitCode
from tests.cli.conftest import WAITS
from tests.support.command_line import helix


def test_what_waits_is_listed(office: Path) -> None:
    listed = helix(office, "pending", "list").out
    assert "approval" in listed
    assert '{"to":"Ann"}' in listed
    page = helix(office, "pending", "list", "--kind", "approval", "--tool", "send", "--user", "ann", "--json").json
    assert [(item["tool_call_id"], item["state"]) for item in page["items"]] == [("call_1_1", "waiting")]
    assert helix(office, "pending", "list", "--session", "talked", "--kind", "question").out == "None.\n"


def test_an_answer_to_a_call_that_was_given_up_is_too_late(office: Path) -> None:
    assert helix(office, "run", "agents:clerk", "Never mind", "--session", WAITS).code == ExitCode.OK
    late = helix(office, "pending", "approve", WAITS, "call_1_1")
    assert (late.code, "given up" in late.out) == (ExitCode.CONFLICT, True)


def test_an_approval_is_stored_once(office: Path) -> None:
    wrong = helix(office, "pending", "approve", WAITS, "--input", '{"to": 5}', "--agents", "agents:clerk", "--json")
    assert (wrong.code, wrong.json["outcome"]) == (ExitCode.FAILED, "validation_error")
    first = helix(office, "pending", "approve", WAITS, "call_1_1", "--input", '{"to": "Bob"}', "--json")
    assert (first.code, first.json["outcome"], first.json["next"]) == (ExitCode.OK, "accepted", "resume")
    second = helix(office, "pending", "deny", WAITS, "call_1_1", "--reason", "too late")
    assert second.code == ExitCode.CONFLICT
    assert "the earlier answer is kept" in second.out
    assert helix(office, "resume", "agents:clerk", WAITS).code == ExitCode.OK
    state = helix(office, "sessions", "show", WAITS, "--json").json["session"]["custom_state"]
    assert state == {"sent": ["Bob"]}


def test_a_denial_reaches_the_model_with_its_reason(office: Path) -> None:
    denied = helix(office, "pending", "deny", WAITS, "--reason", "not today")
    assert (denied.code, f"helix resume MODULE:AGENTS {WAITS}" in denied.out) == (ExitCode.OK, True)
    assert (
        denied.err
        == "Replace MODULE:AGENTS with the place that defines 'clerk': app.py, app.py:agents or app:agents.\n"
    )
    assert helix(office, "resume", "agents:clerk", WAITS).code == ExitCode.OK
    assert (
        "send failed: Tool call was not approved by the user: not today"
        in helix(office, "sessions", "messages", WAITS).out
    )


def test_questions_and_client_tools_are_answered_with_text_or_json(office: Path) -> None:
    helix(office, "pending", "deny", WAITS)
    helix(office, "resume", "agents:clerk", WAITS)
    assert helix(office, "run", "agents:clerk", "Next", "--session", WAITS).code == ExitCode.WAITING
    several = helix(office, "pending", "answer", WAITS, "blue", "--json")
    assert "several calls are waiting; name one of them: " in several.json["error"]["message"]
    calls = {item["tool_name"]: item["tool_call_id"] for item in _waiting(office)}
    unfit = helix(office, "pending", "answer", WAITS, calls["ask_human"], "green", "--agents", "agents:clerk")
    assert (unfit.code, "has to be one of 'red', 'blue'" in unfit.out) == (ExitCode.FAILED, True)
    blue = helix(office, "pending", "answer", WAITS, calls["ask_human"], "blue", "--json")
    assert (blue.json["next"], blue.json["still_waiting"]) == ("wait", 1)
    assert helix(office, "pending", "answer", WAITS, "12", "--as-json").code == ExitCode.OK
    ended = helix(office, "resume", "agents:clerk", WAITS)
    assert (ended.code, ended.out) == (ExitCode.OK, "Thank you.\n")


def test_mistakes_are_explained(office: Path) -> None:
    unknown = helix(office, "pending", "approve", WAITS, "call_9", "--json")
    assert (unknown.code, unknown.json["error"]["code"]) == (ExitCode.FAILED, "not_found")
    nothing = helix(office, "pending", "answer", WAITS, "blue")
    assert (nothing.code, "no question or client tool is waiting" in nothing.err) == (ExitCode.FAILED, True)
    kind = helix(office, "pending", "answer", WAITS, "call_1_1", "blue", "--json")
    assert (kind.code, kind.json["outcome"]) == (ExitCode.FAILED, "validation_error")
    for arguments in (["answer", WAITS], ["approve", WAITS, "--input", "{"], ["approve", WAITS, "--input", "5"]):
        assert helix(office, "pending", *arguments).code == ExitCode.USAGE


def _waiting(folder: Path) -> list[dict[str, str]]:
    return helix(folder, "pending", "list", "--session", WAITS, "--json").json["items"]


PAYS = """
import asyncio, os, signal
from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.engine.services import EngineOptions
from helix_agents.testing import call

@tool(effect="once")
def pay(cents: int) -> str:
    \"\"\"Pay.\"\"\"
    os.kill(os.getpid(), signal.SIGKILL)

payer = Agent(name="payer", model=ScriptedModel([call("pay", {"cents": 5}), "Done."]), tools=[pay])

async def main():
    quick = {"lease_ms": 200, "options": EngineOptions(effect_lease_ms=200), "janitor_seconds": None}
    async with Executor.open("sqlite:///helix.db", agents=[payer], **quick) as helix:
        await (await helix.execute(payer, "Pay", "s-1")).result()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_call_whose_outcome_nobody_knows_is_named_so_and_answered_with_what_happened(tmp_path: Path) -> None:
    _die_while_paying(tmp_path)
    give_up = time.monotonic() + 60
    while "approval (unknown_outcome)" not in (listed := helix(tmp_path, "pending", "list").out):
        assert time.monotonic() < give_up, listed
        helix(tmp_path, "janitor", "pays:payer")
    told = helix(tmp_path, "pending", "answer", "s-1", "it was paid")
    assert (told.code, "run again" in told.out) == (ExitCode.OK, False)
    assert helix(tmp_path, "resume", "pays:payer", "s-1").out == "Done.\n"
    assert "pay answers: it was paid" in helix(tmp_path, "sessions", "messages", "s-1").out


def test_who_approves_a_call_that_was_begun_is_told_that_it_may_take_effect_twice(tmp_path: Path) -> None:
    _die_while_paying(tmp_path)
    give_up = time.monotonic() + 60
    while (waits := helix(tmp_path, "resume", "pays:payer", "s-1")).code != ExitCode.WAITING:
        assert time.monotonic() < give_up, waits
    assert "it is unknown whether the call took effect: approve to run it again" in waits.err
    assert "helix pending answer s-1 call_1_1 'WHAT HAPPENED'" in waits.err
    approved = helix(tmp_path, "pending", "approve", "s-1")
    assert approved.code == ExitCode.OK
    assert approved.out.startswith(
        "Stored. pay was started before, and it is unknown whether it took effect: it will run ag"
    )
    assert "may take effect a second time" in approved.out


def test_what_to_type_next_names_the_store_and_the_agents(office: Path) -> None:
    stored = helix(office, "pending", "approve", WAITS, "--agents", "agents:clerk", "--store", "sqlite:///./helix.db")
    assert stored.out == f"Stored. Continue with: helix resume agents:clerk {WAITS} --store sqlite:///./helix.db\n"
    assert stored.err == ""


def _die_while_paying(folder: Path) -> None:
    (folder / "pays.py").write_text(PAYS)
    assert subprocess.run([sys.executable, "pays.py"], cwd=folder, check=False).returncode == -signal.SIGKILL

"""`helix usage`, `helix janitor`, `helix doctor`: what operators ask for, once or again and again."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.usage_views import shown_amount, shown_dollars
from helix_agents.domain.usage import SourceTotal
from tests.cli.conftest import TALKED, WAITS
from tests.support.command_line import HELIX, environment, helix


def test_usage_is_added_up_for_one_session_or_for_all(office: Path) -> None:
    one = helix(office, "usage", TALKED, "--json").json
    both = helix(office, "usage", "--json").json
    assert (one["sessions"], both["sessions"]) == (1, 2)
    assert 0 < one["tokens"]["total"] < both["tokens"]["total"]
    ann = helix(office, "usage", "--user", "ann", "--since", "2020-01-01")
    assert ann.out.startswith("1 session, ")
    tokens = next(line for line in ann.out.splitlines() if line.startswith("tokens"))
    assert re.search(r" \d+ ms$", tokens), "how long it took, with its unit"
    assert helix(office, "usage", "--agent", "nobody", "--json").json["sessions"] == 0
    assert helix(office, "usage", TALKED, "--user", "ann").code == ExitCode.USAGE


def test_usage_says_what_models_cost_that_a_list_has_the_price_of(folder: Path) -> None:
    listed = 'ScriptedModel(["Hi."] * 2, name="openai:gpt-5")'
    module = f"""
from helix_agents import Agent, ScriptedModel
listed = Agent(name="listed", model={listed})
homely = Agent(name="homely", model=ScriptedModel(["Hi."], name="house"))
"""
    (folder / "priced.py").write_text(module, encoding="utf-8")
    for agent in ("listed", "homely"):
        assert helix(folder, "run", f"priced:{agent}", "Hi", "--session", agent).code == ExitCode.OK
    both = helix(folder, "usage", "--json").json
    assert (both["cost_usd"] > 0, both["unpriced"]) == (True, ["house"])
    shown = helix(folder, "usage").out.splitlines()
    assert re.fullmatch(r"\$0\.0\d+ by the providers' list prices, without house, which no list has .*", shown[1])
    [cost] = [line.split()[5] for line in shown if "openai:gpt-5" in line]
    assert shown[1].startswith(f"{cost} ")
    unpriced = helix(folder, "usage", "homely")
    assert "$" not in unpriced.out
    assert helix(folder, "usage", "homely", "--json").json["cost_usd"] is None


def test_dollars_are_shown_as_far_as_they_say_something() -> None:
    assert [shown_dollars(cost) for cost in (0, 0.000012345, 0.5, 1, 1234.567)] == [
        "$0.00", "$0.000012", "$0.50", "$1.00", "$1,234.57",
    ]  # fmt: skip


def test_amounts_are_shown_whole_and_with_their_unit() -> None:
    def shown(kind: Any, amount: float) -> str:
        return shown_amount(SourceTotal(source_type=kind, source_name="x", calls=1, amount=amount))

    assert shown("tool", 1_234_567.0) == "1,234,567 ms"
    assert shown("custom", 1_234_567.0) == "1,234,567"
    assert shown("custom", 0.25) == "0.25"


def test_the_janitor_goes_on_with_what_was_answered_and_forgotten(office: Path) -> None:
    assert helix(office, "pending", "approve", WAITS).code == ExitCode.OK
    alone = helix(office, "janitor", "--resume-grace", "0")
    assert (alone.code, alone.out) == (ExitCode.OK, "Nothing to do.\n"), "without agents nothing can be resumed"
    swept = helix(office, "janitor", "agents:several", "--resume-grace", "0", "--json").json
    assert (swept["resumed"], swept["recovered"]) == (1, 0)
    session = helix(office, "sessions", "show", WAITS, "--json").json["session"]
    assert (session["status"], session["custom_state"]) == ("completed", {"sent": ["Ann"]})


def test_the_janitor_sweeps_until_somebody_stops_it(office: Path) -> None:
    sweeping = subprocess.Popen(
        [HELIX, "janitor", "--every", "0.05", "--json"],
        cwd=office,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert sweeping.stdout is not None
    try:
        rounds = [json.loads(sweeping.stdout.readline()) for _ in range(2)]
        assert [each["expired_calls"] for each in rounds] == [0, 0]
        sweeping.send_signal(signal.SIGINT)
        _, complaint = sweeping.communicate(timeout=60)
    finally:
        sweeping.kill()
        sweeping.communicate()
    assert (sweeping.returncode, complaint.strip()) == (ExitCode.INTERRUPTED, "Interrupted.")


def test_the_doctor_tells_what_is_stored_and_what_waits(office: Path) -> None:
    done = helix(office, "doctor", "--json")
    found = {finding["subject"]: finding["detail"] for finding in done.json["findings"]}
    assert done.code == ExitCode.OK
    assert found["store contents"] == "2 sessions, 1 call waiting for an answer"
    assert {"store", "store clock", "store limits", "stream limits", "extra postgres", "models"} <= set(found)


@pytest.mark.parametrize("command", [["janitor"], ["usage"], ["pending", "list"], ["sessions", "list"]], ids=" ".join)
def test_no_command_creates_a_store_by_looking_for_work(tmp_path: Path, command: list[str]) -> None:
    done = helix(tmp_path, *command, "--store", "sqlite:///nowhere/helix.db", "--json")
    assert (done.code, list(tmp_path.iterdir())) == (ExitCode.SERVICE, [])
    assert "nowhere" in done.json["error"]["message"]

"""`helix demo`: a real SIGKILL in the middle of a step, counted afterwards; and how it looks at a terminal."""

import signal
from pathlib import Path

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import Terminal, helix


def test_a_killed_worker_loses_nothing_and_nothing_is_done_twice(tmp_path: Path) -> None:
    done = helix(tmp_path, "demo", "--json", "--keep", "desk")
    found = done.json
    assert (done.code, found["held"], found["status"]) == (ExitCode.OK, True, "completed"), found
    assert [each["state"] for each in found["processes"]] == ["killed", "left", "left"]
    assert len({each["pid"] for each in found["processes"]}) == 3
    # The kill came while an order was with the shop and nobody had recorded its result.
    assert found["killed_with"]["orders"] == 1
    assert found["killed_with"]["researchers_done"] >= 1
    assert all(check["held"] for check in found["checks"])
    by = {entry["title"]: entry["pid"] for entry in found["book"]}
    assert by["Tide tables since 1833"] == found["processes"][0]["pid"], "the order was not placed again"
    assert sorted(entry["deed"] for entry in found["book"]) == ["order", "order", "order", "publish"]
    runs = helix(tmp_path, "sessions", "runs", "demo", "--store", "sqlite:///desk/demo.db", "--json").json["items"]
    assert [(run["turn"], run["attempt"], run["status"]) for run in runs] == [
        (2, 1, "completed"),
        (1, 2, "suspended_client_tool"),
    ]


def test_at_a_terminal_a_person_decides(tmp_path: Path) -> None:
    with Terminal(tmp_path, "demo") as terminal:
        terminal.wait_for("SIGKILL")
        terminal.wait_for("May the editor publish")
        terminal.press("n\n")
        terminal.wait_for("publish is denied")
        assert terminal.wait() == ExitCode.OK
    assert "reports published for the approvals given: 0 (expected 0)" in terminal.shown
    assert "Nothing was lost, and nothing was done twice." in terminal.shown


def test_a_model_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    done = helix(tmp_path, "demo", "--model", "teapot:brew", "--json")
    assert (done.code, done.json["error"]["code"]) == (ExitCode.SETUP, "unknown_model")


def test_signals_have_the_numbers_we_say() -> None:
    assert ExitCode.INTERRUPTED == 128 + signal.SIGINT

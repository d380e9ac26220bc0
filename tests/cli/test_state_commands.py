"""The commands about state, each typed once as an operator types it: in a process, on a real file, with its errors."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import helix

PASSPHRASE = "seven grey herons over a quiet estuary"


class Operator:
    """Somebody at a shell who acts for an agent."""

    def __init__(self, folder: Path, agent: str) -> None:
        self._folder = folder
        self._agent = agent

    def types(self, command: str, *values: str, code: ExitCode = ExitCode.OK) -> Any:
        """The answer to a command, as a script reads it."""
        settings = {"HELIX_VAULT_PASSPHRASE": PASSPHRASE}
        done = helix(self._folder, *command.split(), *values, "--agent", self._agent, "--json", settings=settings)
        assert done.code == code, (done.out, done.err)
        return done.json


@pytest.fixture
def ann(tmp_path: Path) -> Operator:
    return Operator(tmp_path, "ann")


@pytest.fixture
def bob(tmp_path: Path) -> Operator:
    return Operator(tmp_path, "bob")


def test_what_an_agent_keeps_for_itself(ann: Operator, bob: Operator) -> None:
    for value in ("1", "2"):
        ann.types("state persistent set --key k --value", value)
    assert [each["version"] for each in ann.types("state persistent history --key k")["versions"]] == [2, 1]
    assert bob.types("state persistent get --key k")["found"] is False
    assert [each["key"] for each in ann.types("state persistent list")["entries"]] == ["k"]
    assert [each["value"] for each in ann.types("state persistent query --prefix k")["entries"]] == [2]
    assert ann.types("state persistent delete --key k")["deleted"] is True
    assert ann.types("state persistent get --key k")["found"] is False


def test_what_agents_share_and_watch(ann: Operator, bob: Operator) -> None:
    assert bob.types("state shared watch --prefix board.")["subscription_id"]
    ann.types("state shared set --key board.a --value 1 --expected-version 0")
    assert bob.types("state shared get --key board.a")["value"] == 1
    stale = bob.types("state shared set --key board.a --value 2 --expected-version 0", code=ExitCode.FAILED)
    assert stale["error"] == "VersionConflict"
    assert [each["key"] for each in bob.types("state shared list")["entries"]] == ["board.a"]
    assert [message["key"] for message in bob.types("state inbox")["messages"]] == ["board.a"]
    assert ann.types("state shared delete --key board.a")["deleted"] is True


def test_what_a_session_keeps(ann: Operator) -> None:
    session = ann.types("state create-session")["session_id"]
    own = ("--session", session)
    for key in ("a", "b"):
        ann.types(f"state session set --key {key} --value 1", *own)
    assert ann.types("state session get --key a", *own)["value"] == 1
    assert ann.types("state session delete --key a", *own)["deleted"] is True
    assert ann.types("state session list", *own)["keys"] == ["b"]
    ann.types("state session clear", *own)
    assert ann.types("state session list", *own)["keys"] == []
    assert ann.types("state end-session", *own)["ended"] is True
    assert ann.types("state session get --key b", *own, code=ExitCode.FAILED)["error"] == "SessionNotFound"


def test_who_names_no_session_is_told_the_command_that_makes_one(tmp_path: Path) -> None:
    for command in ("state session list", "state session get --key a", "state end-session"):
        nowhere = helix(tmp_path, *command.split())
        assert nowhere.code == ExitCode.USAGE
        assert "--session ID; `helix state create-session` creates one" in nowhere.err
    assert list(tmp_path.iterdir()) == []


def test_snapshots_alerts_and_health(ann: Operator) -> None:
    made = ann.types("snapshot create")["snapshot_id"]
    assert [each["snapshot_id"] for each in ann.types("snapshot list")["snapshots"]] == [made]
    assert ann.types(f"snapshot load --snapshot-id {made}")["snapshot"]
    missing = ann.types("snapshot load --snapshot-id nowhere", code=ExitCode.FAILED)
    assert missing["error"] == "SnapshotNotFound"
    ann.types("state alert --message", "the tide is out", "--severity", "info")
    [alert] = ann.types("state alerts")["alerts"]
    assert alert["message"] == "the tide is out"
    some = ann.types("state close-alert", "alert_x", alert["alert_id"], code=ExitCode.FAILED)
    assert (some["closed"], some["missing"]) == ([alert["alert_id"]], ["alert_x"])
    assert ann.types("state alerts")["alerts"] == []
    assert ann.types("state health")["status"] == "ok"
    assert ann.types("briefing generate")["briefing"]
    assert ann.types("state explain --capability state.backup.create")["tier"] == "approval_required"
    assert ann.types("state approvals")["approvals"] == []
    assert ann.types("state approve nothing", code=ExitCode.FAILED)["error"] == "InvalidInput"
    ann.types("state sweep")
    assert ann.types("state reject nothing", code=ExitCode.FAILED)["error"] == "InvalidInput"


def test_closing_an_alert_that_is_not_open_is_told(ann: Operator, tmp_path: Path) -> None:
    sent = ann.types("state alert --message tide")["alert_id"]
    assert ann.types("state close-alert", sent)["missing"] == []
    again = helix(tmp_path, "state", "close-alert", sent)
    assert again.code == ExitCode.FAILED
    assert f"no open alert '{sent}'; `helix state alerts` lists" in again.err


def test_health_tells_a_vault_that_is_missing_from_one_that_is_locked_or_damaged(ann: Operator, tmp_path: Path) -> None:
    def vault() -> tuple[str, str]:
        done = helix(tmp_path, "state", "health", "--json")
        [check] = [each for each in done.json["checks"] if each["name"] == "vault"]
        return check["status"], check["detail"]

    ann.types("state persistent set --key k --value 1")
    status, detail = vault()
    assert (status, "there is none" in detail, "locked" in detail) == ("ok", True, False)
    refused = ann.types("backup create", code=ExitCode.FAILED)
    assert (refused["error"], "There is no vault yet" in refused["message"]) == ("VaultLocked", True)
    path = Path(ann.types("vault init")["path"])
    assert vault() == ("degraded", "locked; backups cannot be made")
    path.write_text("{}")
    status, detail = vault()
    assert (status, str(path) in detail) == ("failing", True)


def test_the_vault_is_made_locked_and_checked(ann: Operator, tmp_path: Path) -> None:
    ann.types("state persistent set --key k --value 1")
    assert ann.types("vault status")["initialised"] is False
    assert ann.types("vault init")["unlocked"] is False
    assert ann.types("vault unlock")["unlocked"] is True
    assert ann.types("vault lock")["unlocked"] is False
    assert ann.types("vault init", code=ExitCode.FAILED)["error"]["code"] == "vault_already_exists"
    wrong = helix(tmp_path, "vault", "unlock", "--json", settings={"HELIX_VAULT_PASSPHRASE": "not this one at all"})
    assert (wrong.code, wrong.json["error"]["code"]) == (ExitCode.FAILED, "wrong_passphrase")
    nobody = helix(tmp_path, "vault", "unlock")
    assert (nobody.code, "set HELIX_VAULT_PASSPHRASE" in nobody.err) == (ExitCode.USAGE, True)


def test_backups_and_the_audit_log(ann: Operator, tmp_path: Path) -> None:
    ann.types("vault init")
    ann.types("state persistent set --key k --value 1")
    made = ann.types("backup create")["backup_id"]
    ann.types("state persistent set --key k --value 2")
    assert ann.types(f"backup restore --backup-id {made}")["restored"] is True
    assert ann.types("state persistent get --key k")["value"] == 1
    out = tmp_path / "out"
    out.mkdir()
    sent = ann.types(f"backup export --backup-id {made} --path {out} --export-root {out}")["exported_path"]
    assert ann.types("backup import", sent)["backup_id"]
    assert ann.types("backup list")["count"] >= 2
    gone = ann.types("backup restore --backup-id nowhere", code=ExitCode.FAILED)
    assert gone["error"] == "BackupNotFound"
    ann.types("audit checkpoint")
    assert ann.types("audit verify")["intact"] is True


def test_files_that_a_dead_process_left_are_told_and_deleted_when_somebody_says_so(
    ann: Operator, tmp_path: Path
) -> None:
    ann.types("snapshot create")
    (known,) = tmp_path.rglob("snapshots/*.json")
    left = known.with_name("snap-gone.json")
    left.write_bytes(known.read_bytes())
    assert ann.types("backup leftovers")["count"] == 0, "it may be on its way"
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    for path in (known, left):
        os.utime(path, (two_days_ago, two_days_ago))
    assert "helix backup leftovers" in helix(tmp_path, "doctor").out
    listed = ann.types("backup leftovers")
    assert (listed["count"], listed["deleted"], listed["leftovers"][0]["file"]) == (1, 0, str(left))
    assert ann.types("backup leftovers --delete")["deleted"] == 1
    assert (left.exists(), known.exists()) == (False, True)
    assert "leftovers" not in helix(tmp_path, "doctor").out


def test_who_only_looks_creates_no_store(tmp_path: Path) -> None:
    for command in (
        "state persistent list",
        "state health",
        "snapshot list",
        "briefing generate",
        "backup list",
        "vault status",
        "audit verify",
    ):
        nowhere = helix(tmp_path, *command.split())
        assert (nowhere.code, "there is no helix.db in this directory" in nowhere.err) == (ExitCode.SETUP, True)
        elsewhere = helix(tmp_path, *command.split(), "--store", "sqlite:///other.db")
        assert (elsewhere.code, "there is no such file. The first run creates it" in elsewhere.err) == (
            ExitCode.SERVICE,
            True,
        )
    assert list(tmp_path.iterdir()) == []


def test_an_mcp_server_is_not_opened_to_everybody_by_mistake(tmp_path: Path) -> None:
    """What it serves is tested with the real client; here is what it refuses."""
    nobody = helix(tmp_path, "mcp")
    assert (nobody.code, "--agent NAME" in nobody.err) == (ExitCode.USAGE, True)
    for settings in ({}, {"HELIX_MCP_TOKEN": ""}):
        open_door = helix(tmp_path, "mcp", "--agent", "ann", "--http", "0", "--host", "0.0.0.0", settings=settings)
        assert (open_door.code, "set HELIX_MCP_TOKEN first" in open_door.err) == (ExitCode.USAGE, True), open_door.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_mcp_server_whose_port_is_taken_says_so(tmp_path: Path, host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        port = str(taken.getsockname()[1])
        refused = helix(tmp_path, "mcp", "--agent", "ann", "--http", port, "--host", host)
    assert (refused.code, "cannot listen on" in refused.err) == (ExitCode.FAILED, True), refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("70000", "'70000' is not a port: give a number up to 65535, or 0 for a free port"),
        (":80", "':80' is not a port"),
        ("http://here:80/mcp", "is not a port"),
        ("0.0.0.0:8080", "'0.0.0.0:8080' is more than a port: write --host 0.0.0.0 --http 8080"),
        ("[::1]:8080", "write --host ::1 --http 8080"),
    ],
)
def test_what_is_no_port_or_more_than_one_is_told_how_it_is_said(tmp_path: Path, said: str, told: str) -> None:
    wrong = helix(tmp_path, "mcp", "--agent", "ann", "--http", said)
    assert (wrong.code, told in wrong.err) == (ExitCode.USAGE, True), wrong.err
    assert list(tmp_path.iterdir()) == []

"""The commands an operator types, made from the same declarations, with answers for people and for scripts."""

import asyncio
import json
from typing import Any

import pytest

from helix_agents.cli.app import run as helix
from tests.capabilities.worlds import PASSPHRASE, World


@pytest.fixture
def typed(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", PASSPHRASE)
    options = {
        "--store": world.url,
        "--directory": str(world.folder / "files"),
        "--vault": str(world.vault.path),
        "--export-root": str(world.folder / "out"),
        "--agent": "ann",
    }
    rest = [word for option in options.items() for word in option]

    async def type_it(*words: str, code: int = 0, as_json: bool = True) -> Any:
        capsys.readouterr()
        assert await asyncio.to_thread(helix, [*words, *rest, *(["--json"] if as_json else [])]) == code
        said = capsys.readouterr()
        return json.loads(said.out) if as_json else said.out

    return type_it


async def test_an_operator_does_with_commands_what_agents_do_with_tools(typed: Any, world: World) -> None:
    assert (await typed("state", "persistent", "set", "--key", "k", "--value", '{"a": 1}'))["version"] == 1
    assert (await typed("state", "persistent", "get", "--key", "k"))["value"] == {"a": 1}
    assert (await typed("state", "shared", "set", "--key", "s", "--value", "1", "--expected-version", "0"))[
        "version"
    ] == 1
    conflict = await typed("state", "shared", "set", "--key", "s", "--value", "1", "--expected-version", "0", code=1)
    assert conflict["error"] == "VersionConflict"
    session = (await typed("state", "create-session"))["session_id"]
    await typed("state", "session", "set", "--key", "t", "--value", "2", "--session", session)
    assert (await typed("state", "session", "list", "--session", session))["keys"] == ["t"]
    assert (await typed("state", "end-session", "--session", session))["ended"]
    assert (await typed("state", "session", "list", "--session", session, code=1))["error"] == "SessionNotFound"
    assert (await typed("vault", "status"))["initialised"]
    made = await typed("backup", "create")
    await typed("state", "persistent", "set", "--key", "k", "--value", '"changed"')
    assert (await typed("backup", "restore", "--backup-id", made["backup_id"]))["restored"]
    assert (await typed("state", "persistent", "get", "--key", "k"))["value"] == {"a": 1}
    exported = await typed("backup", "export", "--backup-id", made["backup_id"], "--path", str(world.folder / "out"))
    imported = await typed("backup", "import", exported["exported_path"])
    assert imported["scope"] == "full"
    assert (await typed("backup", "list"))["count"] == 3
    assert (await typed("snapshot", "create"))["snapshot_id"].startswith("snap-")
    assert (await typed("briefing", "generate"))["briefing"]["state_changes"] > 0
    assert (await typed("state", "health"))["status"] == "ok"
    assert (await typed("state", "explain", "--capability", "state.backup.create"))["tier"] == "approval_required"
    swept = await typed("state", "sweep")
    assert swept["notices_delivered"] >= 2


async def test_values_of_others_cannot_command_the_terminal(typed: Any) -> None:
    await typed("state", "persistent", "set", "--key", "k", "--value", '"\\u001b[2Jgone"')
    said = await typed("state", "persistent", "get", "--key", "k", as_json=False)
    assert "\x1b" not in said
    assert "gone" in said


async def test_a_request_over_another_face_is_approved_once_on_the_command_line(typed: Any, world: World) -> None:
    from helix_agents.domain.capability_errors import ApprovalPending

    async with world.open("ann", face="mcp") as state:
        with pytest.raises(ApprovalPending) as asked:
            await state.call("state.backup.create")
        with pytest.raises(ApprovalPending) as again:
            await state.call("state.backup.create")
        assert asked.value.context["approval_id"] == again.value.context["approval_id"]
    approval = asked.value.context["approval_id"]
    [waiting] = (await typed("state", "approvals"))["approvals"]
    assert waiting["preview"]["shared"] is True
    assert (await typed("state", "approve", approval))["status"] == "executed"
    assert (await typed("state", "approve", approval, code=1))["error"] == "InvalidInput"
    assert len(world.files("backups")) == 1


@pytest.mark.may_block("the command looks installed packages up for a scheme nobody knows")
def test_wrong_words_are_explained() -> None:
    assert helix(["state", "persistent", "get"]) == 2
    assert helix(["state", "persistent", "set", "--key", "k", "--value", "{"]) == 2
    assert helix(["state", "persistent", "set", "--key", "k", "--value", "[" * 20_000 + "]" * 20_000]) == 2
    assert helix(["mcp"]) == 2
    assert helix(["state", "shared", "list", "--store", "nowhere://localhost"]) == 4

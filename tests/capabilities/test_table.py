"""The table: all 24 answer with every declared output, every declared error can happen, and every hint leads on."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helix_agents.capabilities.catalogue import STATE
from helix_agents.capabilities.client import StateClient
from helix_agents.capabilities.inputs import output_schema
from helix_agents.capabilities.settings import Limits
from helix_agents.cli.app import run as helix
from helix_agents.domain.capability_errors import CapabilityError
from helix_agents.testing.seams import DyingSeam
from tests.capabilities.worlds import PASSPHRASE, World, approved

KINDS: dict[str, tuple[type, ...]] = {
    "String": (str, type(None)),
    "DateTime": (str, type(None)),
    "Integer": (int,),
    "Boolean": (bool,),
    "Array": (list,),
    "Object": (object,),
}


async def every_answer(world: World) -> dict[str, dict[str, Any]]:
    """One successful call of each, through the gate, approvals included."""
    answers: dict[str, dict[str, Any]] = {}
    async with world.open() as plain:
        state = await plain.with_session()

        async def call(name: str, **inputs: Any) -> dict[str, Any]:
            answers[name] = await state.call(name, **inputs)
            return answers[name]

        await call("state.session.set", key="task.current", value={"step": 1})
        await call("state.session.get", key="task.current")
        await call("state.session.list")
        await call("state.session.delete", key="task.current")
        await call("state.session.clear")
        await call("state.persistent.set", key="config", value=[1, 2])
        await call("state.persistent.get", key="config")
        await call("state.persistent.list")
        await call("state.persistent.query", prefix="con")
        await call("state.persistent.history", key="config")
        await call("state.shared.watch", prefix="config.")
        await call("state.shared.set", key="config.mode", value="production", expected_version=0)
        await call("state.shared.get", key="config.mode")
        await call("state.shared.list")
        created = await call("state.snapshot.create")
        await call("state.snapshot.list")
        await call("state.snapshot.load", snapshot_id=created["snapshot_id"])
        await call("state.briefing.generate")
        for name, inputs in (
            ("state.backup.create", {}),
            ("state.backup.restore", {"backup_id": "…"}),
            ("state.backup.export", {"backup_id": "…", "path": str(world.folder / "out")}),
        ):
            if "backup_id" in inputs:
                inputs["backup_id"] = answers["state.backup.create"]["backup_id"]
            row = await approved(state, name, **inputs)
            assert row.status == "executed", row
            answers[name] = row.result
        await call("state.backup.list")
        await call("state.shared.delete", key="config.mode")
        await call("state.persistent.delete", key="config")
    return answers


async def test_all_24_answer_with_every_declared_output(each_world: World) -> None:
    answers = await every_answer(each_world)
    assert answers.keys() == {each.name for each in STATE}
    for each in STATE:
        answer = answers[each.name]
        assert answer.keys() == {declared.name for declared in each.outputs}, each.name
        for declared in each.outputs:
            assert isinstance(answer[declared.name], KINDS[declared.kind]), (each.name, declared.name)
        assert output_schema(each)["required"] == list(output_schema(each)["properties"])
        json.dumps(answer)


@dataclass
class Stage:
    """One cell of the table: how the error is brought about, and what makes the same call succeed."""

    world: World
    state: StateClient
    seam: DyingSeam = field(default_factory=DyingSeam)

    def block(self, kind: str) -> Path:
        """Put a file where a folder has to be."""
        path = self.world.folder / "files" / "default" / kind
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.rename(path.with_name(f"{kind}-aside"))
        path.write_text("in the way")
        return path

    def unblock(self, kind: str) -> None:
        path = self.world.folder / "files" / "default" / kind
        path.unlink()
        aside = path.with_name(f"{kind}-aside")
        if aside.exists():
            aside.rename(path)


Repair = Callable[[Stage], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True)
class Cell:
    """`break_it` answers the inputs of the call that fails; `mend` is done between the hints and the second try, and
    may answer other inputs for it."""

    break_it: Callable[[Stage], Awaitable[dict[str, Any]]]
    mend: Repair
    session: bool = False
    face: str = "python"
    limits: Limits = field(default_factory=Limits)


async def nothing(_: Stage) -> None:
    """Following the hints was enough."""


def gone_session(**inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        await stage.state.call("session.end")
        return inputs

    async def mend(stage: Stage) -> None:
        stage.state = await stage.state.with_session()

    return Cell(break_it, mend, session=True)


def missing_key(**inputs: Any) -> Cell:
    async def break_it(_: Stage) -> dict[str, Any]:
        return {"key": "missing", **inputs}

    async def mend(stage: Stage) -> dict[str, Any]:
        await stage.state.persistent.set("found", 1)
        await stage.state.shared.set("found", 1, expected_version=0)
        return {"key": "found", **inputs}

    return Cell(break_it, mend, session=True)


def broken_store(**inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        stage.seam.arm(after=1)
        return inputs

    async def mend(stage: Stage) -> None:
        stage.seam.disarm()

    return Cell(break_it, mend)


def full(scope: str, limits: Limits, **inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        big = {"key": "big", "value": "x" * 60}
        await stage.state.call(f"state.{scope}.set", **big, **({"expected_version": 0} if scope == "shared" else {}))
        return {"key": "more", "value": "y" * 60, **inputs}

    return Cell(break_it, nothing, session=True, limits=limits)


def blocked(kind: str, face: str = "python", **inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        if kind == "snapshots":
            await stage.state.call("state.snapshot.create")
        else:
            await stage.state.call("state.backup.create")
        stage.block(kind)
        return inputs

    async def mend(stage: Stage) -> None:
        stage.unblock(kind)

    return Cell(break_it, mend, face=face)


def locked(**inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        await stage.state.persistent.set("k", 1)
        made = await stage.state.call("state.backup.create")
        stage.world.vault.lock()
        return {"backup_id": made["backup_id"]} if "backup_id" in inputs else inputs

    async def mend(_: Stage) -> None:
        """The operator's command was all that was needed."""

    return Cell(break_it, mend, face="operator")


def unknown_backup(**inputs: Any) -> Cell:
    async def break_it(stage: Stage) -> dict[str, Any]:
        await stage.state.persistent.set("k", 1)
        await stage.state.call("state.backup.create")
        return {"backup_id": "../../etc/passwd", **inputs}

    async def mend(stage: Stage) -> dict[str, Any]:
        listed = await stage.state.call("state.backup.list")
        more = {"path": str(stage.world.folder / "out")} if "path" in inputs else {}
        return {"backup_id": listed["backups"][0]["backup_id"], **more}

    return Cell(break_it, mend, face="operator")


async def _flipped(stage: Stage) -> dict[str, Any]:
    await stage.state.persistent.set("k", 1)
    made = await stage.state.call("state.backup.create")
    [path] = stage.world.files("backups")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return {"backup_id": made["backup_id"]}


async def _flip_back(stage: Stage) -> None:
    [path] = stage.world.files("backups")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def _conflict(stage: Stage) -> dict[str, Any]:
    await stage.state.shared.set("counter", 1, expected_version=0)
    return {"key": "counter", "value": 2, "expected_version": 0}


async def _read_again(stage: Stage) -> dict[str, Any]:
    found = await stage.state.shared.get("counter")
    return {"key": "counter", "value": 2, "expected_version": found.version}


async def _unknown_snapshot(_: Stage) -> dict[str, Any]:
    return {"snapshot_id": "snap-before"}


async def _known_snapshot(stage: Stage) -> dict[str, Any]:
    made = await stage.state.call("state.snapshot.create")
    return {"snapshot_id": made["snapshot_id"]}


async def _bad_time(_: Stage) -> dict[str, Any]:
    return {"since": "yesterday"}


async def _good_time(_: Stage) -> dict[str, Any]:
    return {"since": "2026-03-25T14:00:00Z"}


async def _no_such_folder(stage: Stage) -> dict[str, Any]:
    await stage.state.persistent.set("k", 1)
    made = await stage.state.call("state.backup.create")
    return {"backup_id": made["backup_id"], "path": str(stage.world.folder / "out" / "missing" / "file")}


async def _existing_folder(stage: Stage) -> None:
    (stage.world.folder / "out" / "missing").mkdir()


SMALL = Limits(session_bytes=100, persistent_bytes=100, shared_bytes=100)
CELLS: dict[tuple[str, str], Cell] = {
    ("state.session.get", "SessionNotFound"): gone_session(key="k"),
    ("state.session.set", "SessionNotFound"): gone_session(key="k", value=1),
    ("state.session.set", "QuotaExceeded"): full("session", SMALL),
    ("state.session.delete", "SessionNotFound"): gone_session(key="k"),
    ("state.session.list", "SessionNotFound"): gone_session(),
    ("state.session.clear", "SessionNotFound"): gone_session(),
    ("state.persistent.get", "KeyNotFound"): missing_key(must_exist=True),
    ("state.persistent.set", "QuotaExceeded"): full("persistent", SMALL),
    ("state.persistent.delete", "KeyNotFound"): missing_key(must_exist=True),
    ("state.persistent.list", "DatabaseError"): broken_store(),
    ("state.persistent.query", "DatabaseError"): broken_store(prefix="a"),
    ("state.persistent.history", "KeyNotFound"): missing_key(),
    ("state.shared.get", "KeyNotFound"): missing_key(must_exist=True),
    ("state.shared.set", "VersionConflict"): Cell(_conflict, _read_again),
    ("state.shared.set", "QuotaExceeded"): full("shared", SMALL, expected_version=0),
    ("state.shared.delete", "KeyNotFound"): missing_key(must_exist=True),
    ("state.shared.list", "DatabaseError"): broken_store(),
    ("state.shared.watch", "SubscriptionFailed"): broken_store(),
    ("state.snapshot.create", "IoError"): blocked("snapshots"),
    ("state.snapshot.list", "IoError"): blocked("snapshots"),
    ("state.snapshot.load", "SnapshotNotFound"): Cell(_unknown_snapshot, _known_snapshot),
    ("state.briefing.generate", "InvalidTimestamp"): Cell(_bad_time, _good_time),
    ("state.backup.create", "IoError"): blocked("backups", face="operator"),
    ("state.backup.create", "VaultLocked"): locked(),
    ("state.backup.list", "IoError"): blocked("backups", face="operator"),
    ("state.backup.restore", "BackupNotFound"): unknown_backup(),
    ("state.backup.restore", "DecryptionFailed"): Cell(_flipped, _flip_back, face="operator"),
    ("state.backup.restore", "VaultLocked"): locked(backup_id="…"),
    ("state.backup.export", "BackupNotFound"): unknown_backup(path="out"),
    ("state.backup.export", "IoError"): Cell(_no_such_folder, _existing_folder, face="operator"),
}


def test_the_table_has_a_cell_for_every_declared_error() -> None:
    assert CELLS.keys() == {(each.name, case.error) for each in STATE for case in each.errors}
    assert len(CELLS) == 30


@pytest.mark.parametrize(("name", "error"), CELLS, ids=lambda each: each)
async def test_an_error_can_happen_and_its_hints_lead_on(
    world: World, name: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = CELLS[name, error]
    world.limits = cell.limits
    seam = DyingSeam()
    async with world.open(face=cell.face, seam=seam) as opened:
        state = await opened.with_session() if cell.session else opened
        stage = Stage(world, state, seam)
        inputs = await cell.break_it(stage)
        with pytest.raises(CapabilityError) as raised:
            await stage.state.call(name, **inputs)
        seam.disarm()
        told = raised.value.as_data()
        assert told["error"] == error
        assert told["message"]
        declared = next(case for each in STATE if each.name == name for case in each.errors if case.error == error)
        assert [hint["action"] for hint in told["recovery"]] == [hint.action for hint in declared.recovery]
        for shown, hint in zip(told["recovery"], declared.recovery, strict=True):
            assert shown["description"] == hint.description
            if hint.capability is not None:
                assert shown["capability"] == hint.capability
                await _follow(stage, shown)
            elif hint.command is not None:
                await _type(world, hint.command, monkeypatch)
        again = await cell.mend(stage)
        answer = await stage.state.call(name, **(inputs if again is None else again))
        assert answer.keys() == {declared.name for each in STATE if each.name == name for declared in each.outputs}


async def _follow(stage: Stage, hint: dict[str, Any]) -> None:
    """Do what a hint says, through the same face, with the inputs it gives."""
    if hint["capability"] == "session.create":
        assert (await stage.state.call("session.create"))["session_id"]
        return
    await stage.state.call(hint["capability"], **hint["inputs"])


async def _type(world: World, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type what an operator would."""
    monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", PASSPHRASE)
    words = [*command.split()[1:], "--store", f"sqlite:///{world.folder}/helix.db", "--vault", str(world.vault.path)]
    assert await asyncio.to_thread(helix, words) == 0
    monkeypatch.delenv("HELIX_VAULT_PASSPHRASE")
    assert "HELIX_VAULT_PASSPHRASE" not in os.environ

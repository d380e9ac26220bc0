"""The audit log: complete, in one chain, and whatever is done to it later is found and located."""

import asyncio
import json
from typing import Any

import apsw
import pytest

from helix_agents.capabilities.auditing import sign_checkpoint, verify_audit
from helix_agents.cli.app import run as helix
from tests.capabilities.worlds import PASSPHRASE, World


async def written(world: World) -> None:
    async with world.open() as state:
        for number in range(10):
            await state.persistent.set("k", number)
        await sign_checkpoint(state.gateway)
        for number in range(5):
            await state.shared.set(f"s{number}", number, expected_version=0)


def tamper(world: World, *statements: str) -> None:
    connection = apsw.Connection(str(world.folder / "helix.db"))
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def report(world: World) -> dict[str, Any]:
    async with world.open() as state:
        return await verify_audit(state.gateway)


async def test_an_untouched_log_is_intact_and_every_call_is_in_it(world: World) -> None:
    await written(world)
    found = await report(world)
    assert (found["intact"], found["rows"], found["checkpoints"]) == (True, 15, 1)


CASES = {
    "edited": ("UPDATE __agents_audit SET entry = replace(entry, 'ann', 'eve') WHERE seq = 4", 4),
    "deleted": ("DELETE FROM __agents_audit WHERE seq = 6", 6),
    "reordered": (
        (
            "UPDATE __agents_audit SET seq = CASE seq WHEN 2 THEN 1002 ELSE 1003 END WHERE seq IN (2, 3);"
            "UPDATE __agents_audit SET seq = CASE seq WHEN 1002 THEN 3 ELSE 2 END WHERE seq IN (1002, 1003)"
        ),
        2,
    ),
    "cut_tail": ("DELETE FROM __agents_audit WHERE seq >= 8", 8),
}


@pytest.mark.parametrize("kind", CASES)
async def test_what_is_done_to_the_log_is_found_and_located(world: World, kind: str) -> None:
    await written(world)
    statement, seq = CASES[kind]
    await asyncio.to_thread(tamper, world, statement)
    found = await report(world)
    assert not found["intact"]
    first = found["findings"][0]
    assert (first["kind"], first["seq"]) == (kind, seq), found


async def test_the_command_says_so_too(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(world)
    monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", PASSPHRASE)
    store = [
        "--store",
        world.url,
        "--directory",
        str(world.folder / "files"),
        "--vault",
        str(world.vault.path),
        "--json",
    ]
    assert await asyncio.to_thread(helix, ["audit", "checkpoint", *store]) == 0
    assert await asyncio.to_thread(helix, ["audit", "verify", *store]) == 0
    await asyncio.to_thread(tamper, world, CASES["edited"][0])
    assert await asyncio.to_thread(helix, ["audit", "verify", *store]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["findings"][0]["seq"] == 4


async def test_values_and_secrets_are_not_in_the_log(world: World) -> None:
    async with world.open() as state:
        await state.persistent.set("k", {"password": "hunter2"})
        await state.call("state.persistent.get", key="k")
        await state.gateway.flush()
        rows = await state.gateway.store.list_audit()
    assert len(rows) == 2
    assert "hunter2" not in "".join(row.entry for row in rows)
    line = json.loads(rows[0].entry)
    assert line["arguments"]["value"]["bytes"] == len('{"password":"hunter2"}')

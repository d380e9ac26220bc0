"""The audit log: complete, in one chain, and whatever is done to it later is found and located."""

import asyncio
import json
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from helix_agents import Agent, Executor, ScriptedModel
from helix_agents.capabilities.auditing import checkpoints_file, sign_checkpoint, sign_when_due, verify_audit
from helix_agents.capabilities.housekeeping import sweep_state
from helix_agents.capabilities.policy import Policy, Rule
from helix_agents.capabilities.scopes import OUTBOX
from helix_agents.capabilities.toolset import state_capabilities
from helix_agents.capabilities.vault import append_checkpoint, load_checkpoints
from helix_agents.cli.app import run as helix
from helix_agents.domain.entries import EntryTransaction
from helix_agents.domain.errors import AuditBrokenError, StoreUnavailableError
from helix_agents.testing import call
from helix_agents.testing.clock import ManualClock
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


async def test_what_a_clients_session_changes_is_in_the_log_with_the_change(each_world: World) -> None:
    """A process that dies right after it leaves no change that nobody made."""
    rule = Rule(name="told", applies_to="state.session.*", tier="notify")
    each_world.policy = Policy(rules=[rule])
    async with each_world.open() as state:
        store = state.gateway.store

        async def last() -> str:
            return json.loads((await store.list_audit())[-1].entry)["capability"]

        session = await state.with_session()
        assert await last() == "session.create"
        for key in ("a", "b"):
            assert await session.session.set(key, 1) is None
        assert await session.session.set("a", 2) == 1
        assert await last() == "state.session.set"
        assert await session.session.delete("a")
        assert await last() == "state.session.delete"
        assert await session.session.clear() == 1
        assert await last() == "state.session.clear"
        assert (await store.usage(OUTBOX)).keys == 5
        assert await session.call("session.end") == {"ended": True}
        assert await last() == "session.end"


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


async def test_the_values_of_a_call_that_is_only_asked_about_are_not_in_the_log_either(world: World) -> None:
    async with world.open() as state:
        asked = {"key": "k", "value": "hunter2", "expected_version": 0}
        await state.call("policy.explain", capability="state.shared.set", inputs=asked)
        await state.gateway.flush()
        (row,) = await state.gateway.store.list_audit()
    assert "hunter2" not in row.entry
    assert json.loads(row.entry)["arguments"]["inputs"]["key"] == "k"


async def test_no_read_goes_unaudited_because_the_store_was_away_or_the_gateway_closed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing = asyncio.Event()
    async with world.open() as state:
        store = state.gateway.store
        transact = store.transact

        async def fail(_: EntryTransaction) -> None:
            writing.set()
            raise StoreUnavailableError("the store", "away")

        async def wait(request: EntryTransaction) -> Any:
            writing.set()
            await asyncio.sleep(0.05)
            return await transact(request)

        for write in (fail, wait):
            writing.clear()
            monkeypatch.setattr(store, "transact", write)
            await state.persistent.get("k")
            async with asyncio.timeout(10):
                await writing.wait()
        await state.gateway.close()
        assert len(await store.list_audit()) == 2
    assert "audit.not_written" in caplog.text


async def test_a_log_that_cannot_be_signed_keeps_nothing_else_from_being_swept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.url = f"memory://{world.folder.name}-unsigned"
    async with world.open(settings={"directory": None}) as state:
        await state.persistent.set("k", 1)
        assert (await sweep_state(state.gateway))["audit_signed_up_to"] == 0
    assert "audit.not_signed" in caplog.text


async def test_a_vault_that_is_damaged_keeps_nothing_from_being_swept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open() as state:
        await state.persistent.set("k", 1)
        await asyncio.to_thread(world.vault.path.write_text, "no vault")
        assert (await sweep_state(state.gateway))["audit_signed_up_to"] == 0
    assert "audit.not_signed" in caplog.text


async def test_the_log_is_signed_by_itself_when_enough_was_written_or_some_time_ago(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = ManualClock(1_000_000)
    async with world.open(clock=clock) as state:
        assert await sign_when_due(state.gateway) == 0
        await state.persistent.set("k", 0)
        assert await sign_when_due(state.gateway) == 1
        await state.persistent.set("k", 1)
        assert await sign_when_due(state.gateway) == 0
        clock.advance(60_000)
        assert await sign_when_due(state.gateway) == 2
        clock.advance(60_000)
        assert await sign_when_due(state.gateway) == 0
        await state.persistent.set("k", 2)
        assert await sign_when_due(state.gateway) == 3
        lines = tuple({"number": number} for number in range(255))
        await state.gateway.store.transact(EntryTransaction(audit=lines))
        assert await sign_when_due(state.gateway) == 0
        await state.gateway.store.transact(EntryTransaction(audit=lines[:1]))
        assert await sign_when_due(state.gateway) == 259
        # A clock that was set back keeps nothing from being signed.
        clock.advance(-90_000)
        await state.persistent.set("k", 3)
        assert await sign_when_due(state.gateway) == 260
    assert caplog.text.count("audit.checkpoint") == 5
    assert (await report(world))["checkpoints"] == 5
    await asyncio.to_thread(tamper, world, "DELETE FROM __agents_audit WHERE seq >= 200")
    assert (await report(world))["findings"][0]["kind"] == "cut_tail"


async def test_a_signature_covers_reads_that_were_not_written_yet(world: World) -> None:
    async with world.open() as state:
        await state.persistent.set("k", 1)
        await state.persistent.get("k")
        assert (await sign_checkpoint(state.gateway))["seq"] == 2
        await state.persistent.get("k")
        assert (await verify_audit(state.gateway))["rows"] == 3


async def test_a_locked_vault_signs_nothing_and_the_next_signature_covers_it(world: World) -> None:
    async with world.open() as state:
        world.vault.lock()
        await state.persistent.set("k", 0)
        assert await sign_when_due(state.gateway) == 0
        await world.vault.unlock(PASSPHRASE)
        assert await sign_when_due(state.gateway) == 1
    async with world.open(settings={"vault": None}) as state:
        await state.persistent.set("k", 1)
        assert await sign_when_due(state.gateway) == 0


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("UPDATE __agents_audit SET entry = '{}' WHERE seq = 13", "Row 13"),
        ("DELETE FROM __agents_audit WHERE seq = 13", "Row 14"),
    ],
)
async def test_a_log_that_was_altered_is_not_signed(
    world: World, caplog: pytest.LogCaptureFixture, what: str, told: str
) -> None:
    await written(world)
    await asyncio.to_thread(tamper, world, what)
    async with world.open() as state:
        with pytest.raises(AuditBrokenError, match=told):
            await sign_checkpoint(state.gateway)
        for number in range(300):
            await state.gateway.store.transact(EntryTransaction(audit=({"number": number},)))
        assert await sign_when_due(state.gateway) == 0
    assert "audit.broken" in caplog.text
    assert (await report(world))["checkpoints"] == 1


async def test_a_checkpoint_that_nobody_signed_hides_no_alteration_from_the_next(world: World) -> None:
    await written(world)
    await asyncio.to_thread(tamper, world, "UPDATE __agents_audit SET entry = '{}' WHERE seq = 13")
    async with world.open() as state:
        path = checkpoints_file(state.gateway)
        [signed] = await load_checkpoints(path)
        end = (await state.gateway.store.list_audit())[-1]
        await append_checkpoint(path, replace(signed, seq=end.seq, head=end.hash))
        with pytest.raises(AuditBrokenError, match="Row 13"):
            await sign_checkpoint(state.gateway)


async def test_the_janitor_of_an_agent_signs_what_it_did(world: World) -> None:
    ann = Agent(
        name="ann",
        model=ScriptedModel([call("state__persistent__set", {"key": "k", "value": 1}), "done"]),
        capabilities=[state_capabilities(directory=world.folder / "files", vault=world.vault)],
    )
    async with Executor.open(world.url, agents=[ann], janitor_seconds=None) as helix:
        await (await helix.execute(ann, "go")).result()
        await helix.sweep()
    found = await report(world)
    assert (found["intact"], found["rows"], found["checkpoints"]) == (True, 1, 1)


async def test_only_the_end_of_a_long_file_of_signatures_is_read(world: World) -> None:
    async with world.open() as state:
        for number in range(300):
            await state.persistent.set("k", number)
            await sign_checkpoint(state.gateway)
        newest = await load_checkpoints(checkpoints_file(state.gateway), newest=True)
        assert 1 < len(newest) < 300
        assert newest[-1].seq == 300
    assert (await report(world))["checkpoints"] == 300

"""Backups: one revision exactly, all or nothing back, and nothing that was touched is believed."""

import asyncio
import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from helix_agents.capabilities import approvals, importing
from helix_agents.capabilities.approval_rows import row_of
from helix_agents.capabilities.approvals import decide_approval, resume_approvals, run_approved
from helix_agents.capabilities.backups import Backups, Manifest, Trailer
from helix_agents.capabilities.client import StateClient
from helix_agents.capabilities.housekeeping import sweep_state
from helix_agents.capabilities.importing import import_backup
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.policy import Policy
from helix_agents.capabilities.restores import LONGEST_RESTORE_MS
from helix_agents.capabilities.retention import kept
from helix_agents.capabilities.scopes import APPROVALS, BACKUPS, RESTORES, SNAPSHOTS
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.vault import BackupAbout, BackupFacts, Vault, create_backup, verify_backup
from helix_agents.domain.capability_errors import (
    ApprovalPending,
    CapabilityError,
    DatabaseError,
    DecryptionFailed,
    InvalidInput,
    IoError,
    VersionConflict,
)
from helix_agents.domain.entries import Entry, EntryTransaction, Put, RestoreEntries, Transacted
from helix_agents.domain.errors import BackupDamagedError, StoreUnavailableError, VaultError
from helix_agents.domain.records import encode
from helix_agents.ports.entries import EntryDump
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.processes import processes_for
from helix_agents.testing.entry_scenes import everything
from helix_agents.testing.workers import Processes
from tests.capabilities import state_jobs
from tests.capabilities.worlds import CHEAP, PASSPHRASE, World, approved

GOLDEN = Path(__file__).parents[1] / "fixtures" / "backups"
SCOPES = ("agent:ann", "agent:bob", "shared")


async def contents(state: StateClient) -> dict[str, Any]:
    """Every value of every scope, without the numbers of versions."""
    found: dict[str, Any] = {}
    for scope in SCOPES:
        rows = await everything(state.gateway.store, scope)
        found[scope] = {key: versions[0][1] for key, versions in rows}
    return found


async def fill(world: World) -> None:
    for agent in ("ann", "bob"):
        async with world.open(agent) as state:
            for number in range(6):
                await state.persistent.set(f"k{number}", f"{agent}-{number}")
                await state.persistent.set(f"k{number}", [agent, number])
    async with world.open("ann") as state:
        await state.shared.set("s", "shared", expected_version=0)


@pytest.fixture
async def full(world: World) -> World:
    await fill(world)
    return world


async def test_a_backup_under_concurrent_writes_is_one_revision_exactly(each_world: World) -> None:
    async with each_world.open("ann", face="operator") as state, each_world.open("ann") as writer:
        await writer.persistent.set("total", 0)
        stop = asyncio.Event()

        async def keep_writing() -> int:
            number = 0
            while not stop.is_set():
                number += 1
                await writer.persistent.set(f"k{number % 20}", number)
                found = await writer.shared.get("last")
                await writer.shared.set("last", number, expected_version=found.version)
                await asyncio.sleep(0)
            return number

        writing = asyncio.create_task(keep_writing())
        made = await state.call("state.backup.create")
        stop.set()
        await writing
        backups = Backups(state.gateway.store, state.gateway.settings)
        known = await backups.find(made["backup_id"])
        values: dict[tuple[str, str], Any] = {}
        revision = 0
        async for part in backups.rows(known.path):
            if isinstance(part, Manifest):
                revision = part.revision
                continue
            for row in part:
                assert row.revision <= revision
                values[row.scope, row.key] = row.value
        # The log of changes says what every key was at that revision.
        told = await state.gateway.store.list_events(0, limit=100_000, until=revision)
        last = {(event.scope, event.key): event.version for event in told.events}
        await state.call("state.backup.restore", backup_id=made["backup_id"])
        after = await contents(state)
        assert {key: json.dumps(value) for key, value in after["agent:ann"].items()} == {
            key: json.dumps(json.loads(text)) for (scope, key), text in values.items() if scope == "agent:ann" and text
        }
        assert {place for place in values if values[place] is not None} == last.keys()


async def test_an_agent_that_begins_while_a_backup_does_is_in_it(
    each_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with each_world.open("ann", face="operator") as state, each_world.open("zoe") as new:
        store = state.gateway.store
        dump = store.dump
        await state.persistent.set("k", 1)

        @asynccontextmanager
        async def begin_first(scopes: Sequence[str]) -> AsyncIterator[EntryDump]:
            await new.persistent.set("first", 1)
            async with dump(scopes) as opened:
                yield opened

        monkeypatch.setattr(store, "dump", begin_first)
        backup_id = (await state.call("state.backup.create"))["backup_id"]
        monkeypatch.setattr(store, "dump", dump)
        await new.persistent.delete("first")
        await state.call("state.backup.restore", backup_id=backup_id)
        assert (await new.persistent.get("first")).found


async def test_one_agent_is_restored_and_others_stay_untouched(full: World) -> None:
    async with full.open("ann", face="operator") as state:
        made = await state.call("state.backup.create")
        before = await contents(state)
        async with full.open("bob") as bob:
            await bob.persistent.set("k0", "newer")
            await bob.shared.set("s", "newer", expected_version=1)
        await state.persistent.set("k0", "changed")
        await state.persistent.delete("k1")
        await state.persistent.set("extra", 1)
        row = await state.call("state.backup.restore", backup_id=made["backup_id"], agent="ann")
        assert row["agents_restored"] == ["ann"]
        after = await contents(state)
        assert after["agent:ann"] == before["agent:ann"]
        assert after["agent:bob"]["k0"] == "newer"
        assert after["shared"] == {"s": "newer"}


async def test_an_operator_may_name_any_agent_and_who_is_listed_finds_what_they_may_ask_for(
    full: World,
) -> None:
    async with full.open("operator", face="operator") as state, full.open("bob") as bob:
        made = await state.call("state.backup.create", agent="bob")
        await bob.persistent.set("k0", "newer")
        restored = await state.call("state.backup.restore", backup_id=made["backup_id"], agent="bob")
        assert restored["agents_restored"] == ["bob"]
        assert (await bob.persistent.get("k0")).value == ["bob", 0]
    for listed in ((), ("bob",)):
        full.policy = Policy(other_agents={"ann": listed})
        async with full.open("ann") as ann:
            found = (await ann.call("state.backup.list"))["backups"]
            assert [each["scope"] for each in found] == ["agent:bob"] * 2 * len(listed)


async def test_whoever_decides_is_told_how_many_keys_differ_however_long_their_histories_are(world: World) -> None:
    """A backup is read in batches, and the versions of a key may lie in two of them."""
    async with world.open("ann") as state:
        store, long = state.gateway.store, json.dumps("x" * 4_000)
        keys = [f"k{number}" for number in range(8)]
        history = tuple(
            Put(scope="agent:ann", key=key, value=long, keep_versions=100, announce=True)
            for key in keys
            for _ in range(100)
        )
        await store.transact(EntryTransaction(changes=history, owner="ann"))
        made = (await approved(state, "state.backup.create")).result
        for key in keys[:5]:
            await state.persistent.set(key, "newer")
        await state.persistent.delete(keys[5])
        await state.persistent.set("extra", 1)
        with pytest.raises(ApprovalPending):
            await state.call("state.backup.restore", backup_id=made["backup_id"])
        [asked] = [row async for row in every_entry(store, APPROVALS) if "backup.restore" in str(row.value)]
        assert row_of(asked).preview["keys"]["agent:ann"] == {"added": 1, "changed": 5, "removed": 1}


async def test_a_bit_flipped_anywhere_a_cut_and_a_swap_are_refused(full: World) -> None:
    async with full.open("ann", face="operator") as state:
        one = await state.call("state.backup.create")
        two = await state.call("state.backup.create")
        before = await contents(state)
        paths = {path.stem: path for path in full.files("backups")}
        path = paths[one["backup_id"]]
        whole = path.read_bytes()
        backups = Backups(state.gateway.store, state.gateway.settings)

        async def opened(data: bytes) -> None:
            path.write_bytes(data)
            async for _ in backups.rows(path):
                pass

        chance = random.Random(7)
        for position in chance.sample(range(len(whole) * 8), 1_000):
            flipped = bytearray(whole)
            flipped[position // 8] ^= 1 << (position % 8)
            with pytest.raises((VaultError, CapabilityError)):
                await opened(bytes(flipped))
        for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
            with pytest.raises((VaultError, CapabilityError)):
                await opened(whole[:length])
        with pytest.raises((VaultError, CapabilityError)):
            await opened(whole + b"x")
        # The other backup is whole, but it is not this one.
        path.write_bytes(paths[two["backup_id"]].read_bytes())
        with pytest.raises(DecryptionFailed):
            await state.call("state.backup.restore", backup_id=one["backup_id"])
        path.write_bytes(whole)
        assert await contents(state) == before
        assert (await state.call("state.backup.restore", backup_id=one["backup_id"]))["restored"]


async def test_a_wrong_passphrase_and_another_vault_open_nothing(full: World, tmp_path: Path) -> None:
    async with full.open("ann", face="operator") as state:
        made = await state.call("state.backup.create")
        exported = await state.call("state.backup.export", backup_id=made["backup_id"], path=str(full.folder / "out"))
    clean = tmp_path / "clean"
    clean.mkdir()
    other = await World.make(clean)
    file = Path(exported["exported_path"])
    async with other.open("ann", face="operator") as state:
        for wrong in (None, "not the passphrase at all"):
            with pytest.raises(VaultError):
                await import_backup(state.gateway, file, passphrase=wrong)
        assert (await state.call("state.backup.list"))["count"] == 0
    # A clean machine with the passphrase of the vault that made it.
    passphrase_world = World(clean, other.url, other.vault)
    async with passphrase_world.open("ann", face="operator") as state:
        brought = await import_backup(state.gateway, file, passphrase=PASSPHRASE)
        await state.call("state.backup.restore", backup_id=brought["backup_id"])
        assert (await contents(state))["agent:bob"]["k5"] == ["bob", 5]


async def test_several_files_are_brought_in_the_same_second(full: World) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with full.open("ann", face="operator", clock=clock) as state:
        made = await state.call("state.backup.create")
        copied = await state.call("state.backup.export", backup_id=made["backup_id"], path=str(full.folder / "out"))
        file = Path(copied["exported_path"])
        given = (None, None, PASSPHRASE, PASSPHRASE)
        brought = await asyncio.gather(*(import_backup(state.gateway, file, passphrase=each) for each in given))
        listed = (await state.call("state.backup.list"))["backups"]
        assert {each["backup_id"] for each in listed} == {made["backup_id"], *(each["backup_id"] for each in brought)}
        assert len(listed) == len(full.files("backups")) == 5


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
async def test_a_file_that_is_exchanged_after_it_was_verified_is_not_brought(
    full: World, monkeypatch: pytest.MonkeyPatch, passphrase: str | None
) -> None:
    async with full.open("ann", face="operator") as state:
        for name, agent in (("one", None), ("other", "ann")):
            made = await state.call("state.backup.create", agent=agent)
            path = str(full.folder / "out" / name)
            await state.call("state.backup.export", backup_id=made["backup_id"], path=path)
        before = full.files("backups")

        async def verify_then_exchange(file: Path, **given: Any) -> BackupFacts:
            facts = await verify_backup(file, **given)
            await asyncio.to_thread((full.folder / "out" / "other").replace, file)
            return facts

        monkeypatch.setattr(importing, "verify_backup", verify_then_exchange)
        with pytest.raises(BackupDamagedError, match="its hash is another"):
            await import_backup(state.gateway, full.folder / "out" / "one", passphrase=passphrase)
        assert full.files("backups") == before
        assert (await state.call("state.backup.list"))["count"] == 2


async def test_machines_that_share_a_store_and_no_folder_make_backups_in_the_same_second(each_world: World) -> None:
    store: dict[str, Any] = {"face": "operator", "clock": ManualClock(1_700_000_000_000)}
    elsewhere: Any = {"settings": {"directory": each_world.folder / "another machine"}}
    async with each_world.open(**store) as one, each_world.open(**store, **elsewhere) as two:
        await one.persistent.set("k", 1)
        made = await asyncio.gather(*(state.call("state.backup.create") for state in (one, two)))
        names = {each["backup_id"] for each in made}
        brought = await asyncio.gather(
            *(import_backup(state.gateway, each_world.files("backups")[0]) for state in (one, two))
        )
        names |= {each["backup_id"] for each in brought}
        listed = (await one.call("state.backup.list"))["backups"]
        assert len(names) == 4
        assert {each["backup_id"] for each in listed} == names


async def test_backups_in_a_folder_that_is_a_link_are_refused_and_say_so(full: World) -> None:
    (full.folder / "elsewhere").mkdir()
    (full.folder / "files" / "default").mkdir(parents=True)
    (full.folder / "files" / "default" / "backups").symlink_to(full.folder / "elsewhere")
    async with full.open("ann", face="operator") as state:
        with pytest.raises(IoError, match="is a link"):
            await state.call("state.backup.create")


async def test_a_file_from_elsewhere_replaces_nobodys_approvals(full: World) -> None:
    async with full.open("ann", face="operator") as state:
        with pytest.raises(ApprovalPending):
            async with full.open("ann") as asking:
                await asking.call("state.backup.create")
        store, backups = state.gateway.store, Backups(state.gateway.store, state.gateway.settings)
        about = BackupAbout(backup_id="b", created_at="", scope="full", store_id="elsewhere", revision=1)
        manifest = encode(Manifest(scopes=(APPROVALS,), revision=1)) + b"\n"
        trailer = encode(Trailer(rows=0, sha256=hashlib.sha256().hexdigest())) + b"\n"
        async with create_backup(full.folder / "forged", vault=backups.vault, about=about) as forged:
            await forged.write(manifest + trailer)
        imported = await import_backup(state.gateway, full.folder / "forged")
        with pytest.raises(InvalidInput, match="never restored"):
            await state.call("state.backup.restore", backup_id=imported["backup_id"])
        assert (await store.usage(APPROVALS)).keys == 1


async def test_a_backup_whose_file_was_damaged_is_not_exported(full: World) -> None:
    async with full.open("ann", face="operator") as state:
        made = await state.call("state.backup.create")
        [file] = full.files("backups")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IoError, match="not what was written"):
            await state.call("state.backup.export", backup_id=made["backup_id"], path=str(full.folder / "out"))
        assert list((full.folder / "out").iterdir()) == []


async def test_an_export_stays_in_its_roots_and_overwrites_nothing(full: World) -> None:
    out = full.folder / "out"
    async with full.open("ann", face="operator") as state:
        made = await state.call("state.backup.create")
        name = {"backup_id": made["backup_id"]}
        (full.folder / "link").symlink_to(out)
        (out / "escape").symlink_to(full.folder)
        (out / "taken").write_text("mine")
        for path in (
            full.folder / "outside",
            out / ".." / "outside",
            out / "escape" / "file",
            out / "taken",
            out / "missing" / "file",
            out / "no\0text",
        ):
            with pytest.raises(IoError):
                await state.call("state.backup.export", **name, path=str(path))
        assert (out / "taken").read_text() == "mine"
        assert not (full.folder / "outside").exists()
        done = await state.call("state.backup.export", **name, path=str(out / "copy"))
        [source] = full.files("backups")
        assert Path(done["exported_path"]).read_bytes() == source.read_bytes()
        full.vault.lock()
        await state.call("state.backup.export", **name, path=str(out / "while-locked"))


async def test_old_backups_go_and_the_newest_and_fresh_ones_stay(full: World) -> None:
    full.limits = Limits(backups=2)
    async with full.open("ann", face="operator") as state:
        made = [(await state.call("state.backup.create"))["backup_id"] for _ in range(4)]
        assert len(set(made)) == 4
        listed = (await state.call("state.backup.list"))["backups"]
        assert [each["backup_id"] for each in listed] == made[:1:-1]
        await state.call("state.backup.restore", backup_id=made[-1])
        await state.call("state.backup.create")
        reasons = [each["reason"] for each in (await state.call("state.backup.list"))["backups"]]
        assert "before a restore" in reasons
        assert len(full.files("backups")) == len(reasons)


async def test_a_clock_that_was_set_back_takes_away_neither_backup_nor_snapshot_that_was_just_made(full: World) -> None:
    full.limits = Limits(backups=2, snapshots=2)
    clock = ManualClock(int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp() * 1000))
    async with full.open("ann", face="operator", clock=clock) as state:
        for _ in range(2):
            await state.call("state.backup.create")
            await state.call("state.snapshot.create")
            clock.advance(60_000)
        clock.advance(-3_600_000)
        for _ in range(2):
            backup = (await state.call("state.backup.create"))["backup_id"]
            snapshot = (await state.call("state.snapshot.create"))["snapshot_id"]
            backups = (await state.call("state.backup.list"))["backups"]
            snapshots = (await state.call("state.snapshot.list"))["snapshots"]
            assert (backups[-1]["backup_id"], len(backups)) == (backup, 3)
            assert (snapshots[-1]["snapshot_id"], len(snapshots)) == (snapshot, 2)


async def test_one_of_each_day_week_and_month_stays_and_none_that_somebody_is_asked_about(full: World) -> None:
    full.limits = Limits(backups=2, daily_backups=3, weekly_backups=2, monthly_backups=2)
    clock = ManualClock(int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp() * 1000))
    async with full.open("ann", face="operator", clock=clock) as state, full.open("ann", face="mcp") as asking:
        made: dict[str, str] = {}
        for day in range(40):
            made[f"{day}"] = (await state.call("state.backup.create"))["backup_id"]
            if day == 4:
                with pytest.raises(ApprovalPending):
                    await asking.call("state.backup.restore", backup_id=made["4"])
            clock.advance(24 * 60 * 60 * 1000)
        listed = {each["backup_id"] for each in (await state.call("state.backup.list"))["backups"]}
    # From Monday, 2 March, on: 39 is 10 April, 34 the Sunday before, 29 the last of March.
    assert {day for day, backup_id in made.items() if backup_id in listed} == {"39", "38", "37", "34", "29", "4"}
    assert {path.stem for path in full.files("backups")} == listed


def test_the_newest_stays_whatever_the_limits_and_a_period_of_another_year_is_another() -> None:
    none = Limits(backups=0, daily_backups=0, weekly_backups=0, monthly_backups=0)
    days = ("2025-01-05", "2025-03-31", "2026-01-05", "2026-01-06", "2026-02-06", "2026-02-07")
    made = {day: int(datetime.fromisoformat(f"{day}T12:00:00Z").timestamp() * 1000) for day in days}

    def stay(limits: Limits) -> list[str]:
        found = kept(made.values(), limits)
        return [day for day, at in made.items() if at in found]

    assert kept([], none) == set()
    assert stay(none) == stay(replace(none, backups=-3)) == ["2026-02-07"]
    assert stay(replace(none, backups=2)) == ["2026-02-06", "2026-02-07"]
    assert stay(replace(none, daily_backups=4)) == ["2026-01-05", "2026-01-06", "2026-02-06", "2026-02-07"]
    assert stay(replace(none, weekly_backups=9)) == ["2025-01-05", "2025-03-31", "2026-01-06", "2026-02-07"]
    assert stay(replace(none, monthly_backups=9)) == ["2025-01-05", "2025-03-31", "2026-01-06", "2026-02-07"]
    assert stay(replace(none, monthly_backups=2)) == ["2026-01-06", "2026-02-07"]
    edge = [
        int(datetime.fromisoformat(f"{at}Z").timestamp() * 1000) for at in ("2026-01-31T23:59:59", "2026-02-01T00:00")
    ]
    for period in ("daily_backups", "monthly_backups"):
        assert kept(edge, replace(none, **{period: 2})) == set(edge)


async def test_an_agents_own_backups_do_not_push_out_those_of_everything(full: World) -> None:
    full.limits = Limits(backups=1)
    async with full.open("ann", face="operator") as state:
        whole = (await state.call("state.backup.create"))["backup_id"]
        for _ in range(3):
            own = (await state.call("state.backup.create", agent="ann"))["backup_id"]
        assert [each["backup_id"] for each in (await state.call("state.backup.list"))["backups"]] == [own, whole]


async def test_backups_that_are_tried_one_after_the_other_are_not_pushed_out_by_it(full: World) -> None:
    full.limits = Limits(backups=3, daily_backups=0, weekly_backups=0, monthly_backups=0)
    clock = ManualClock(int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp() * 1000))
    async with full.open("ann", face="operator", clock=clock) as state:

        async def ids(reason: str) -> list[str]:
            listed = (await state.call("state.backup.list"))["backups"]
            return [each["backup_id"] for each in listed if each["reason"] == reason]

        made: list[str] = []
        for _ in range(3):
            made.append((await state.call("state.backup.create"))["backup_id"])
            clock.advance(60_000)
        for backup_id in (*made, *made):
            await state.call("state.backup.restore", backup_id=backup_id)
            clock.advance(60_000)
        last = (await state.call("state.backup.create"))["backup_id"]
        assert await ids("asked for") == [last, *made[:0:-1]]
        before = await ids("before a restore")
        assert len(before) == 6
        # A week later those from before restores are too many as well.
        clock.advance(8 * 24 * 60 * 60 * 1000)
        await state.call("state.backup.create")
        assert await ids("before a restore") == before[:3]


def makes_known(request: EntryTransaction | RestoreEntries) -> bool:
    return any(change.scope in (BACKUPS, SNAPSHOTS) for change in request.changes)


async def test_a_file_stays_when_the_answer_to_what_made_it_known_is_lost(
    full: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all the one from before a restore, which holds what was overwritten."""

    def losing(made: Any) -> Any:
        async def write(request: Any) -> Any:
            done = await made(request)
            if makes_known(request):
                raise StoreUnavailableError("the store", "its answer was lost")
            return done

        return write

    async with full.open("ann", face="operator") as state:
        backup_id = (await state.call("state.backup.create"))["backup_id"]
        store = state.gateway.store
        with monkeypatch.context() as lost:
            lost.setattr(store, "restore", losing(store.restore))
            with pytest.raises(DatabaseError):
                await state.call("state.backup.restore", backup_id=backup_id)
            lost.setattr(store, "transact", losing(store.transact))
            for kind in ("backup", "snapshot"):
                with pytest.raises(DatabaseError):
                    await state.call(f"state.{kind}.create")
        backups = (await state.call("state.backup.list"))["backups"]
        assert sorted(each["reason"] for each in backups) == ["asked for", "asked for", "before a restore"]
        assert not any("missing" in each for each in backups)
        (snapshot,) = (await state.call("state.snapshot.list"))["snapshots"]
        assert "missing" not in snapshot


async def test_files_that_are_gone_with_their_folder_are_named_as_missing(full: World) -> None:
    async with full.open("ann", face="operator") as state:
        for kind in ("backup", "snapshot"):
            await state.call(f"state.{kind}.create")
        shutil.rmtree(full.folder / "files")
        for kind in ("backup", "snapshot"):
            [listed] = (await state.call(f"state.{kind}.list"))[f"{kind}s"]
            assert listed["missing"]


async def test_a_file_goes_when_its_row_is_refused(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with full.open("ann", face="operator") as state:
        transact = state.gateway.store.transact

        async def refuse(request: EntryTransaction) -> Transacted:
            if makes_known(request):
                raise InvalidInput("This idempotency key was used for another request.", {})
            return await transact(request)

        monkeypatch.setattr(state.gateway.store, "transact", refuse)
        for kind in ("backup", "snapshot"):
            with pytest.raises(InvalidInput):
                await state.call(f"state.{kind}.create")
        assert [*full.files("backups"), *full.files("snapshots")] == []
        monkeypatch.undo()


async def test_a_backup_of_an_earlier_release_still_opens(world: World) -> None:
    """Written once and kept: `state-v1.helixbackup` with the vault and the values it was made from."""
    for name in ("vault.json", "state-v1.helixbackup"):
        shutil.copy(GOLDEN / name, world.folder / f"golden-{name}")
    world.vault = Vault(world.folder / "golden-vault.json", cost=CHEAP)
    await world.vault.unlock(PASSPHRASE)
    async with world.open("ann", face="operator") as state:
        brought = await import_backup(state.gateway, world.folder / "golden-state-v1.helixbackup")
        await state.call("state.backup.restore", backup_id=brought["backup_id"])
        assert await contents(state) == json.loads((GOLDEN / "state-v1.json").read_text())
        assert (await state.persistent.get("k0", version=1)).value == "ann-0"


# -- processes that die


@pytest.fixture
def processes(world: World) -> Iterator[Processes]:
    with processes_for(world.url, state_jobs.MODULE) as processes:
        yield processes


async def old_or_new(full: World, processes: Processes, points: range) -> None:
    """Kill a restore at statements, one process each, until one comes to its end."""
    async with full.open("ann", face="operator") as state:
        made = await state.call("state.backup.create")
        restored = await contents(state)
        await state.persistent.set("k0", "newer")
        await state.persistent.delete("k1")
        newer = await contents(state)
    given = {"folder": str(full.folder), "backup_id": made["backup_id"]}
    outcomes: set[str] = set()
    for after in points:
        [outcome] = await processes.run(f"{state_jobs.MODULE}:restore", [{**given, "die_after": after}])
        assert outcome.error is None
        async with full.open("ann", face="operator") as state:
            found = await contents(state)
            assert found in (newer, restored), f"torn at statement {after}"
            outcomes.add("new" if found == restored else "old")
            if found == restored:
                await state.persistent.set("k0", "newer")
                await state.persistent.delete("k1")
        if outcome.value == "restored":
            assert outcomes == {"old", "new"}
            break
    else:
        pytest.fail("the restore never ended")
    assert await staged_rows(full)
    async with full.open("ann", clock=ManualClock(state.gateway.store.now_ms() + LONGEST_RESTORE_MS)) as state:
        assert (await sweep_state(state.gateway))["restores_given_up"]
        assert (await sweep_state(state.gateway))["restores_given_up"] == 0
    assert await staged_rows(full) == 0


async def staged_rows(world: World) -> int:
    """What restores have laid aside."""

    def count() -> int:
        with contextlib.closing(apsw.Connection(str(world.folder / "helix.db"))) as connection:
            return next(connection.execute("SELECT count(*) FROM __agents_entry_staging"))[0]

    return await asyncio.to_thread(count)


async def restore_old_over_new(state: StateClient, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Restore a backup, while something happens after its rows were brought."""
    await state.persistent.set("k", "old")
    made = await state.call("state.backup.create")
    await state.persistent.set("k", "new")
    store = state.gateway.store
    stage = store.stage_restore

    async def is_met(restore_id: str, rows: Sequence[Entry]) -> None:
        await stage(restore_id, rows)
        await meanwhile()

    store.stage_restore = is_met
    await state.call("state.backup.restore", backup_id=made["backup_id"])


async def test_a_restore_that_was_given_up_meanwhile_is_refused(each_world: World) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with each_world.open("ann", face="operator", clock=clock) as state:

        async def sleeps_for_a_day() -> None:
            clock.advance(LONGEST_RESTORE_MS)
            await sweep_state(state.gateway)

        with pytest.raises(VersionConflict):
            await restore_old_over_new(state, sleeps_for_a_day)
        assert (await state.persistent.get("k")).value == "new"
        assert (await state.gateway.store.usage(RESTORES)).keys == 0


async def test_a_sweep_leaves_a_restore_alone_that_is_on_its_way(each_world: World) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with each_world.open("ann", face="operator", clock=clock) as state:

        async def meets_a_sweep() -> None:
            clock.advance(LONGEST_RESTORE_MS // 2 - 1)
            assert (await sweep_state(state.gateway))["restores_given_up"] == 0

        await restore_old_over_new(state, meets_a_sweep)
        assert (await state.persistent.get("k")).value == "old"


async def test_a_restore_that_is_killed_leaves_old_or_new(full: World, processes: Processes) -> None:
    await old_or_new(full, processes, range(5, 1_000, 13))


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_a_restore_killed_at_every_statement_leaves_old_or_new(full: World, processes: Processes) -> None:
    await old_or_new(full, processes, range(1, 1_000))


async def test_an_approved_call_killed_at_any_statement_runs_once(full: World, processes: Processes) -> None:
    made: list[str] = []
    for after in range(1, 300, 13):
        async with full.open("ann") as state:
            with pytest.raises(ApprovalPending) as asked:
                await state.call("state.backup.create", agent="ann")
            approval = asked.value.context["approval_id"]
        given = {"folder": str(full.folder), "approval_id": approval, "die_after": after}
        [outcome] = await processes.run(f"{state_jobs.MODULE}:approve", [given])
        async with full.open("ann", face="operator") as state:
            store = state.gateway.store
            # The lease of the process that died is over.
            later = store.now_ms() + 60 * 60 * 1000
            store.now_ms = lambda later=later: later
            await resume_approvals(state.gateway)
            again = await run_approved(state.gateway, approval)
            if again.status == "pending":
                # It died before the decision was made; deciding again is the first decision.
                again = await decide_approval(state.gateway, approval, approved=True, by="ada")
            assert again.status == "executed", again
            assert (await run_approved(state.gateway, approval)).result == again.result
            made.append(again.result["backup_id"])
            known = await Backups(store, state.gateway.settings).list_known()
            assert [each.backup_id for each in known].count(made[-1]) == 1
        if outcome.value == "executed":
            break
    assert len(made) == len(set(made))


async def test_who_was_held_up_while_another_ran_the_approved_call_does_not_run_it_again(
    each_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "LEASE_MS", 0)
    async with each_world.open("ann") as state, each_world.open("ann") as other:
        await state.persistent.set("k", "old")
        backup_id = (await approved(state, "state.backup.create")).result["backup_id"]
        store = state.gateway.store
        restore = store.restore

        async def held_up(request: RestoreEntries) -> Transacted:
            assert await resume_approvals(other.gateway) == 1
            await other.persistent.set("k", "newer")
            return await restore(request)

        monkeypatch.setattr(store, "restore", held_up)
        row = await approved(state, "state.backup.restore", backup_id=backup_id)
        assert row.status == "executed"
        assert (await state.persistent.get("k")).value == "newer"
        listed = (await state.call("state.backup.list"))["backups"]
        assert [each["reason"] for each in listed].count("before a restore") == 1
        assert len(each_world.files("backups")) == len(listed)


async def test_an_approved_call_that_another_process_runs_is_left_to_it(
    each_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with each_world.open("ann") as state, each_world.open("ann") as other:
        await state.persistent.set("k", "old")
        backup_id = (await approved(state, "state.backup.create")).result["backup_id"]
        store = state.gateway.store
        restore = store.restore

        async def looked_at(request: RestoreEntries) -> Transacted:
            [entry] = [each async for each in every_entry(store, APPROVALS)]
            assert (await run_approved(other.gateway, entry.key)).status == "executing"
            assert await resume_approvals(other.gateway) == 0
            return await restore(request)

        monkeypatch.setattr(store, "restore", looked_at)
        assert (await approved(state, "state.backup.restore", backup_id=backup_id)).status == "executed"
        listed = (await state.call("state.backup.list"))["backups"]
        assert [each["reason"] for each in listed].count("before a restore") == 1


async def test_of_two_who_decide_one_counts_and_a_late_decision_does_nothing(full: World) -> None:
    async with full.open("ann") as state, full.open("ann") as other:
        with pytest.raises(ApprovalPending) as asked:
            await state.call("state.backup.create")
        approval = asked.value.context["approval_id"]
        outcomes = await asyncio.gather(
            decide_approval(state.gateway, approval, approved=True, by="ada"),
            decide_approval(other.gateway, approval, approved=False, by="bea", reason="no"),
            return_exceptions=True,
        )
        assert sum(not isinstance(each, BaseException) for each in outcomes) == 1
        with pytest.raises(CapabilityError):
            await decide_approval(state.gateway, approval, approved=True, by="late")
    full.limits = Limits(approval_hold_ms=0)
    async with full.open("ann") as state:
        with pytest.raises(ApprovalPending) as asked:
            await state.call("state.backup.create", agent="ann")
        with pytest.raises(CapabilityError, match="in time"):
            await decide_approval(state.gateway, asked.value.context["approval_id"], approved=True, by="ada")
    row = await _approved_backup(full)
    assert row.status == "executed"


async def _approved_backup(world: World) -> Any:
    world.limits = Limits()
    async with world.open("ann") as state:
        return await approved(state, "state.backup.create", agent="ann")

"""A vault opens with its passphrase and with nothing else, and its key shows itself to nobody."""

import asyncio
import logging
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.capabilities.vault import Argon2Cost, Vault
from helix_agents.capabilities.vault.vault_file import find_vault_file, write_vault_file
from helix_agents.domain.errors import (
    DefinitionError,
    PathRefusedError,
    VaultAlreadyExistsError,
    VaultDamagedError,
    VaultFileError,
    VaultLockedError,
    VaultNotInitialisedError,
    WeakPassphraseError,
    WrongPassphraseError,
)
from tests.capabilities.samples import CHEAP, PASSPHRASE


async def forge(vault: Vault, **changes: Any) -> None:
    """Change what stands in the vault's file, with a checksum that fits."""

    def write() -> None:
        found = find_vault_file(vault.path)
        assert found is not None
        write_vault_file(vault.path, replace(found.description, **changes), found.wrapped_key, replacing=True)

    await asyncio.to_thread(write)


async def test_a_new_vault_is_unlocked_and_can_be_locked_and_unlocked_again(vault: Vault) -> None:
    assert vault.unlocked
    facts = await vault.require_unlocked()
    before = (await vault.keys()).from_master("a purpose")
    vault.lock()
    vault.lock()
    assert not vault.unlocked
    with pytest.raises(VaultLockedError, match="has to unlock it with the passphrase"):
        await vault.require_unlocked()
    assert await vault.unlock(PASSPHRASE) == facts == await vault.find()
    assert (await vault.keys()).from_master("a purpose") == before
    assert (await vault.keys()).from_master("another purpose") != before


async def test_a_vault_that_was_not_made_is_told_apart_from_a_locked_one(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault", cost=CHEAP)
    assert await vault.find() is None
    for ask in (vault.require_unlocked, vault.keys, vault.signer, lambda: vault.unlock(PASSPHRASE)):
        with pytest.raises(VaultNotInitialisedError):
            await ask()


async def test_a_wrong_passphrase_changes_nothing(vault: Vault) -> None:
    content = vault.path.read_bytes()
    vault.lock()
    with pytest.raises(WrongPassphraseError, match="try again"):
        await vault.unlock(PASSPHRASE + "!")
    with pytest.raises(WrongPassphraseError):
        await vault.change_passphrase("not this one", "a new passphrase")
    assert not vault.unlocked
    assert vault.path.read_bytes() == content


async def test_accents_may_be_typed_either_way(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault", cost=CHEAP)
    await vault.init("cr\u00e8me br\u00fbl\u00e9e")
    await vault.unlock("cre\u0300me bru\u0302le\u0301e")


@pytest.mark.parametrize("weak", ["", "short", "seven c", "       x       ", "aaaaaaaaaaaa"])
async def test_a_weak_passphrase_is_refused_before_anything_is_written(weak: str, tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault", cost=CHEAP)
    with pytest.raises(WeakPassphraseError):
        await vault.init(weak)
    assert list(tmp_path.iterdir()) == []


async def test_eight_characters_are_enough(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault", cost=CHEAP)
    await vault.init("eight ch")
    await vault.unlock("eight ch")


async def test_of_many_who_make_the_vault_one_succeeds(tmp_path: Path) -> None:
    vaults = [Vault(tmp_path / "vault", cost=CHEAP) for _ in range(8)]
    made = await asyncio.gather(*(v.init(f"{PASSPHRASE} {n}") for n, v in enumerate(vaults)), return_exceptions=True)
    winners = [number for number, answer in enumerate(made) if not isinstance(answer, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(answer, VaultAlreadyExistsError) for answer in made if isinstance(answer, BaseException))
    await Vault(tmp_path / "vault").unlock(f"{PASSPHRASE} {winners[0]}")
    assert [path.name for path in tmp_path.iterdir()] == ["vault"]


async def test_changing_the_passphrase_keeps_the_master_key_and_its_identity(vault: Vault) -> None:
    facts = await vault.find()
    key = (await vault.keys()).from_master("a purpose")
    by_old_passphrase = (await vault.keys()).from_passphrase("a purpose")
    vault.lock()
    assert await vault.change_passphrase(PASSPHRASE, "a new passphrase") == facts
    assert (await vault.keys()).from_master("a purpose") == key
    assert (await vault.keys()).from_passphrase("a purpose") != by_old_passphrase
    with pytest.raises(WrongPassphraseError):
        await vault.unlock(PASSPHRASE)
    await Vault(vault.path).unlock("a new passphrase")


async def test_a_vault_whose_passphrase_was_changed_elsewhere_locks_itself(vault: Vault) -> None:
    await Vault(vault.path, cost=CHEAP).change_passphrase(PASSPHRASE, "a new passphrase")
    with pytest.raises(VaultLockedError, match="changed by another process"):
        await vault.keys()
    assert not vault.unlocked


async def test_the_cost_is_kept_with_the_vault_and_paid_by_whoever_opens_it(tmp_path: Path) -> None:
    dearer = Argon2Cost(memory_kib=64, passes=2, lanes=2)
    await Vault(tmp_path / "vault", cost=dearer).init(PASSPHRASE)
    opened = Vault(tmp_path / "vault")
    await opened.unlock(PASSPHRASE)
    assert (await opened.keys()).cost == dearer


def test_the_default_cost_is_64_mib_in_3_passes_and_4_lanes() -> None:
    assert Argon2Cost() == Argon2Cost(memory_kib=65536, passes=3, lanes=4)


@pytest.mark.parametrize(
    "cost",
    [
        Argon2Cost(memory_kib=2**21),
        Argon2Cost(memory_kib=8, lanes=4),
        Argon2Cost(passes=0),
        Argon2Cost(passes=11),
        Argon2Cost(lanes=17, memory_kib=2**16),
    ],
)
async def test_a_cost_nobody_should_pay_is_refused_when_asked_for_and_when_read(cost: Argon2Cost, vault: Vault) -> None:
    with pytest.raises(DefinitionError, match="Argon2id"):
        Vault(vault.path, cost=cost)
    await forge(vault, cost=cost)
    with pytest.raises(VaultDamagedError, match="Argon2id"):
        await vault.unlock(PASSPHRASE)


async def test_the_file_is_for_its_owner_only(vault: Vault) -> None:
    assert stat.S_IMODE(vault.path.stat().st_mode) == 0o600
    await vault.change_passphrase(PASSPHRASE, "a new passphrase")
    assert stat.S_IMODE(vault.path.stat().st_mode) == 0o600
    assert [path.name for path in vault.path.parent.iterdir()] == ["vault"]


async def test_damage_anywhere_in_the_file_is_told_apart_from_a_wrong_passphrase(vault: Vault) -> None:
    whole = vault.path.read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        vault.path.write_bytes(damaged)
        with pytest.raises(VaultDamagedError, match="Restore a copy of it"):
            await vault.unlock(PASSPHRASE)
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        vault.path.write_bytes(whole[:size])
        with pytest.raises(VaultDamagedError):
            await vault.unlock(PASSPHRASE)


async def test_facts_that_were_forged_with_a_fitting_checksum_do_not_open(vault: Vault) -> None:
    await forge(vault, public_key="ab" * 32)
    with pytest.raises(WrongPassphraseError):
        await vault.unlock(PASSPHRASE)


@pytest.mark.parametrize("change", [{"salt": b"short"}, {"public_key": "ab"}, {"format": "another"}])
async def test_facts_that_make_no_sense_are_damage(change: dict[str, Any], vault: Vault) -> None:
    await forge(vault, **change)
    with pytest.raises(VaultDamagedError):
        await vault.unlock(PASSPHRASE)


async def test_a_vault_of_a_later_format_asks_for_an_upgrade(vault: Vault) -> None:
    await forge(vault, version=2)
    with pytest.raises(VaultDamagedError, match="too old"):
        await vault.find()


async def test_a_link_is_read_but_not_replaced(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(vault.path)
    linked = Vault(tmp_path / "link", cost=CHEAP)
    await linked.unlock(PASSPHRASE)
    with pytest.raises(PathRefusedError):
        await linked.change_passphrase(PASSPHRASE, "a new passphrase")
    await linked.unlock(PASSPHRASE)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(VaultFileError, match="No such file"):
        await Vault(tmp_path / "nowhere" / "vault", cost=CHEAP).init(PASSPHRASE)


async def test_no_key_and_no_passphrase_is_ever_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    vault = Vault(tmp_path / "vault", cost=CHEAP)
    await vault.init(PASSPHRASE)
    keys, signer = await vault.keys(), await vault.signer()
    secrets = [PASSPHRASE, keys.master_key().hex(), repr(keys.master_key()), keys.from_passphrase("x").hex()]
    errors = []
    for wrong in ("wrong passphrase", PASSPHRASE + " and more"):
        with pytest.raises(WrongPassphraseError) as caught:
            await vault.unlock(wrong)
        errors.append(f"{caught.value!r} {caught.value}")
        secrets.append(wrong)
    streams = capfd.readouterr()
    said = [repr(vault), repr(keys), repr(signer), str(vars(vault)), caplog.text, streams.out, streams.err, *errors]
    assert [secret for secret in secrets if any(secret in text for text in said)] == []
    assert repr(keys._master) == "Secret(…)"
    for holder in (vault, keys, keys._master, signer):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(holder)


async def test_locking_overwrites_the_key_and_stops_who_holds_it(vault: Vault) -> None:
    keys = await vault.keys()
    vault.lock()
    for ask in (lambda: keys.from_master("x"), lambda: keys.from_passphrase("x"), keys.master_key):
        with pytest.raises(VaultLockedError, match="locked meanwhile"):
            ask()
    assert keys._master.reveal() == keys._stretched.reveal() == bytes(32)


def test_a_forked_child_finds_the_vault_locked(tmp_path: Path) -> None:
    # In an interpreter of its own, which has no threads yet when it forks.
    program = f"""
import asyncio, os
from helix_agents.capabilities.vault import Argon2Cost, Vault
vault = Vault({str(tmp_path / "vault")!r}, cost=Argon2Cost(memory_kib=8, passes=1, lanes=1))
vault._init({PASSPHRASE!r})
assert vault.unlocked
child = os.fork()
if not child:
    os._exit(7 if not vault.unlocked else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert vault.unlocked
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)

"""An operator unlocks the vault for every process: a keeper has the keys until it is told to lock, or time is up."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents.capabilities.client import open_state
from helix_agents.capabilities.vault import Vault, keeper
from helix_agents.capabilities.vault.keeping import Kept, ask_keeper
from helix_agents.capabilities.vault.vault_file import find_vault_file
from helix_agents.cli.app import run as helix
from helix_agents.domain.capability_errors import VaultLocked
from helix_agents.domain.errors import DefinitionError, VaultLockedError, WrongPassphraseError
from helix_agents.testing.contracts.executor.stage import until
from tests.capabilities import worlds
from tests.capabilities.samples import CHEAP, PASSPHRASE
from tests.capabilities.worlds import World

HOUR = 3600.0


@pytest.fixture
async def vault(tmp_path: Path) -> AsyncIterator[Vault]:
    """Initialised, and locked in this process."""
    made = Vault(tmp_path / "vault", cost=CHEAP)
    await made.init(PASSPHRASE)
    made.lock()
    yield made
    await made.withdraw()


async def is_locked(vault: Vault) -> bool:
    return await vault.entrusted_seconds() is None


def door(vault: Vault) -> Path:
    return vault.path.with_name(f"{vault.path.name}.keeper")


@pytest.mark.parametrize("hours", ["nan", "inf", "1e9", "1e300"])
async def test_a_time_that_never_comes_unlocks_nothing(vault: Vault, hours: str) -> None:
    with pytest.raises(DefinitionError, match="hours is not a time to unlock it for; say up to ten years"):
        await vault.entrust(PASSPHRASE, float(hours) * HOUR)
    assert await is_locked(vault)


async def test_an_entrusted_vault_is_unlocked_everywhere_until_it_is_withdrawn(vault: Vault) -> None:
    elsewhere = Vault(vault.path, cost=CHEAP)
    with pytest.raises(VaultLockedError):
        await elsewhere.require_unlocked()
    assert await vault.entrusted_seconds() is None
    await vault.entrust(PASSPHRASE, HOUR)
    await elsewhere.require_unlocked()
    assert not elsewhere.unlocked
    left = await elsewhere.entrusted_seconds()
    assert left is not None
    assert HOUR - 60 < left <= HOUR
    code = (
        "import asyncio, sys; from helix_agents.capabilities.vault import Vault;"
        "print(asyncio.run(Vault(sys.argv[1]).keys()).from_master('a purpose').hex())"
    )
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, str(vault.path)], capture_output=True, text=True, check=True
    )
    await elsewhere.unlock(PASSPHRASE)
    assert said.stdout.strip() == (await elsewhere.keys()).from_master("a purpose").hex()
    elsewhere.lock()
    assert await elsewhere.withdraw()
    assert not await elsewhere.withdraw()
    with pytest.raises(VaultLockedError):
        await elsewhere.require_unlocked()
    assert not await asyncio.to_thread(door(vault).exists)


async def test_a_wrong_passphrase_starts_nothing_and_ends_nothing(vault: Vault) -> None:
    with pytest.raises(WrongPassphraseError):
        await vault.entrust("not the passphrase", HOUR)
    assert await vault.entrusted_seconds() is None
    await vault.entrust(PASSPHRASE, HOUR)
    with pytest.raises(WrongPassphraseError):
        await vault.entrust("not the passphrase", HOUR)
    await vault.require_unlocked()


async def test_the_vault_locks_itself_when_its_time_is_over(vault: Vault) -> None:
    await vault.entrust(PASSPHRASE, 0.5)
    await until(lambda: is_locked(vault))
    with pytest.raises(VaultLockedError):
        await vault.keys()


async def test_hours_in_which_the_machine_slept_are_over_too(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hasattr(time, "CLOCK_BOOTTIME") or keeper.CLOCK == time.CLOCK_BOOTTIME
    file = await asyncio.to_thread(find_vault_file, vault.path)
    assert file is not None
    kept = Kept(wrapped_key=file.wrapped_key, master=b"m", stretched=b"s")
    # It sleeps while its keeper waits for somebody to ask.
    times = iter([0.0, 2 * HOUR])
    monkeypatch.setattr(keeper, "_now", lambda: next(times))
    monkeypatch.chdir(vault.path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(door(vault).name)
        listening.listen()
        keeping = asyncio.to_thread(keeper._keep, vault.path, kept, listening, until=HOUR)
        answer, _ = await asyncio.gather(asyncio.to_thread(ask_keeper, vault.path, "keys"), keeping)
    assert answer is None
    assert not await asyncio.to_thread(door(vault).exists)


async def test_a_new_passphrase_and_a_killed_keeper_lock_it(vault: Vault) -> None:
    await vault.entrust(PASSPHRASE, HOUR)
    await Vault(vault.path, cost=CHEAP).change_passphrase(PASSPHRASE, "another long passphrase")
    with pytest.raises(VaultLockedError):
        await vault.keys()
    await vault.entrust("another long passphrase", HOUR)
    await vault.keys()
    os.kill(await asyncio.to_thread(keeper_of, vault), signal.SIGKILL)
    await until(lambda: is_locked(vault))
    with pytest.raises(VaultLockedError):
        await vault.keys()
    # What the dead one left in the folder is in nobody's way.
    await vault.entrust("another long passphrase", HOUR)
    await vault.keys()


@contextlib.contextmanager
def at_the_door(vault: Vault) -> Iterator[socket.socket]:
    folder = os.open(vault.path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(f"/proc/self/fd/{folder}/{door(vault).name}")
            yield asking
    finally:
        os.close(folder)


def keeper_of(vault: Vault) -> int:
    """The process that keeps a vault."""
    with at_the_door(vault) as asking:
        return int.from_bytes(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)


async def test_unlocking_again_leaves_one_keeper(vault: Vault) -> None:
    await asyncio.gather(*(Vault(vault.path, cost=CHEAP).entrust(PASSPHRASE, HOUR) for _ in range(3)))
    await vault.keys()
    assert await vault.withdraw()
    await until(lambda: is_locked(vault))


async def test_only_the_user_may_ask_and_nothing_secret_is_on_the_disk_or_the_command_line(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", PASSPHRASE)
    await vault.entrust(PASSPHRASE, HOUR)
    await asyncio.to_thread(nothing_secret_is_seen, vault)


def nothing_secret_is_seen(vault: Vault) -> None:
    assert stat.S_IMODE(door(vault).stat().st_mode) == 0o600
    answer, status = ask_keeper(vault.path, "keys"), ask_keeper(vault.path, "status")
    assert answer is not None
    assert answer.kept is not None
    assert status is not None
    assert status.kept is None
    process = Path("/proc") / str(keeper_of(vault))
    shown = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    for secret in (answer.kept.master, answer.kept.stretched, PASSPHRASE.encode()):
        assert secret not in shown
        assert secret.hex().encode() not in shown
        assert all(secret not in path.read_bytes() for path in vault.path.parent.iterdir() if path.is_file())


def test_another_user_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(wrapped_key=b"w", master=b"m", stretched=b"s")
    for stranger in (False, True):
        here, there = socket.socketpair(socket.AF_UNIX)
        with here, there, monkeypatch.context() as patched:
            if stranger:
                patched.setattr(keeper.os, "getuid", lambda: -1)
            there.sendall(b"keys\n")
            assert keeper._answer(here, kept, HOUR) == (b"" if stranger else b"keys")
            here.shutdown(socket.SHUT_WR)
            assert bool(there.recv(1)) is not stranger


async def test_a_keeper_runs_nothing_that_lies_about_where_it_was_started(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("secrets", "struct", "resource"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'was-run')!r}, 'w')")
    monkeypatch.chdir(folder)
    await vault.entrust(PASSPHRASE, HOUR)
    await vault.keys()
    assert not (folder / "was-run").exists()


async def test_a_client_that_says_nothing_or_nonsense_does_not_stop_the_keeper(vault: Vault) -> None:
    await vault.entrust(PASSPHRASE, HOUR)
    for words in (b"", b"nonsense\n", b"x" * 10_000):
        await asyncio.to_thread(be_rude, vault, words)
    await vault.keys()


def be_rude(vault: Vault, words: bytes) -> None:
    with at_the_door(vault) as rude, contextlib.suppress(OSError):
        rude.sendall(words)


async def test_a_vault_deep_in_the_file_system_has_a_keeper_too(tmp_path: Path) -> None:
    """The address of a socket holds some hundred letters only."""
    folder = tmp_path / ("a" * 90) / ("b" * 90)
    folder.mkdir(parents=True)
    vault = Vault(folder / "vault", cost=CHEAP)
    await vault.init(PASSPHRASE)
    vault.lock()
    await vault.entrust(PASSPHRASE, HOUR)
    await vault.keys()
    assert await vault.withdraw()


async def test_the_operators_commands_lock_and_unlock_for_running_processes(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.vault.lock()
    options = ["--store", world.url, "--vault", str(world.vault.path), "--json"]

    async def typed(*words: str, code: int = 0) -> Any:
        assert await asyncio.to_thread(helix, ["vault", *words, *options]) == code
        return json.loads(capsys.readouterr().out)

    async with open_state(world.url, agent="ann", face="operator", settings=world.settings()) as state:
        with pytest.raises(VaultLocked):
            await state.call("state.backup.create")
        monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", "not the passphrase")
        await typed("unlock", code=1)
        monkeypatch.setenv("HELIX_VAULT_PASSPHRASE", worlds.PASSPHRASE)
        assert not (await typed("status"))["unlocked"]
        unlocked = await typed("unlock", "--hours", "1")
        assert unlocked["unlocked"]
        assert unlocked["unlocked_until"] > unlocked["checked_at"]
        made = await state.call("state.backup.create")
        assert (await state.call("state.backup.restore", backup_id=made["backup_id"]))["restored"]
        assert (await typed("status"))["unlocked"]
        assert (await typed("lock"))["locked"]
        assert not (await typed("lock"))["locked"]
        with pytest.raises(VaultLocked):
            await state.call("state.backup.create")
        lines = [json.loads(row.entry) for row in await state.gateway.store.list_audit()]
    told = [(line["capability"], line["status"]) for line in lines if line["capability"].startswith("vault.")]
    assert told == [("vault.unlock", "failed"), ("vault.unlock", "done"), ("vault.lock", "done")]
    assert worlds.PASSPHRASE not in json.dumps(lines)


@pytest.mark.parametrize("answer", [b"nonsense\n", b'{"seconds_left": 3, "of_a_later_version": 1}\n', b"\n", b""])
async def test_a_keeper_that_cannot_be_understood_keeps_nothing(
    vault: Vault, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(vault.path.parent)
    keeper = socket.socket(socket.AF_UNIX)
    keeper.bind(door(vault).name)
    keeper.listen()

    def say() -> None:
        for _ in range(2):
            other, _ = keeper.accept()
            other.recv(100)
            other.sendall(answer)
            other.close()

    threading.Thread(target=say, daemon=True).start()
    assert await vault.entrusted_seconds() is None
    with pytest.raises(VaultLockedError):
        await vault.keys()
    keeper.close()

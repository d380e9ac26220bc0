"""`helix doctor` and `helix migrate` tell people and scripts what they found, and create nothing by looking."""

import contextlib
import json
import os
import shutil
import tomllib
from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.cli.app import run
from helix_agents.cli.commands import doctor
from helix_agents.cli.commands.doctor import EXTRAS, Finding
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.domain.errors import StoreFullError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HELIX_STORE", "HELIX_VAULT", "HELIX_VAULT_PASSPHRASE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_doctor_looks_at_a_fresh_installation_without_leaving_a_trace(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == ExitCode.OK
    found = capsys.readouterr().out
    (stores,) = [line for line in found.splitlines() if line.startswith("ok    stores: ")]
    assert {"memory://", "postgresql://", "sqlite://"} <= set(stores.removeprefix("ok    stores: ").split(", "))
    assert "sqlite:///helix.db does not exist yet" in found
    assert list(empty_folder.iterdir()) == []


def test_doctor_says_when_the_default_store_cannot_be_made_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run(["doctor"]) == ExitCode.SERVICE
    *_, told = capsys.readouterr().out.splitlines()
    assert told.startswith("FAIL  store: sqlite:///helix.db does not exist yet")
    assert "may not create it in this folder" in told


@pytest.mark.parametrize("exists", [False, True])
def test_doctor_says_when_there_is_hardly_room_on_the_disk(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    """Whoever writes into a log that was made longer before gets on with a full disk, for a while."""
    there = ["--store", f"sqlite:///{empty_folder}/mine.db"] if exists else []
    if exists:
        assert run(["migrate", *there]) == ExitCode.OK
    whole = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: whole._replace(free=3_000_000))
    assert run(["doctor", *there]) == ExitCode.SERVICE
    assert "FAIL  disk: 3 MB free beside the store" in capsys.readouterr().out


def test_doctor_tries_to_write_and_leaves_nothing_of_it(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--store", f"sqlite:///{empty_folder}/mine.db"]
    assert run(["migrate", *there]) == ExitCode.OK
    assert run(["doctor", *there]) == ExitCode.OK
    assert "ok    store writes: accepted" in capsys.readouterr().out
    with contextlib.closing(apsw.Connection(f"{empty_folder}/mine.db")) as connection:
        assert connection.execute("SELECT * FROM __agents_leases").fetchall() == []

    async def full(store: SQLiteStateStore, owner: str, ttl_ms: int) -> None:
        raise StoreFullError("mine.db")

    monkeypatch.setattr(SQLiteStateStore, "renew_lease", full)
    assert run(["doctor", *there]) == ExitCode.SERVICE
    assert "FAIL  store: mine.db has no space left" in capsys.readouterr().out


def test_doctor_knows_every_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda module: False)


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize(
    ("scheme", "extra"), [("postgresql", "postgres"), ("postgres", "postgres"), ("valkey", "redis")]
)
def test_doctor_fails_an_extra_that_the_store_needs_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheme: str, extra: str
) -> None:
    async def no_store(url: str) -> list[Finding]:
        return []

    monkeypatch.setattr(doctor, "look_at_store", no_store)
    monkeypatch.setenv("HELIX_STORE", f"{scheme}://localhost/helix")
    assert run(["doctor"]) == ExitCode.SETUP
    told = [line for line in capsys.readouterr().out.splitlines() if " extra " in line]
    needed = f"not installed, but a store at {scheme}:// needs it: pip install 'helix-agents[{extra}]'"
    assert f"FAIL  extra {extra}: {needed}" in told
    assert [line for line in told if line.startswith("FAIL")] == [f"FAIL  extra {extra}: {needed}"]


@pytest.mark.usefixtures("without_extras")
def test_doctor_calls_no_extra_fine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == ExitCode.OK
    told = [line for line in capsys.readouterr().out.splitlines() if " extra " in line]
    assert len(told) == len(EXTRAS)
    assert all(line.startswith("--    extra ") and "pip install" in line for line in told)


@pytest.mark.usefixtures("without_extras")
def test_doctor_fails_the_vaults_extra_where_the_environment_names_a_vault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIX_VAULT", "vault.json")
    assert run(["doctor"]) == ExitCode.SETUP
    assert "FAIL  extra vault: not installed, but the vault that HELIX_VAULT is set for" in capsys.readouterr().out


def test_doctor_says_what_is_wrong_with_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--store", "teapot://here", "--json"]) == ExitCode.SETUP
    [*_, store] = json.loads(capsys.readouterr().out)["findings"]
    assert store["subject"] == "store"
    assert "teapot" in store["detail"]


def test_migrate_refuses_a_store_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--store", "teapot://here"]) == ExitCode.SETUP
    assert "teapot" in capsys.readouterr().err

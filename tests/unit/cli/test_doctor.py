"""`helix doctor` and `helix migrate` tell people and scripts what they found, and create nothing by looking."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from helix_agents.cli.app import run
from helix_agents.cli.commands.doctor import EXTRAS
from helix_agents.cli.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HELIX_STORE", raising=False)
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
    assert "may not make it in this folder" in told


def test_doctor_knows_every_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


def test_doctor_says_what_is_wrong_with_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--store", "teapot://here", "--json"]) == ExitCode.SETUP
    [*_, store] = json.loads(capsys.readouterr().out)["findings"]
    assert store["subject"] == "store"
    assert "teapot" in store["detail"]


def test_migrate_refuses_a_store_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--store", "teapot://here"]) == ExitCode.SETUP
    assert "teapot" in capsys.readouterr().err

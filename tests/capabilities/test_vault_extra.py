"""The vault's dependencies are optional, looked for late, and named when they are missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from helix_agents.capabilities.vault import Vault, check_checkpoints, extra, verify_backup
from helix_agents.capabilities.vault.speed import measure_backup
from helix_agents.cli.app import run as helix
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.domain.errors import MissingExtraError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "_installed", lambda: False)


@pytest.mark.usefixtures("nothing_installed")
async def test_a_missing_extra_is_named_before_anything_happens(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'helix-agents\[vault\]'"):
        Vault(tmp_path / "vault")
    with pytest.raises(MissingExtraError):
        await verify_backup(tmp_path / "b", passphrase="x")
    with pytest.raises(MissingExtraError):
        check_checkpoints([], "store_1", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_vault_loads_no_cryptography() -> None:
    program = (
        "import sys, helix_agents.capabilities.vault; "
        "sys.exit(str({'argon2', 'cryptography', 'tink', 'google.protobuf'} & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "\n")


def test_what_needs_no_key_needs_no_extra(tmp_path: Path) -> None:
    # Listing and copying backups, and the audit chain itself, work where only the core is installed.
    program = """
import sys
for name in ("argon2", "cryptography", "tink"):
    sys.modules[name] = None
import asyncio
from helix_agents.capabilities.vault import copy_backup, load_checkpoints, read_about
from helix_agents.domain.audit import entry_text, genesis, next_row
from helix_agents.domain.audit_verification import verify_rows
source, root = sys.argv[1:]
assert asyncio.run(read_about(source)).scope == "full"
asyncio.run(copy_backup(source, root, roots=[root]))
assert asyncio.run(load_checkpoints(root + "/none")) == ()
assert verify_rows([next_row(0, genesis("s"), entry_text({}))], "s").intact
"""
    golden = Path(__file__).parents[1] / "fixtures" / "backups" / "v1.backup"
    subprocess.run([sys.executable, "-c", program, str(golden), str(tmp_path)], check=True)
    assert (tmp_path / "v1.backup").read_bytes() == golden.read_bytes()


@pytest.mark.usefixtures("nothing_installed")
def test_commands_need_the_extra_only_for_what_the_vault_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIX_STORE", f"sqlite:///{tmp_path}/helix.db")
    monkeypatch.delenv("HELIX_VAULT_PASSPHRASE", raising=False)
    assert helix(["state", "persistent", "set", "--key", "k", "--value", "1"]) == ExitCode.OK
    for words in (["state", "persistent", "get", "--key", "k"], ["state", "health"], ["audit", "verify"]):
        assert helix(words) == ExitCode.OK, capsys.readouterr().err
    assert helix(["backup", "create"]) == ExitCode.FAILED
    for words in (["vault", "init"], ["vault", "status"], ["audit", "checkpoint", "--vault", f"{tmp_path}/vault.json"]):
        capsys.readouterr()
        assert helix(words) == ExitCode.SETUP
        assert "pip install 'helix-agents[vault]'" in capsys.readouterr().err


async def test_the_speed_of_backups_can_be_measured(tmp_path: Path) -> None:
    speed = await measure_backup(tmp_path, mib=2)
    assert min(speed.create, speed.open, speed.raw_aes_gcm) > 0
    assert list(tmp_path.iterdir()) == []

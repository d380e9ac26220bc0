"""A backup and a vault of every format ever released open for ever; these files are never written again."""

import asyncio
import json
from pathlib import Path

import pytest

from helix_agents.capabilities.vault import BackupAbout, Vault, read_about, verify_backup
from helix_agents.domain.errors import BackupDamagedError
from tests.capabilities.samples import content_of
from tests.capabilities.second_implementation import decrypt

FOLDER = Path(__file__).parents[1] / "fixtures" / "backups"


@pytest.mark.parametrize("version", ["v1"])
async def test_the_files_of_each_format_open(version: str, tmp_path: Path) -> None:
    expected = json.loads((FOLDER / f"{version}.json").read_text())
    path = FOLDER / f"{version}.backup"
    content = "".join(f"{number}\n" for number in range(expected["lines"])).encode()

    vault = Vault(FOLDER / f"{version}.vault")
    facts = await vault.unlock(expected["passphrase"])
    assert (facts.vault_id, facts.public_key) == (expected["vault_id"], expected["public_key"])
    assert (await vault.signer()).public_key == expected["public_key"]
    assert await content_of(path, vault=vault) == content
    assert await content_of(path, passphrase=expected["passphrase"]) == content
    assert await asyncio.to_thread(decrypt, path.read_bytes(), expected["passphrase"]) == content
    assert await read_about(path) == BackupAbout(**expected["about"])
    assert (await verify_backup(path, vault=vault)).sha256 == expected["sha256"]

    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupDamagedError):
        await content_of(cut, vault=vault)

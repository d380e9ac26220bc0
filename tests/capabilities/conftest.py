"""An unlocked vault that costs nothing to open, and something to back up."""

from pathlib import Path

import pytest

from helix_agents.capabilities.vault import Vault
from tests.capabilities.samples import CHEAP, PASSPHRASE


@pytest.fixture
async def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "vault", cost=CHEAP)
    await made.init(PASSPHRASE)
    return made

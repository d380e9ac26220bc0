"""Worlds for the tests of capabilities, and an unlocked vault that costs nothing to open."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helix_agents.capabilities.vault import Vault
from tests.capabilities.samples import CHEAP, PASSPHRASE
from tests.capabilities.worlds import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World.make(tmp_path)
    yield made
    # Whoever typed `helix vault unlock` left somebody who keeps the keys.
    await made.vault.withdraw()


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def each_kind(request: pytest.FixtureRequest) -> str:
    """A kind of store, or the URL of one that has to be started first."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else request.param


@pytest.fixture
async def each_world(each_kind: str, tmp_path: Path) -> World:
    return await World.make(tmp_path, each_kind)


@pytest.fixture
async def vault(tmp_path: Path) -> Vault:
    """Initialised and unlocked."""
    made = Vault(tmp_path / "vault", cost=CHEAP)
    await made.init(PASSPHRASE)
    return made

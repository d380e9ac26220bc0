"""Worlds for the tests of capabilities, and an unlocked vault that costs nothing to open."""

from pathlib import Path

import pytest

from helix_agents.capabilities.vault import Vault
from helix_agents.testing.postgres_service import postgres_schemas, postgres_service, postgres_url
from tests.capabilities.samples import CHEAP, PASSPHRASE
from tests.capabilities.worlds import World

__all__ = ["postgres_schemas", "postgres_service", "postgres_url"]


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await World.make(tmp_path)


@pytest.fixture(params=["sqlite", "memory", "postgres"])
async def each_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind = request.getfixturevalue("postgres_url") if request.param == "postgres" else request.param
    return await World.make(tmp_path, kind)


@pytest.fixture
async def vault(tmp_path: Path) -> Vault:
    """Initialised and unlocked."""
    made = Vault(tmp_path / "vault", cost=CHEAP)
    await made.init(PASSPHRASE)
    return made

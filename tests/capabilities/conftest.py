"""Worlds for the tests of capabilities."""

from pathlib import Path

import pytest

from tests.capabilities.worlds import World


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await World.make(tmp_path)


@pytest.fixture(params=["sqlite", "memory"])
async def each_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return await World.make(tmp_path, request.param)

"""A shelf for each test, over each transport where that matters."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.mcp_tools.catalogue import Catalogue
from tests.mcp_tools.shelves import Shelf


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """What a shelf offers, taken once."""
    server = Shelf(tmp_path_factory.mktemp("shelf"), Catalogue(tools=())).server()
    return asyncio.run(server.take_catalogue())


def opened(folder: Path, catalogue: Catalogue, transport: str) -> Iterator[Shelf]:
    shelf = Shelf(folder, catalogue, transport)
    shelf.start()
    try:
        yield shelf
    finally:
        shelf.end()


@pytest.fixture(params=["stdio", "http"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path, catalogue: Catalogue) -> Iterator[Shelf]:
    """A server over either transport."""
    yield from opened(tmp_path / "shelf", catalogue, request.param)


@pytest.fixture
def program(tmp_path: Path, catalogue: Catalogue) -> Iterator[Shelf]:
    """A server that its client starts."""
    yield from opened(tmp_path / "shelf", catalogue, "stdio")


@pytest.fixture
def service(tmp_path: Path, catalogue: Catalogue) -> Iterator[Shelf]:
    """A server at an address."""
    yield from opened(tmp_path / "shelf", catalogue, "http")

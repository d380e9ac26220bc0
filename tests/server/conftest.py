"""One live server for the tests of this folder that need nothing special of it."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.server.agents import gate
from tests.server.chain import service, worker
from tests.server.live import BEN, LiveServer, agent_server
from tests.server.page import Page


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    with LiveServer(agent_server()) as live:
        yield live


@pytest.fixture(scope="module")
def remote() -> Iterator[LiveServer]:
    """The service of a worker, which others delegate to."""
    with LiveServer(service(worker())) as live:
        yield live


@pytest.fixture(autouse=True)
def an_open_gate() -> Iterator[None]:
    gate.open()
    yield
    gate.open()


@pytest.fixture
def ann(server: LiveServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def ben(server: LiveServer) -> Iterator[httpx2.Client]:
    with server.client(BEN) as client:
        yield client


@pytest.fixture
def session_id(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return f"s {request.node.name}"[:200]


@pytest.fixture
def page(ann: httpx2.Client, session_id: str) -> Page:
    return Page(ann, session_id)

"""A provider on this machine, and models that talk to it."""

import warnings
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.models import open_model
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import WIRES, Wire


@pytest.fixture(scope="session")
def listening_server() -> Iterator[ProviderServer]:
    # Compiling this library warns of its own source, which is nobody's fault here.
    with warnings.catch_warnings(action="ignore"):
        import google.genai  # noqa: F401
    with ProviderServer() as server:
        yield server


@pytest.fixture
def server(listening_server: ProviderServer) -> ProviderServer:
    listening_server.forget()
    return listening_server


@pytest.fixture(params=sorted(WIRES))
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which AWS's library finds a region and credentials, and looks for none elsewhere."""
    for name, value in (("REGION", "us-east-1"), ("ACCESS_KEY_ID", "an-id"), ("SECRET_ACCESS_KEY", "a-secret")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
async def connect(server: ProviderServer, aws: None) -> AsyncIterator[Callable[[Wire], PydanticAIModel]]:
    """Opens the model of a wire; all are closed after the test."""
    opened: list[PydanticAIModel] = []

    def connect(wire: Wire) -> PydanticAIModel:
        model = open_model(wire.model, base_url=server.url + wire.base_path, api_key=wire.key)
        assert isinstance(model, PydanticAIModel)
        opened.append(model)
        return model

    yield connect
    for model in opened:
        await model.close()


@pytest.fixture
def model(wire: Wire, connect: Callable[[Wire], PydanticAIModel]) -> PydanticAIModel:
    return connect(wire)

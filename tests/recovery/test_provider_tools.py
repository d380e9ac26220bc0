"""What a provider did itself outlives the process that asked for it, and goes back to the provider exactly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.domain.chunks import ProviderToolEnd, SourceChunk
from helix_agents.domain.messages import AssistantMessage
from helix_agents.domain.rendering import surviving
from helix_agents.ports.backend import open_backend
from helix_agents.testing.workers import Processes
from tests.recovery import provider_tool_jobs
from tests.recovery.provider_tool_jobs import SESSION
from tests.support import provider_tool_wire as wire
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import ANTHROPIC, Wired


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[provider_tool_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


async def test_a_search_of_a_process_that_was_killed_is_kept_and_sent_back(
    tmp_path: Path, processes: Processes, server: ProviderServer
) -> None:
    server.will(wire.anthropic_search_and_call())
    given = {"url": f"sqlite:///{tmp_path / 'helix.db'}", "provider": server.url}
    [killed] = await processes.run(f"{provider_tool_jobs.MODULE}:begin", [given])
    assert killed.was_killed, killed.error
    server.will(ANTHROPIC.stream(Wired(text="Published.")), ANTHROPIC.stream(Wired(text="Later.")))
    [went_on] = await processes.run(f"{provider_tool_jobs.MODULE}:take_up", [given])
    assert (went_on.error, went_on.value) == (None, "Later.")

    # The reply was paid for once; every later request has it as the provider wrote it.
    assert len(server.requests) == 3
    call = {"type": "tool_use", "id": "call_a", "name": "publish", "input": {}}
    for later in server.requests[1:]:
        assert later.body["messages"][1]["content"] == [*wire.ANTHROPIC_BLOCKS, call]

    async with await open_backend(given["url"]) as parts:
        replies = [row.message for row in await parts.state.load_transcript(SESSION)]
        made = [each.provider_calls for each in replies if isinstance(each, AssistantMessage)]
        assert [len(each) for each in made] == [1, 0, 0]
        chunks = surviving(await parts.streams.get_all_chunks(SESSION))
        assert [each.tool_call_id for each in chunks if isinstance(each, ProviderToolEnd)] == ["srvtoolu_1"]
        assert [each.url for each in chunks if isinstance(each, SourceChunk)] == ["https://sea.example/tides"]

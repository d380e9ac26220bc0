"""Processes that die, and services that are far apart: what they export is one picture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents import Executor
from helix_agents.domain.traces import TRACE
from helix_agents.testing.workers import Processes
from helix_agents.tracing import OpenTelemetryHooks
from tests.server.agents import gate
from tests.server.chain import boss, transport, worker
from tests.server.live import LiveServer, agent_server
from tests.tracing import jobs
from tests.tracing.pictures import Pictures, read_spans, tree


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


@pytest.fixture(params=["in_process", "dbos", "temporal"])
def runtime(request: pytest.FixtureRequest) -> str:
    """The scattered runtime is for tests in one process."""
    return request.param


@pytest.fixture
def address(runtime: str, request: pytest.FixtureRequest) -> str:
    """Where the engine is, if it is somewhere."""
    return request.getfixturevalue("temporal_address") if runtime == "temporal" else ""


async def test_a_run_that_another_process_goes_on_with_is_one_span(
    processes: Processes, tmp_path: Path, runtime: str, address: str
) -> None:
    said: list[object] = []
    for life in range(2):
        given = {"folder": str(tmp_path), "life": life, "runtime": runtime, "address": address}
        (outcome,) = await processes.run(f"{jobs.MODULE}:converse", [given])
        assert outcome.was_killed if life == 0 else outcome.error is None, outcome
        said.append(outcome.value)
    assert said == [None, "Led."]
    spans = read_spans(tmp_path / "spans.jsonl")
    # The worker's first reply was lost with its process where it rested in memory, and was asked for again.
    asked_again = ["      chat scripted"] if runtime == "in_process" else []
    assert tree(spans) == [
        "invoke_agent lead",
        "  chat scripted",
        "  chat scripted",
        "  execute_tool subagent__worker",
        "    invoke_agent worker",
        *asked_again,
        "      chat scripted",
        "      chat scripted",
        "      execute_tool work",
    ]
    # Temporal goes on with the same attempt, of which it has the single effect done again.
    last = 1 if runtime == "temporal" else 2
    attempts = {span.name: span.attributes["helix.run.attempt"] for span in spans if span.name != "chat scripted"}
    assert attempts == {
        "invoke_agent lead": last,
        "execute_tool subagent__worker": last,
        "invoke_agent worker": last,
        "execute_tool work": last,
    }
    chats = sorted(span.attributes["helix.run.attempt"] for span in spans if span.name == "chat scripted")
    assert chats == [1, 1, *([last] * len(asked_again)), last, last]


@pytest.fixture
def remote(pictures: Pictures) -> Iterator[LiveServer]:
    """The service of a worker, which exports spans of its own."""
    gate.open()
    there = {"hooks": OpenTelemetryHooks(tracer_provider=pictures.provider()), "agents": [worker()]}
    with LiveServer(agent_server(executor=there)) as live:
        yield live


async def delegate(remote: LiveServer, pictures: Pictures, *, pass_trace: bool) -> None:
    agent = boss(transport(remote.url, pass_trace=pass_trace), token=None)
    here = OpenTelemetryHooks(tracer_provider=pictures.provider())
    async with Executor.open("memory://", agents=[agent], hooks=here, janitor_seconds=None) as helix:
        await (await helix.execute(agent, "remote search", "s-1")).result()


async def test_an_agent_behind_another_service_has_a_trace_of_its_own_unless_it_is_told_this_one(
    remote: LiveServer, pictures: Pictures
) -> None:
    await delegate(remote, pictures, pass_trace=False)
    here, there = pictures.one("invoke_agent boss"), pictures.one("invoke_agent worker")
    assert here.trace_id != there.trace_id
    assert there.parent is None


async def test_an_agent_behind_another_service_is_part_of_the_trace_here(
    remote: LiveServer, pictures: Pictures
) -> None:
    await delegate(remote, pictures, pass_trace=True)
    assert tree(pictures.spans) == [
        "invoke_agent boss",
        "  chat scripted",
        "  chat scripted",
        "  execute_tool subagent__worker",
        "    invoke_agent worker",
        "      chat scripted",
        "      chat scripted",
        "      execute_tool search",
    ]


@pytest.mark.parametrize("told", ["nonsense", "0" * 32 + "-" + "1" * 16, "1" * 32 + "-" + "0" * 16, "A" * 32])
async def test_what_is_no_place_in_a_trace_is_not_taken_for_one(pictures: Pictures, told: str) -> None:
    agent = worker()
    hooks = OpenTelemetryHooks(tracer_provider=pictures.provider())
    async with Executor.open("memory://", agents=[agent], hooks=hooks) as helix:
        await (await helix.execute(agent, "hello", "s-1", metadata={TRACE: told})).result()
    assert tree(pictures.spans)[0] == "invoke_agent worker"

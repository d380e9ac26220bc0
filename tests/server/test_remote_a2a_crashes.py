"""An agent of other people loses connections and processes, and so does its parent; no work is begun twice, and no word
and no answer is lost."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helix_agents import AnyAgent, Completed, Executor, ToolAnswer
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import RemoteUnavailableError
from helix_agents.domain.messages import UserMessage
from helix_agents.engine.remote.stops import REMOTE
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.backend import open_backend
from helix_agents.ports.remote_agents import RemoteSession, RemoteStart
from helix_agents.server.remote_a2a.transport import A2ARemoteAgentTransport
from helix_agents.testing.recording import StopAt
from helix_agents.testing.service_process import free_port
from tests.recovery.deaths import die_at, settings_on
from tests.server.chain import a2a_boss
from tests.server.delegating import child_of, delegated, eventually, finish, only
from tests.server.foreign import CHAPTERS, STORY, Foreign
from tests.server.live import PATIENCE, Instance, LiveServer, wait_until
from tests.server.test_executor_routes import start
from tests.server.test_remote_a2a import told
from tests.server.test_remote_crashes import Cutter, come_to, shown

WHOLE = "".join(f"{chapter}: {STORY}" for chapter in range(CHAPTERS))


@pytest.fixture
def app() -> Foreign:
    return Foreign()


@pytest.fixture
def cutter(app: Foreign) -> Iterator[Cutter]:
    """The only way to the agent, from which its answers are cut."""
    live = LiveServer(app)
    cutter = Cutter(live.port)
    app.serve_at(cutter.url)
    with live:
        yield cutter
    cutter.close()


# The card has about 500 bytes, and the connection to the stream is the third or the fourth.
@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([0, 20, 300], id="the card"),
        pytest.param([5_000, 50], id="the answer to the message"),
        pytest.param([5_000, 5_000, 400, 400, 400, 1_000, 1_000, 2_000, 2_000], id="early"),
        pytest.param([5_000, 5_000, 3_001, 3_333], id="within events"),
    ],
)
async def test_a_connection_that_is_cut_anywhere_loses_no_word_and_begins_nothing_twice(
    app: Foreign, cutter: Cutter, cuts: list[int]
) -> None:
    cutter.cuts = cuts
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        assert isinstance(await finish(helix, a2a_boss(cutter.url), "remote story"), Completed)
        assert (await delegated(helix)).content == WHOLE
        assert await told(helix) == WHOLE
        assert cutter.connections > len(cuts)
    assert app.journal == ["story"]


class Forgetful(A2ARemoteAgentTransport):
    """A way on which the answer to the first message is lost."""

    async def start(
        self, session: RemoteSession, message: UserMessage, *, depth: int, again: bool = False
    ) -> RemoteStart:
        begun = await super().start(session, message, depth=depth, again=again)
        if not again:
            raise RemoteUnavailableError(self.url, "the answer was lost")
        return begun


async def test_a_task_whose_start_was_not_confirmed_is_found_again(app: Foreign, cutter: Cutter) -> None:
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        assert isinstance(await finish(helix, a2a_boss(Forgetful(cutter.url)), "remote hello"), Completed)
        assert (await delegated(helix)).content == "You said: hello."
    assert app.journal == ["hello"]


async def test_a_task_that_was_begun_by_a_process_that_died_is_found_again(app: Foreign, cutter: Cutter) -> None:
    """The process dies before it has noted where the task is."""
    agent = a2a_boss(Forgetful(cutter.url), lost_after=60)
    async with await open_backend("memory://left-a2a") as parts:
        died = StopAt(kind="run_batch", effect=1, side="after")
        await die_at(died, parts, agent, "s", "remote hello")
        async with Executor(**settings_on(parts, agent)) as second:
            assert isinstance(await (await second.execute(agent, "never mind", "s")).result(), Completed)
    assert app.journal == ["hello"]


async def test_a_stop_that_the_server_did_not_hear_is_paid_when_it_is_back(app: Foreign, cutter: Cutter) -> None:
    options = EngineOptions(cancel_grace_seconds=0.2)
    async with Executor.open("memory://", janitor_seconds=60, options=options) as helix:
        run = await helix.execute(a2a_boss(cutter.url), "remote hold", "s")
        async for chunk in run.stream():
            if isinstance(chunk, TextDelta) and chunk.remote_sequence is not None:
                break
        cutter.cut_all = True
        cutter.cut_now()
        await helix.interrupt("s")
        await run.result()
        child = await child_of(helix)
        assert app.journal == ["hold"]
        cutter.cut_all = False

        async def is_paid() -> bool:
            return REMOTE not in (await helix.sessions.get(child)).metadata

        await eventually(is_paid)
    assert app.journal == ["hold", "cancelled"]


# ---------------------------------------------------------------------------------------------------------
# Processes that die
# ---------------------------------------------------------------------------------------------------------


class Process:
    """The agent in a process of its own; the same folder again is another process with the same tasks."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.server.foreign", str(port), str(folder)]
        environment = {**os.environ, "HELIX_TEST_GATE": str(folder.parent / "shut")}
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            return httpx2.get(f"{self.url}/.well-known/agent-card.json").is_success
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


Begin = Callable[[str], Process]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins the agent with the tasks of a folder, always at the same address."""
    begun: list[Process] = []
    port = free_port()

    def one_more(folder: str) -> Process:
        begun.append(Process(tmp_path / folder, port))
        return begun[-1]

    yield one_more
    for process in begun:
        process.kill()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[str], Instance]]:
    """Begins the parent; once more, it is another process on the same store and port."""
    begun: list[Instance] = []
    port = free_port()

    def one_more(url: str) -> Instance:
        instance = Instance(
            f"sqlite:///{tmp_path / 'parent'}.db",
            agents="tests.server.chain:agents",
            environment={"HELIX_TEST_CARD": url, "HELIX_TEST_AGENT": "boss"},
            arguments=("--port", str(port), "--lease", "1", "--janitor", "0.2"),
        )
        begun.append(instance)
        return instance

    yield one_more
    for instance in begun:
        instance.__exit__()


def journal(tmp_path: Path, folder: str = "tasks") -> list[str]:
    return (tmp_path / folder / "journal").read_text().splitlines()


def words(client: httpx2.Client) -> str:
    return "".join(each["delta"] for each in shown(client, "s") if "remoteSequence" in each and "delta" in each)


def hear(client: httpx2.Client) -> None:
    """Wait for the first words of the child."""
    with client.stream("GET", "/sse", params={"sessionId": "s", "fromSequence": 0}) as response:
        assert any("remoteSequence" in line and '"delta"' in line for line in response.iter_lines())


def test_a_parent_that_is_killed_while_its_task_is_at_work_goes_on_where_it_was(
    begin: Begin, parent: Callable[[str], Instance], tmp_path: Path
) -> None:
    (tmp_path / "shut").touch()
    agent = begin("tasks")
    first = parent(agent.url)
    with first.client() as client:
        assert start(client, "s", "remote story", agentType="boss").is_success
        hear(client)
    first.kill()
    (tmp_path / "shut").unlink()
    with parent(agent.url).client() as client:
        done = come_to(client, "s", "completed", "failed")
        assert (done["output"], done["attempt"] > 1) == (f"I was told: {WHOLE}.", True)
        assert words(client) == WHOLE
    assert journal(tmp_path) == ["story"]


def test_an_agent_that_is_killed_while_it_waits_takes_its_answer_when_it_is_back(
    begin: Begin, parent: Callable[[str], Instance], tmp_path: Path
) -> None:
    agent = begin("tasks")
    first = parent(agent.url)
    with first.client() as client:
        assert start(client, "s", "remote ask port", agentType="boss").is_success
        (waiting,) = come_to(client, "s", "suspended_awaiting_children")["pending"]
        assert waiting["input"] == {"question": "Which port?"}
        agent.kill()
        answer = {
            "sessionId": "s",
            "kind": "client-tool-result",
            "result": "Brest",
            "toolCallId": waiting["toolCallId"],
        }
        assert client.post("/submit-tool-result", json=answer).json()["outcome"] == "accepted"
        client.post("/resume", json={"sessionId": "s"})
    first.kill()
    begin("tasks")
    with parent(agent.url).client() as client:
        done = come_to(client, "s", "completed", "failed")
        assert "So it is ['Brest']." in done["output"]
    assert journal(tmp_path) == ["ask port", "answer: Brest"]


async def test_an_agent_that_forgot_its_tasks_has_lost_them(begin: Begin) -> None:
    agent = await asyncio.to_thread(begin, "tasks")
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        boss: AnyAgent = a2a_boss(agent.url)
        waiting = only(await finish(helix, boss, "remote ask port"))
        await asyncio.to_thread(agent.kill)
        await asyncio.to_thread(begin, "others")
        await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
        result: Any = await (await helix.resume(boss, "s")).result()
        assert isinstance(result, Completed)
        message = await delegated(helix)
        assert (message.code, "not_found" in str(message.content)) == ("framework_subagent_lost", True)

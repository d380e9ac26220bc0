"""A child came to its end, and its parent died before it could say so: whoever goes on is told what it came to."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import SubagentEnd
from helix_agents.domain.commits import RunStartCommitted, SettleSession, StartRun
from helix_agents.domain.errors import ExecutorClosedError, ModelRefusedError, StoreUnavailableError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.results import Failed, Interrupted, Suspended
from helix_agents.domain.sessions import InterruptFlag, StatusOutcome
from helix_agents.engine.requests.cleanup import expired_session_cleanup
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor, drivers
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from helix_agents.testing.scattered import ScatteredExecutor
from helix_agents.testing.workers import Processes
from tests.recovery import forgotten_child_jobs
from tests.recovery.conversation_jobs import LaterClock
from tests.recovery.deaths import die_at, settings_on

SESSION = "s-1"
DELEGATES = call("subagent__helper", {"message": "Help"}, id="help")


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def writer(helper: Agent[Any, Any, Any], *replies: Any) -> AnyAgent:
    return Agent(name="writer", model=ScriptedModel([DELEGATES, *replies]), tools=[helper.as_tool()])


def helper_that(*replies: Any, **settings: Any) -> Agent[Any, Any, Any]:
    return Agent(name="helper", description="Helps.", model=ScriptedModel(list(replies)), **settings)


async def results_of(parts: Backend, session_id: str = SESSION) -> dict[str, ToolMessage]:
    messages = [each.message for each in await parts.state.load_transcript(session_id)]
    return {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}


async def ends(parts: Backend, stream_id: str = SESSION) -> list[tuple[str, Any]]:
    chunks = await parts.streams.get_all_chunks(stream_id)
    return [(each.status, each.result) for each in chunks if isinstance(each, SubagentEnd)]


# The child has committed its last step; whether its parent's call has heard of that makes no difference.
CHILD_DONE = [StopAt(kind="commit", effect=1, side="after"), StopAt(kind="run_batch", effect=1, side="after")]


@pytest.mark.parametrize("at", CHILD_DONE)
async def test_a_new_message_after_a_crash_finds_what_the_child_had_come_to(at: StopAt):
    agent = writer(helper_that("Helped."), "Well then.")
    async with await open_backend(f"memory://left-{at.kind}") as parts, asyncio.timeout(20):
        await die_at(at, parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            assert await (await second.execute(agent, "Never mind.", SESSION)).output() == "Well then."
        result = (await results_of(parts))["help"]
        assert (result.content, result.error) == ("Helped.", False)
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert (ref.status, ref.result) == ("completed", "Helped.")
        assert await ends(parts) == [("completed", "Helped.")]


async def test_a_new_message_after_a_crash_finds_how_the_child_had_failed():
    agent = writer(helper_that(ModelRefusedError("scripted", "not today")), "Well then.")
    async with await open_backend("memory://left-failed") as parts, asyncio.timeout(20):
        await die_at(StopAt(kind="commit", effect=1, side="after"), parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            assert await (await second.execute(agent, "Never mind.", SESSION)).output() == "Well then."
        result = (await results_of(parts))["help"]
        assert (result.code, "not today" in str(result.content)) == ("sub_agent_failed", True)
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert ref.status == "failed"


async def test_a_child_that_waited_when_its_parent_died_is_cut_short_by_a_new_message():
    helper = helper_that(call("locate", {"city": "Rome"}), tools=[locate])
    agent = writer(helper, "Well then.")
    async with await open_backend("memory://left-waiting") as parts, asyncio.timeout(20):
        await die_at(StopAt(kind="commit", effect=1, side="after"), parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            assert await (await second.execute(agent, "Never mind.", SESSION)).output() == "Well then."
            assert (await second.list_pending()).items == ()
        assert (await results_of(parts))["help"].code == "run_stopped"
        assert await ends(parts) == [("interrupted", None)]


@pytest.mark.parametrize("at", CHILD_DONE)
@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_after_a_crash_keeps_what_the_child_had_come_to(kind: str, at: StopAt):
    agent = writer(helper_that("Helped."))
    async with await open_backend(f"memory://left-{kind}-{at.kind}") as parts, asyncio.timeout(20):
        await die_at(at, parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            await (second.interrupt if kind == "interrupt" else second.abort)(SESSION, "enough")
            await second.recover()
            await second.idle()
        result = (await results_of(parts))["help"]
        assert (result.content, result.error) == ("Helped.", False)
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert (ref.status, ref.result) == ("completed", "Helped.")
        assert await ends(parts) == [("completed", "Helped.")]


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_after_a_crash_keeps_what_a_companion_had_come_to(kind: str):
    steady = Agent(name="steady", description="Keeps.", model=ScriptedModel(["Kept."]))
    spawn = call("companion__spawnAgent", {"agent": "steady", "initialMessage": "Keep."}, id="spawn")
    agent = Agent(name="boss", model=ScriptedModel([spawn]), persistent_agents=[PersistentAgent(steady)])
    async with await open_backend(f"memory://left-companion-{kind}") as parts, asyncio.timeout(20):
        # Announced first, then the companion's own last step.
        await die_at(StopAt(kind="commit", effect=2, side="after"), parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent)) as second:
            await (second.interrupt if kind == "interrupt" else second.abort)(SESSION, "enough")
            await second.recover()
            await second.idle()
        result = (await results_of(parts))["spawn"]
        assert (result.content, result.error) == ("Kept.", False)
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert (ref.status, ref.result) == ("completed", "Kept.")


async def test_a_run_that_nobody_can_drive_any_more_keeps_what_its_child_had_come_to():
    @asynccontextmanager
    async def no_deps(*_: object) -> AsyncGenerator[None]:
        raise RuntimeError("no pool")
        yield

    agent = writer(helper_that("Helped."), "Well then.")
    async with await open_backend("memory://left-no-deps") as parts, asyncio.timeout(20):
        run = await die_at(StopAt(kind="commit", effect=1, side="after"), parts, agent, SESSION)
        async with Executor(**settings_on(parts, agent), deps=no_deps) as second:
            await second.recover()
            again = await second.get_handle(agent, SESSION)
            assert again is not None
            assert again.run_id == run.run_id
            assert isinstance(await again.result(), Failed)
        async with Executor(**settings_on(parts, agent)) as third:
            assert await (await third.retry(agent, SESSION)).output() == "Well then."
        assert (await results_of(parts))["help"].content == "Helped."
        assert await ends(parts) == [("completed", "Helped.")]


async def test_a_companion_that_is_spoken_to_after_its_process_died_knows_what_its_own_child_had_come_to():
    begun = asyncio.Event()

    @tool
    async def write_draft() -> str:
        """Write a draft."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    helper = helper_that("Helped.")
    both = reply(calls=[DELEGATES, call("write_draft", id="draft")])
    tools = [helper.as_tool(), write_draft]
    steady = Agent(name="steady", description="Keeps.", model=ScriptedModel([both, "Kept."]), tools=tools)
    spawn = call("companion__spawnAgent", {"agent": "steady", "initialMessage": "Keep."})
    send = call("companion__sendMessage", {"name": "steady-1", "message": "And?"})
    kept = PersistentAgent(steady, mode="non_blocking")
    agent = Agent(name="boss", model=ScriptedModel([spawn, "Off.", send, "Done."]), persistent_agents=[kept])
    async with await open_backend("memory://left-below") as parts, asyncio.timeout(20):
        async with Executor(**settings_on(parts, agent)) as dying:
            assert await (await dying.execute(agent, "Go.", SESSION)).output() == "Off."
            await begun.wait()
            (companion,) = await parts.state.get_sub_session_refs(SESSION)
            while await ends(parts, companion.sub_session_id) == []:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with Executor(**settings_on(parts, agent)) as second:
            assert await (await second.execute(agent, "Go on.", SESSION)).output() == "Done."
            await second.idle()
        results = await results_of(parts, companion.sub_session_id)
        (below,) = await parts.state.get_sub_session_refs(companion.sub_session_id)
        assert (below.status, below.result) == ("completed", "Helped.")
        of_help = next(result for call_id, result in results.items() if call_id.startswith("help"))
        assert (of_help.content, of_help.error) == ("Helped.", False)


async def test_a_session_that_expires_in_a_step_keeps_what_its_calls_had_done():
    begun = asyncio.Event()

    @tool(effect="once")
    async def send_letter(ctx: ToolContext[Any], to: str) -> str:
        """Send a letter, which cannot be taken back."""
        if to == "bob":
            begun.set()
            await asyncio.Event().wait()
        return f"sent to {to}"

    letters = reply("I write. ", calls=[call("send_letter", {"to": to}, id=to) for to in ("ann", "bob")])
    agent = Agent(name="writer", model=ScriptedModel([letters, "Well then."]), tools=[send_letter])
    clock = ManualClock()
    async with await open_backend("memory://left-expired", clock=clock) as parts, asyncio.timeout(20):
        async with Executor(**settings_on(parts, agent)) as dying:
            await dying.execute(agent, "Write to both.", SESSION, expires_in=60)
            await begun.wait()
            while not any(each.state == "done" for each in await parts.state.list_effects(SESSION)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        clock.advance(61_000)
        assert (await expired_session_cleanup(parts.state)).marked == 1
        async with Executor(**settings_on(parts, agent)) as second:
            assert await (await second.execute(agent, "Never mind.", SESSION)).output() == "Well then."
        results = await results_of(parts)
        assert (results["ann"].content, results["bob"].code) == ("sent to ann", "outcome_unknown")
        replies = [
            each.message.text
            for each in await parts.state.load_transcript(SESSION)
            if isinstance(each.message, AssistantMessage)
        ]
        assert replies == ["I write. ", "Well then."]


@pytest.mark.parametrize("then", ["a new message", "going on"])
@pytest.mark.parametrize("answered", [True, False])
async def test_readers_are_told_once_that_a_child_is_done_though_the_run_that_said_so_died(answered: bool, then: str):
    """It had gone on with the step of another run, and a third one goes on with it now."""
    agent = writer(helper_that(call("locate", {"city": "Rome"}), "Helped.", tools=[locate]), "Well then.")
    async with await open_backend(f"memory://told-{answered}-{then}") as parts, asyncio.timeout(20):
        async with Executor(**settings_on(parts, agent)) as first:
            waiting = await (await first.execute(agent, "Go.", SESSION)).result()
            assert isinstance(waiting, Suspended)
            if answered:
                await first.submit_tool_result(SESSION, waiting.pending[0].tool_call_id, ToolAnswer(result="here"))
        # Its last effect: the root's own commit.
        at = StopAt(kind="commit", effect=3 if answered else 1, side="before")
        async with RecordingExecutor(recorder=Recorder(at), **settings_on(parts, agent)) as dying:
            words: dict[str, Any] = {} if answered else {"mode": "with_message", "message": "Never mind."}
            run = await dying.resume(agent, SESSION, **words)
            with pytest.raises(ExecutorClosedError):
                await run.result()
        assert len(await ends(parts)) == 1
        async with Executor(**settings_on(parts, agent)) as third:
            if then == "going on":
                again = await third.resume(agent, SESSION)
            else:
                again = await third.execute(agent, "And then?", SESSION)
            assert await again.output() == "Well then."
        assert len(await ends(parts)) == 1
        assert (await results_of(parts))["help"].error == (not answered)


async def test_readers_are_told_once_that_a_grandchild_is_let_go_though_the_attempt_that_said_so_died():
    clerk = Agent(
        name="clerk", description="Asks.", model=ScriptedModel([call("locate", {"city": "Rome"})]), tools=[locate]
    )
    helper = helper_that(call("subagent__clerk", {"message": "Ask"}), tools=[clerk.as_tool()])
    agent = writer(helper, "Well then.")
    async with await open_backend("memory://told-below") as parts, asyncio.timeout(20):
        async with Executor(**settings_on(parts, agent)) as first:
            assert isinstance(await (await first.execute(agent, "Go.", SESSION)).result(), Suspended)
        await die_at(StopAt(kind="commit", effect=1, side="before"), parts, agent, SESSION, "Never mind.")
        async with Executor(**settings_on(parts, agent)) as third:
            await third.interrupt(SESSION)
            await third.recover()
            await third.idle()
        assert [status for status, _ in await ends(parts)] == ["interrupted", "interrupted"]


@pytest.mark.parametrize("runtime", [Executor, ScatteredExecutor])
async def test_readers_are_told_once_that_a_grandchild_is_let_go_though_a_stop_comes_right_after(
    runtime: type[Executor | ScatteredExecutor], monkeypatch: pytest.MonkeyPatch
):
    clerk = Agent(
        name="clerk", description="Asks.", model=ScriptedModel([call("locate", {"city": "Rome"})]), tools=[locate]
    )
    helper = helper_that(call("subagent__clerk", {"message": "Ask"}), tools=[clerk.as_tool()])
    agent = writer(helper, "Well then.")
    async with await open_backend(f"memory://told-stopped-{runtime.__name__}") as parts, asyncio.timeout(20):
        async with runtime(**settings_on(parts, agent)) as helix:
            assert isinstance(await (await helix.execute(agent, "Go.", SESSION)).result(), Suspended)
            settle, wait, heard = parts.state.settle_session, parts.state.wait_for_interrupt, asyncio.Event()

            async def settle_and_stop(request: SettleSession) -> StatusOutcome:
                settled = await settle(request)
                await helix.interrupt(SESSION)
                await heard.wait()
                return settled

            async def wait_and_tell(session_id: SessionId, timeout: float) -> InterruptFlag | None:
                flag = await wait(session_id, timeout)
                heard.set() if flag is not None else None
                return flag

            monkeypatch.setattr(parts.state, "settle_session", settle_and_stop)
            monkeypatch.setattr(parts.state, "wait_for_interrupt", wait_and_tell)
            stopped = await (await helix.execute(agent, "Never mind.", SESSION)).result()
        assert isinstance(stopped, Interrupted)
        assert [status for status, _ in await ends(parts)] == ["interrupted", "interrupted"]


async def test_readers_hear_nothing_of_a_child_that_is_let_go_before_they_were_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its parent lost the store when it had made it, and was stopped before it could go on."""
    monkeypatch.setattr(drivers, "backoff", lambda: repeat(0.0))
    agent = writer(helper_that("Helped."), "Well then.")
    async with await open_backend("memory://told-of-nobody") as parts, asyncio.timeout(20):
        start_run = parts.state.start_run

        async def start_unheard(start: StartRun) -> RunStartCommitted:
            started = await start_run(start)
            if start.parent is None:
                return started
            await parts.state.set_interrupt_flag(SESSION, "enough")
            raise StoreUnavailableError("memory", "it is away")

        monkeypatch.setattr(parts.state, "start_run", start_unheard)
        async with Executor(**settings_on(parts, agent)) as helix:
            assert isinstance(await (await helix.execute(agent, "Go.", SESSION)).result(), Interrupted)
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        child = await parts.state.get_current_run(ref.sub_session_id)
        assert child is not None
        assert (child.status, await ends(parts)) == ("interrupted", [])


def _waiting_helper() -> Agent[Any, Any, Any]:
    return helper_that(call("locate", {"city": "Rome"}), tools=[locate])


async def _leave_waiting(parts: Backend, agent: AnyAgent) -> str:
    """Begin a conversation that waits for a child; answers the checkpoint where it does."""
    async with Executor(**settings_on(parts, agent)) as first:
        assert isinstance(await (await first.execute(agent, "Go.", SESSION)).result(), Suspended)
        return (await first.sessions.checkpoints(SESSION)).items[0].checkpoint_id


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[forgotten_child_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


@pytest.mark.parametrize(
    ("kind", "side"), [("open", "after"), ("ask_model", "after"), ("commit", "before"), ("commit", "after")]
)
async def test_readers_hear_once_of_the_end_of_a_child_whose_step_was_rewound_also_if_the_next_process_is_killed(
    tmp_path: Path, processes: Processes, kind: str, side: str
):
    url, agent = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal", forgotten_child_jobs.WRITER
    async with await open_backend(url) as parts, Executor(**settings_on(parts, agent)) as first:
        assert isinstance(await (await first.execute(agent, "Go.", SESSION)).result(), Suspended)
        await first.rewind(SESSION, "beginning")
    job = {"url": url, "kind": kind, "side": side}
    [killed] = await processes.run(f"{forgotten_child_jobs.MODULE}:go_on_and_die", [job])
    assert killed.was_killed, killed.error
    async with await open_backend(url, clock=LaterClock(1)) as parts:
        async with Executor(**settings_on(parts, agent)) as third:
            await third.recover()
            await third.idle()
        assert (await parts.state.list_runs(SESSION)).items[0].status == "completed"
        assert await ends(parts) == [("interrupted", None)]
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert ref.status == "interrupted"


async def test_readers_hear_once_of_the_end_of_a_child_that_a_dead_run_told_before_a_rewind():
    agent = writer(_waiting_helper(), "Well then.")
    async with await open_backend("memory://told-before-a-rewind") as parts, asyncio.timeout(20):
        waited_at = await _leave_waiting(parts, agent)
        await die_at(StopAt(kind="commit", effect=1, side="before"), parts, agent, SESSION, "Never mind.")
        assert len(await ends(parts)) == 1
        async with Executor(**settings_on(parts, agent)) as second:
            await second.rewind(SESSION, waited_at)
            assert await (await second.execute(agent, "Still there?", SESSION)).output() == "Well then."
        assert len(await ends(parts)) == 1
        (ref,) = await parts.state.get_sub_session_refs(SESSION)
        assert ref.status == "interrupted"


async def test_readers_hear_once_of_the_end_of_a_child_whose_call_has_the_id_of_a_later_one():
    """After a rewind the model makes the same call again, for another child, and the process dies."""
    agent = writer(_waiting_helper(), "Well then.")
    async with await open_backend("memory://called-the-same") as parts, asyncio.timeout(20):
        await _leave_waiting(parts, agent)
        async with Executor(**settings_on(parts, agent)) as first:
            await first.rewind(SESSION, "beginning")
        # The second child waits as well, which its parent has not said yet.
        await die_at(StopAt(kind="run_batch", effect=2, side="after"), parts, agent, SESSION, "Again.")
        async with Executor(**settings_on(parts, agent)) as second:
            await second.recover()
            await second.idle()
            first_child, _ = sorted(await parts.state.get_sub_session_refs(SESSION), key=lambda ref: ref.created_at)
            assert first_child.status == "interrupted"
            assert await ends(parts) == [("interrupted", None)]
            assert await (await second.execute(agent, "Never mind.", SESSION)).output() == "Well then."
        assert [status for status, _ in await ends(parts)] == ["interrupted", "terminated"]
        assert {ref.tool_call_id for ref in await parts.state.get_sub_session_refs(SESSION)} == {"help"}

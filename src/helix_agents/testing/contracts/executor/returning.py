"""Scenarios of going back: rewinding, branching, trying again, and leaving open calls behind."""

from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import CompletedStep, ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    CheckpointNotFoundError,
    ModelRefusedError,
    NothingToResumeError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
)
from helix_agents.domain.messages import AssistantMessage
from helix_agents.domain.pending import AnswerAlreadyCompleted, ApprovalAnswer, ToolAnswer
from helix_agents.domain.sessions import BranchPoint
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
)


class Book(BaseModel):
    """What was written."""

    pages: list[str] = []


@tool
async def write(ctx: ToolContext[Book], text: str) -> str:
    """Write a page."""
    ctx.state.pages.append(text)
    return f"page {len(ctx.state.pages)}"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool(require_approval=True)
async def publish(ctx: ToolContext[Book]) -> str:
    """Publish."""
    ctx.state.pages.append("published")
    return "published"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="author", tools=[write, locate, publish], state=Book)


def _pages(request: ModelRequest) -> str:
    """A reply that says how many messages it was shown."""
    return f"seen {len(request.messages)}"


def _asked_where(step: CompletedStep[Any]) -> bool:
    return step.called("locate")


WRITING = (call("write", {"text": "one"}), call("write", {"text": "two"}), "Written.")


async def _pages_of(helix: Executor, session_id: str = SESSION) -> list[str]:
    return (await helix.sessions.get(session_id)).custom_state["pages"]


async def _checkpoints(helix: Executor) -> list[str]:
    """Oldest first."""
    return [each.checkpoint_id for each in (await helix.sessions.checkpoints(SESSION)).items][::-1]


class ReturningContract(ScenarioContract):
    """Messages and state go back together, exactly, and what is left behind stays behind for good."""

    async def test_a_rewind_restores_messages_and_state_of_a_checkpoint(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        await completed(await helix.execute(_agent(*WRITING), "Go", SESSION))
        first = (await _checkpoints(helix))[0]
        async with open_executor() as other:
            script = [call("write", {"text": "one"}), call("write", {"text": "other"}), _pages]
            handle = await other.resume(_agent(*script), SESSION, mode="from_checkpoint", checkpoint_id=first)
            assert await completed(handle) == "seen 5"
            assert await _pages_of(other) == ["one", "other"]
            assert await spoken(other) == [
                "user: Go",
                "assistant: [write#call_1_1]",
                "result write#call_1_1: page 1",
                "assistant: [write#call_2_1]",
                "result write#call_2_1: page 2",
                "assistant: seen 5",
            ]
            assert len(await runs_of(other)) == 2

    async def test_a_rewind_may_bring_a_new_message(self, helix: Executor) -> None:
        agent = _agent(*WRITING)
        await completed(await helix.execute(agent, "Go", SESSION))
        last = (await _checkpoints(helix))[-1]
        handle = await helix.resume(
            _agent(*WRITING, "Differently."), SESSION, mode="from_checkpoint", checkpoint_id=last, message="Again"
        )
        assert await completed(handle) == "Differently."
        assert (await spoken(helix))[-2:] == ["user: Again", "assistant: Differently."]

    async def test_a_rewind_to_a_checkpoint_that_does_not_exist_changes_nothing(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent(*WRITING), "Go", SESSION))
        before = await helix.sessions.get(SESSION)
        with pytest.raises(CheckpointNotFoundError):
            await helix.resume(_agent("x"), SESSION, mode="from_checkpoint", checkpoint_id="nowhere")
        assert await helix.sessions.get(SESSION) == before

    async def test_a_rewind_drops_what_waits(self, helix: Executor) -> None:
        agent = _agent(call("write", {"text": "one"}), call("locate", {"city": "Rome"}), "Never.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        first = (await _checkpoints(helix))[0]
        handle = await helix.resume(
            _agent(call("write", {"text": "one"}), "Elsewhere."), SESSION, mode="from_checkpoint", checkpoint_id=first
        )
        assert await completed(handle) == "Elsewhere."
        assert (await helix.list_pending()).items == ()
        late = await helix.submit_tool_result(SESSION, "call_2_1", ToolAnswer(result="x"))
        assert isinstance(late, AnswerAlreadyCompleted)

    async def test_a_rewind_alone_asks_no_model_and_stays_until_somebody_goes_on(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        await completed(await helix.execute(_agent(*WRITING), "Go", SESSION))
        first = (await _checkpoints(helix))[0]
        async with open_executor() as other:
            session = await other.rewind(SESSION, first)
            assert (session.status, session.message_count, session.custom_state) == (
                "interrupted",
                3,
                {"pages": ["one"]},
            )
            assert [(run.turn, run.status) for run in await runs_of(other)] == [(1, "completed"), (2, "interrupted")]
            handle = await other.get_handle(_agent(), SESSION)
            assert handle is not None
            assert await chunks_of(handle) == [], "a reader of the turn that rewound comes to its end"
        resumed = await helix.resume(_agent(call("write", {"text": "one"}), _pages), SESSION)
        assert await completed(resumed) == "seen 3"

    async def test_a_call_after_a_rewind_is_another_one_though_its_provider_calls_it_the_same(
        self, helix: Executor
    ) -> None:
        keys: list[str] = []

        @tool(effect="once")
        async def pay(ctx: ToolContext[Any]) -> str:
            """Pay."""
            keys.append(ctx.idempotency_key)
            return "paid"

        for _ in range(2):
            agent = Agent(name="payer", model=ScriptedModel([call("pay", id="c-1"), "Paid."]), tools=[pay])
            assert await completed(await helix.execute(agent, "Pay", SESSION)) == "Paid."
            await helix.rewind(SESSION, BEGINNING)
        assert len(keys) == len(set(keys)) == 2

    @pytest.mark.parametrize("then", ["answered", "stopped"])
    async def test_what_somebody_answered_before_a_rewind_is_no_result_of_a_call_that_is_called_the_same(
        self, helix: Executor, then: str
    ) -> None:
        @tool(finish_with=True)
        async def finish() -> str:
            """Finish."""
            return "Finished."

        def asking(*last: Any) -> AnyAgent:
            return _agent(reply(calls=[call("locate", {"city": "Rome"}), *last]), "Done.", tools=[locate, finish])

        before = asking(call("locate", {"city": "Oslo"}))
        for waits in (await suspended(await helix.execute(before, "Go", SESSION))).pending:
            await helix.submit_tool_result(SESSION, waits.tool_call_id, ToolAnswer(result="an old answer"))
        await completed(await helix.resume(before, SESSION))
        await helix.rewind(SESSION, BEGINNING)
        agent = asking(call("finish"))
        (waits,) = (await suspended(await helix.execute(agent, "Go", SESSION))).pending
        if then == "answered":
            await helix.submit_tool_result(SESSION, waits.tool_call_id, ToolAnswer(result="here"))
            assert await completed(await helix.resume(agent, SESSION)) == "Finished."
            assert (await spoken(helix))[-1] == "result finish#call_1_2: Finished."
        else:
            await helix.interrupt(SESSION)
            assert (await spoken(helix))[-1] == "error finish#call_1_2: run_stopped"

    async def test_a_session_in_which_nothing_was_said_is_resumed_with_a_message_only(self, helix: Executor) -> None:
        agent = _agent("One.", "Two.")
        await completed(await helix.execute(agent, "Go", SESSION))
        for already_back in (False, True):
            if already_back:
                await helix.rewind(SESSION, BEGINNING)
                assert isinstance(await helix.can_resume(agent, SESSION), NothingToResumeError)
                with pytest.raises(NothingToResumeError, match="give it a message"):
                    await helix.resume(agent, SESSION)
            before = await helix.sessions.get(SESSION)
            with pytest.raises(NothingToResumeError, match="give it a message"):
                await helix.resume(agent, SESSION, mode="from_checkpoint", checkpoint_id=BEGINNING)
            assert await helix.sessions.get(SESSION) == before
        assert await completed(await helix.resume(agent, SESSION, mode="with_message", message="Go")) == "One."

    async def test_a_rewind_alone_is_refused_while_somebody_works_and_where_nothing_is(self, helix: Executor) -> None:
        gate = PieceGate(1)
        model = ScriptedModel(["Slowly."], pace=gate)
        handle = await helix.execute(Agent(name="author", model=model), "Go", SESSION)
        await gate.until_reached()
        with pytest.raises(AgentAlreadyRunningError):
            await helix.rewind(SESSION, "cp")
        gate.opened.set()
        await completed(handle)
        before = await helix.sessions.get(SESSION)
        with pytest.raises(CheckpointNotFoundError):
            await helix.rewind(SESSION, "nowhere")
        assert await helix.sessions.get(SESSION) == before
        with pytest.raises(SessionNotFoundError):
            await helix.rewind("nobody", "cp")

    async def test_a_rewind_alone_drops_what_waits(self, helix: Executor) -> None:
        agent = _agent(call("write", {"text": "one"}), call("locate", {"city": "Rome"}), "Never.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.rewind(SESSION, (await _checkpoints(helix))[0])
        assert (await helix.list_pending()).items == ()
        handle = await helix.execute(_agent(call("write", {"text": "one"}), "Elsewhere."), "On", SESSION)
        assert await completed(handle) == "Elsewhere."

    async def test_a_rewind_to_where_calls_were_open_answers_them_first(self, helix: Executor) -> None:
        agent = _agent(call("locate", {"city": "Rome"}), "There.")
        await suspended(await helix.execute(agent, "Where?", SESSION))
        waiting = (await _checkpoints(helix))[-1]
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
        await completed(await helix.resume(agent, SESSION))
        handle = await helix.resume(agent, SESSION, mode="from_checkpoint", checkpoint_id=waiting, message="Anew")
        assert await completed(handle) == "There."
        assert await spoken(helix) == [
            "user: Where?",
            "assistant: [locate#call_1_1]",
            "error locate#call_1_1: not_executed",
            "user: Anew",
            "assistant: There.",
        ]

    async def test_a_rewind_to_a_suspension_keeps_the_results_that_are_known_there(self, helix: Executor) -> None:
        both = [call("write", {"text": "one"}), call("locate", {"city": "Rome"})]
        agent = _agent(reply("Both.", calls=both), "Never.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.rewind(SESSION, (await _checkpoints(helix))[-1])
        assert await spoken(helix) == [
            "user: Go",
            "assistant: Both.[write#call_1_1, locate#call_1_2]",
            "result write#call_1_1: page 1",
            "error locate#call_1_2: not_executed",
        ]
        assert await _pages_of(helix) == ["one"]

    @pytest.mark.parametrize("then", ["answered", "given up", "stopped"])
    async def test_a_rewind_to_a_suspension_that_is_over_keeps_the_results_that_were_known_there(
        self, helix: Executor, then: str
    ) -> None:
        both = [call("write", {"text": "one"}), call("locate", {"city": "Rome"})]
        agent = _agent(reply("Both.", calls=both), "Done.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        (there,) = await _checkpoints(helix)
        match then:
            case "answered":
                await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))
                await completed(await helix.resume(agent, SESSION))
            case "given up":
                await completed(await helix.execute(agent, "Forget it", SESSION))
            case _:
                await helix.interrupt(SESSION)
                await completed(await helix.execute(agent, "Forget it", SESSION))
        await helix.rewind(SESSION, there)
        assert await spoken(helix) == [
            "user: Go",
            "assistant: Both.[write#call_1_1, locate#call_1_2]",
            "result write#call_1_1: page 1",
            "error locate#call_1_2: not_executed",
        ]
        assert await _pages_of(helix) == ["one"]

    async def test_a_branch_at_a_checkpoint_begins_with_its_messages_and_state(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        await completed(await helix.execute(_agent(*WRITING), "Go", SESSION))
        original = await spoken(helix)
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=(await _checkpoints(helix))[0])
        async with open_executor() as other:
            script = [call("write", {"text": "one"}), call("write", {"text": "mine"}), "Branched."]
            handle = await other.execute(_agent(*script), "Go on", "s-2", branch=point)
            assert await completed(handle) == "Branched."
            assert await spoken(other, "s-2") == [
                *original[:3],
                "user: Go on",
                "assistant: [write#call_2_1]",
                "result write#call_2_1: page 2",
                "assistant: Branched.",
            ]
            assert await _pages_of(other, "s-2") == ["one", "mine"]
            assert await spoken(other) == original
            assert await _pages_of(other) == ["one", "two"]
            assert [run.turn for run in await runs_of(other, "s-2")] == [1]

    async def test_a_branch_at_a_message_heals_the_calls_it_cuts(self, helix: Executor) -> None:
        agent = _agent(reply("Two.", calls=[call("write", {"text": "a"}), call("write", {"text": "b"})]), "Written.")
        await completed(await helix.execute(agent, "Go", SESSION))
        point = BranchPoint(from_session_id=SESSION, message_count=3)
        handle = await helix.execute(_agent("x", "Branched."), "Go on", "s-2", branch=point)
        assert await completed(handle) == "Branched."
        assert await spoken(helix, "s-2") == [
            "user: Go",
            "assistant: Two.[write#call_1_1, write#call_1_2]",
            "result write#call_1_1: page 1",
            "error write#call_1_2: not_executed",
            "user: Go on",
            "assistant: Branched.",
        ]

    async def test_a_session_that_is_there_does_not_become_a_branch(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent("One."), "Go", SESSION))
        await completed(await helix.execute(_agent("One."), "Go", "s-2"))
        newest = (await helix.sessions.checkpoints(SESSION)).items[0]
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=newest.checkpoint_id)
        with pytest.raises(SessionAlreadyExistsError):
            await helix.execute(_agent("One.", "Two."), "Go on", "s-2", branch=point)
        again: dict[str, Any] = {"branch": point, "idempotency_key": "key"}
        first = await helix.execute(_agent("One.", "Two."), "Go on", "s-3", **again)
        assert (await helix.execute(_agent("One.", "Two."), "Go on", "s-3", **again)).run_id == first.run_id
        assert await completed(first) == "Two."

    async def test_a_branch_may_begin_with_other_state(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent(*WRITING), "Go", SESSION))
        point = BranchPoint(from_session_id=SESSION)
        handle = await helix.execute(
            _agent(*WRITING, "Branched."), "Go on", "s-2", branch=point, state={"pages": ["own"]}
        )
        await completed(handle)
        assert await _pages_of(helix, "s-2") == ["own"]

    async def test_retry_goes_on_from_the_last_commit_of_a_run_that_failed(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        def refused(request: ModelRequest) -> Any:
            return ModelRefusedError("scripted", "no credit")

        handle = await helix.execute(_agent(*WRITING[:2], refused), "Go", SESSION)
        result = await failed(handle)
        assert (result.code, result.retryable) == ("provider_refused", False)
        async with open_executor() as other:
            retried = await other.retry(_agent(*WRITING), SESSION)
            assert await completed(retried) == "Written."
            assert await _pages_of(other) == ["one", "two"]
            assert (await spoken(other)).count("user: Go") == 1
            runs = await runs_of(other)
            assert [(run.turn, run.status) for run in runs] == [(1, "failed"), (2, "completed")]
            assert runs[1].previous_run_id == handle.run_id

    async def test_a_new_message_abandons_the_calls_that_wait_and_never_stands_before_their_results(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        calls = [call("locate", {"city": "Rome"}), call("write", {"text": "a"}), call("publish")]
        script = [reply("Asking.", calls=calls), "Never mind, then."]
        await suspended(await helix.execute(_agent(*script), "Go", SESSION))
        async with open_executor() as other:
            handle = await other.execute(_agent(*script), "Forget it", SESSION)
            assert await completed(handle) == "Never mind, then."
            assert await spoken(other) == [
                "user: Go",
                "assistant: Asking.[locate#call_1_1, write#call_1_2, publish#call_1_3]",
                "error locate#call_1_1: client_tool_abandoned",
                "result write#call_1_2: page 1",
                "error publish#call_1_3: client_tool_abandoned",
                "user: Forget it",
                "assistant: Never mind, then.",
            ]
            assert await _pages_of(other) == ["a"]
            late = await other.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="x"))
            assert isinstance(late, AnswerAlreadyCompleted)
            assert (await other.list_pending()).items == ()

    async def test_a_new_message_over_a_batch_that_is_partly_answered_keeps_the_answers(self, helix: Executor) -> None:
        calls = [call("locate", {"city": "Rome"}), call("publish"), call("locate", {"city": "Pisa"})]
        agent = _agent(reply(calls=calls), "Fine.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
        await helix.submit_tool_result(SESSION, "call_1_2", ApprovalAnswer(approved=True))
        assert await completed(await helix.execute(agent, "Go on", SESSION)) == "Fine."
        assert (await spoken(helix))[2:] == [
            "result locate#call_1_1: 41.9 N",
            "result publish#call_1_2: published",
            "error locate#call_1_3: client_tool_abandoned",
            "user: Go on",
            "assistant: Fine.",
        ]

    async def test_the_turn_of_a_new_message_over_open_calls_has_a_fresh_budget(self, helix: Executor) -> None:
        script = [call("write", {"text": "a"}), call("locate", {"city": "Rome"}), "Fine."]
        agent = _agent(*script, max_steps=2)
        await suspended(await helix.execute(agent, "Go", SESSION))
        assert await completed(await helix.execute(agent, "Go on", SESSION)) == "Fine."

    @pytest.mark.parametrize("mode", ["execute", "with_message"])
    async def test_a_step_that_the_user_went_on_from_ends_no_turn_of_a_new_message(
        self, helix: Executor, mode: str
    ) -> None:
        finish = call("__finish__", {"pages": ["three"]})
        asking = call("locate", {"city": "Oslo"}, id="where")
        agent = _agent(asking, finish, output=Book, stop_when=_asked_where)
        await suspended(await helix.execute(agent, "Begin", SESSION))
        if mode == "execute":
            handle = await helix.execute(agent, "Never mind: three.", SESSION)
        else:
            handle = await helix.resume(agent, SESSION, mode="with_message", message="Never mind: three.")
        assert await completed(handle) == Book(pages=["three"])

    async def test_a_failed_run_drops_unanswered_calls_and_the_next_turn_is_legal(self, helix: Executor) -> None:
        calls = [call("locate", {"city": "Rome"}), call("publish")]
        agent = _agent(reply(calls=calls), ModelRefusedError("scripted", "no credit"), "Back.")
        await suspended(await helix.execute(agent, "Go", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="x"))
        await helix.submit_tool_result(SESSION, "call_1_2", ApprovalAnswer(approved=False))
        await failed(await helix.resume(agent, SESSION))
        assert await completed(await helix.execute(agent, "Once more", SESSION)) == "Back."
        await spoken(helix)
        assert isinstance((await transcript(helix))[-1], AssistantMessage)

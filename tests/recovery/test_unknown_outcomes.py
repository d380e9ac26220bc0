"""A process died in a tool that must not run twice: whoever goes on, and however, the tool is not said to have been
left undone, does not run again by itself, and its policy decides unless the user has gone on without it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from helix_agents import (
    Agent,
    ApprovalAnswer,
    Completed,
    DidNotHappen,
    Failed,
    Happened,
    Interrupted,
    OutcomeUnknown,
    Reconciled,
    StillUnknown,
    Suspended,
    ToolAnswer,
    ToolContext,
    client_tool,
    tool,
)
from helix_agents.agent.context import RunContext
from helix_agents.agent.failures import FailRun, ToolFailed
from helix_agents.agent.hook_events import AgentCompleteEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import Tool
from helix_agents.domain.chunks import ToolApprovalRequest
from helix_agents.domain.effects import BeginEffect, EffectOutcome
from helix_agents.domain.messages import EDITED_INPUT, AssistantMessage, ToolMessage, UserMessage
from helix_agents.domain.results import RunResult
from helix_agents.domain.sessions import BranchPoint
from helix_agents.domain.usage import UsageFilter
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply

SESSION, CALL = "s-1", "c-1"
SOON = EngineOptions(effect_lease_ms=50)
Died = Literal["in its first round", "after its approval"]
DEATHS: tuple[Died, ...] = ("in its first round", "after its approval")
_numbers = itertools.count(1)


class Letter:
    """A tool that never comes back the first time, and counts."""

    def __init__(
        self,
        died: Died,
        policy: Any = None,
        *,
        finishes: bool = False,
        beside: Mapping[str, Tool[..., Any]] = {},
        timeout: float | None = None,
    ) -> None:
        self.sent = 0
        self.to: list[str] = []
        self.begun = asyncio.Event()

        async def send(to: str = "her") -> str:
            """Send a letter, which cannot be taken back."""
            self.sent += 1
            self.to.append(to)
            if self.sent == 1:
                self.begun.set()
                await asyncio.Event().wait()
            return "sent"

        gated = died == "after its approval"
        about: dict[str, Any] = {"finish_with": finishes, "timeout": timeout}
        self.tool = tool(effect="once", require_approval=gated, unknown_outcome=policy, **about)(send)
        others = [call(other.name, {}, id=call_id) for call_id, other in beside.items()]
        said = [reply("I write. ", calls=[*others, call("send", {}, id=CALL)]), "Well then.", "Well."]
        tools = {other.name: other for other in beside.values()}.values()
        self.agent = Agent(name="writer", model=ScriptedModel(said), tools=[self.tool, *tools])


class Desk:
    """The store that a process left behind, and another process."""

    def __init__(self, letter: Letter, parts: Backend, helix: Executor) -> None:
        self.letter, self.parts, self.helix = letter, parts, helix

    async def message(self, session_id: str = SESSION) -> ToolMessage:
        """What the transcript says of the call."""
        rows = await self.parts.state.load_transcript(session_id)
        [found] = [row.message for row in rows if isinstance(row.message, ToolMessage)]
        return found

    async def result(self) -> tuple[Any, str | None]:
        """The call's result, and why it has none."""
        found = await self.message()
        return found.content, found.code

    async def asked(self) -> bool:
        """Whether somebody is asked what became of the call."""
        return [(row.tool_call_id, row.reason) for row in (await self.helix.list_pending()).items] == [
            (CALL, "unknown_outcome")
        ]

    async def recover(self) -> None:
        await self.helix.recover()
        await self.helix.idle()

    async def enter(self, entry: str) -> RunResult[Any]:
        agent = self.letter.agent
        match entry:
            case "execute":
                handle = await self.helix.execute(agent, "Never mind.", SESSION)
            case "with_message":
                handle = await self.helix.resume(agent, SESSION, mode="with_message", message="Never mind.")
            case _:
                handle = await self.helix.resume(agent, SESSION)
        return await handle.result()


@asynccontextmanager
async def after_a_death(
    letter: Letter, *, options: EngineOptions = SOON, edited: dict[str, Any] | None = None
) -> AsyncGenerator[Desk]:
    """A process that died while it sent the letter, and one that looks at what it left."""
    async with await open_backend(f"memory://unknown-{next(_numbers)}") as parts, asyncio.timeout(20):
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        # One tool after another: what stands beside the letter is done before that is sent.
        given = {"janitor_seconds": None, "grace": 0.0, "options": options, "max_parallel_tools": 1}
        async with Executor(**stores, **given) as dying:
            first = await dying.execute(letter.agent, "Write to her.", SESSION)
            if letter.tool.require_approval:
                await first.result()
                await dying.submit_tool_result(SESSION, CALL, ApprovalAnswer(approved=True, edited_input=edited))
                await dying.resume(letter.agent, SESSION)
            await letter.begun.wait()
        async with Executor(**stores, janitor_seconds=None, options=options, agents=[letter.agent]) as helix:
            yield Desk(letter, parts, helix)


@pytest.mark.parametrize("died", DEATHS)
@pytest.mark.parametrize("entry", ["recover", "resume"])
async def test_who_goes_on_without_a_word_finds_that_somebody_is_asked(died: Died, entry: str) -> None:
    async with after_a_death(Letter(died)) as desk:
        if entry == "recover":
            await desk.recover()
        else:
            assert isinstance(await desk.enter("resume"), Suspended)
        assert await desk.asked()
        runs = (await desk.helix.sessions.runs(SESSION)).items
        if died == "in its first round":
            assert [(run.turn, run.attempt) for run in runs] == [(1, 2)], "the same run, its next attempt"
        await desk.helix.submit_tool_result(SESSION, CALL, ToolAnswer(result="it was sent"))
        assert isinstance(await desk.enter("resume"), Completed)
        assert await desk.result() == ("it was sent", None)
        assert desk.letter.sent == 1
        assert await desk.parts.state.list_effects(SESSION) == ()


@pytest.mark.parametrize("died", DEATHS)
@pytest.mark.parametrize("asked", [False, True], ids=["at once", "after somebody was asked"])
@pytest.mark.parametrize("entry", ["execute", "with_message"])
async def test_who_goes_on_with_a_new_message_tells_the_model_that_nobody_knows(
    died: Died, asked: bool, entry: str
) -> None:
    async with after_a_death(Letter(died)) as desk:
        if asked:
            await desk.recover()
            assert await desk.asked()
        assert isinstance(await desk.enter(entry), Completed)
        assert (await desk.result())[1] == "outcome_unknown"
        said = [row.message for row in await desk.parts.state.load_transcript(SESSION)]
        assert isinstance(said[-2], UserMessage)
        assert said[-2].content == "Never mind."
        assert isinstance(said[1], AssistantMessage)
        assert said[1].interrupted == ("crash" if died == "in its first round" and not asked else None)
        assert (await desk.helix.list_pending()).items == ()
        assert desk.letter.sent == 1
        assert await desk.parts.state.list_effects(SESSION) == ()


@pytest.mark.parametrize("died", DEATHS)
@pytest.mark.parametrize("asked", [False, True], ids=["at once", "after somebody was asked"])
@pytest.mark.parametrize("stop", ["interrupt", "abort"])
async def test_a_stop_does_not_say_that_it_was_not_executed(died: Died, asked: bool, stop: str) -> None:
    async with after_a_death(Letter(died)) as desk:
        if asked:
            await desk.recover()
        await (desk.helix.interrupt(SESSION) if stop == "interrupt" else desk.helix.abort(SESSION))
        await desk.recover()
        assert (await desk.result())[1] == "outcome_unknown"
        assert isinstance(await desk.enter("execute"), Completed)
        assert desk.letter.sent == 1
        assert await desk.parts.state.list_effects(SESSION) == ()


@pytest.mark.parametrize("died", DEATHS)
@pytest.mark.parametrize("then", ["at once", "after a denial"])
async def test_neither_does_who_goes_back_to_where_somebody_was_asked(died: Died, then: str) -> None:
    async with after_a_death(Letter(died)) as desk:
        await desk.recover()
        there = (await desk.helix.sessions.checkpoints(SESSION)).items[0].checkpoint_id
        if then == "after a denial":
            await desk.helix.submit_tool_result(SESSION, CALL, ApprovalAnswer(approved=False))
            assert isinstance(await desk.enter("resume"), Completed)
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=there)
        await (await desk.helix.execute(desk.letter.agent, "What now?", "s-2", branch=point)).result()
        assert (await desk.message("s-2")).code == "outcome_unknown"
        await desk.helix.rewind(SESSION, there)
        assert (await desk.result())[1] == "outcome_unknown"
        assert desk.letter.sent == 1


async def test_neither_does_a_branch_of_where_the_process_died() -> None:
    letter = Letter("after its approval")
    async with after_a_death(letter) as desk:
        point = BranchPoint(from_session_id=SESSION)
        await (await desk.helix.execute(letter.agent, "What now?", "s-2", branch=point)).result()
        assert (await desk.message("s-2")).code == "outcome_unknown"


async def test_neither_does_a_deadline_nor_the_end_of_the_session() -> None:
    options = EngineOptions(effect_lease_ms=50, pending_deadline_ms=1)
    async with after_a_death(Letter("in its first round"), options=options) as desk:
        await desk.recover()
        # All that may have taken less than the millisecond after which nobody is asked any more.
        await asyncio.sleep(0.01)
        assert isinstance(await desk.enter("resume"), Completed)
        assert (await desk.result())[1] == "outcome_unknown"
    async with after_a_death(Letter("in its first round")) as desk:
        await desk.recover()
        session = await desk.parts.state.load_state(SESSION)
        await desk.parts.state.save_state(SESSION, msgspec.structs.replace(session, expires_at=1))
        assert (await desk.helix.sweep()).expired_sessions == 1
        assert (await desk.result())[1] == "outcome_unknown"


@pytest.mark.parametrize("died", DEATHS)
async def test_a_policy_holds_for_whoever_goes_on(died: Died) -> None:
    async def found(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return Happened("it is in the box")

    async def lost(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return StillUnknown()

    expected = {"retry": ("sent", None, 2), "fail": (None, "outcome_unknown", 1), found: ("it is in the box", None, 1)}
    for policy, (content, code, sent) in expected.items():
        async with after_a_death(Letter(died, policy)) as desk:
            assert isinstance(await desk.enter("resume"), Completed)
            result = await desk.result()
            assert (result[1], desk.letter.sent) == (code, sent)
            assert content is None or result[0] == content

    async def odd(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return Happened(object())

    for policy in (lost, odd):
        async with after_a_death(Letter(died, policy)) as desk:
            assert isinstance(await desk.enter("resume"), Suspended)
            assert await desk.asked()


async def test_what_finding_out_took_is_counted() -> None:
    async def found(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        ctx.record_usage("looks", 3)
        return Happened("it is in the box")

    async with after_a_death(Letter("in its first round", found)) as desk:
        assert isinstance(await desk.enter("resume"), Completed)
        used = await desk.parts.usage.query_usage(UsageFilter(session_id=SESSION, source_type="custom"))
        assert [(entry.source_name, entry.amount) for entry in used.items] == [("looks", 3)]


async def test_whoever_goes_on_with_the_run_gives_it_hooks_and_a_model() -> None:
    told: list[AgentCompleteEvent] = []

    def tell(ctx: RunContext[Any, Any], event: AgentCompleteEvent) -> None:
        told.append(event)

    letter = Letter("in its first round", "fail")
    async with after_a_death(letter) as desk:
        other = ScriptedModel(["Never.", "By another."])
        run = await desk.helix.resume(letter.agent, SESSION, hooks=Hooks(on_agent_complete=tell), model=other)
        assert await run.output() == "By another."
        assert [event.output for event in told] == ["By another."]


async def test_a_message_that_came_before_the_death_does_not_keep_anybody_from_being_asked() -> None:
    """The user approved and said more; then the process died in the tool."""
    letter = Letter("after its approval")
    async with await open_backend(f"memory://unknown-{next(_numbers)}") as parts, asyncio.timeout(20):
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, janitor_seconds=None, grace=0.0, options=SOON) as dying:
            await (await dying.execute(letter.agent, "Write to her.", SESSION)).result()
            await dying.submit_tool_result(SESSION, CALL, ApprovalAnswer(approved=True))
            await dying.resume(letter.agent, SESSION, mode="with_message", message="And quickly.")
            await letter.begun.wait()
        async with Executor(**stores, janitor_seconds=None, options=SOON, agents=[letter.agent]) as helix:
            desk = Desk(letter, parts, helix)
            await desk.recover()
            assert await desk.asked()


@pytest.mark.parametrize(
    ("answer", "content", "to"),
    [
        (ApprovalAnswer(approved=True), "sent", ["him", "him"]),
        (ToolAnswer(result="it was sent"), "it was sent", ["him"]),
        (ApprovalAnswer(approved=False), None, ["him"]),
    ],
    ids=["again", "told", "never mind"],
)
async def test_who_changed_the_input_is_asked_about_the_call_that_was_begun_and_not_about_the_models(
    answer: ApprovalAnswer | ToolAnswer, content: str | None, to: list[str]
) -> None:
    async with after_a_death(Letter("after its approval"), edited={"to": "him"}) as desk:
        await desk.recover()
        (row,) = (await desk.helix.list_pending()).items
        assert row.input == {"to": "him"}
        await desk.helix.submit_tool_result(SESSION, CALL, answer)
        assert isinstance(await desk.enter("resume"), Completed)
        assert desk.letter.to == to
        result = await desk.message()
        assert result.metadata == {EDITED_INPUT: {"to": "him"}}
        assert result.code == ("outcome_unknown" if content is None else None)
        assert content is None or result.content == content


@pytest.mark.parametrize("policy", ["fail", "retry", "reconcile"])
async def test_the_model_is_told_with_which_input_a_call_was_begun(policy: str) -> None:
    async def found(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return Happened(f"the letter to {given['to']} is in the box")

    letter = Letter("after its approval", found if policy == "reconcile" else policy)
    async with after_a_death(letter, edited={"to": "him"}) as desk:
        assert isinstance(await desk.enter("resume"), Completed)
        assert (await desk.message()).metadata == {EDITED_INPUT: {"to": "him"}}


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (ApprovalAnswer(approved=True), "sent"),
        (ToolAnswer(result="it was sent"), "it was sent"),
        (ApprovalAnswer(approved=False), "Well then."),
    ],
    ids=["again", "told", "never mind"],
)
async def test_a_tool_that_finishes_is_asked_about_and_finishes_once_it_is_known(
    answer: ApprovalAnswer | ToolAnswer, output: str
) -> None:
    async with after_a_death(Letter("in its first round", finishes=True)) as desk:
        await desk.recover()
        assert await desk.asked()
        await desk.helix.submit_tool_result(SESSION, CALL, answer)
        result = await desk.enter("resume")
        assert isinstance(result, Completed)
        assert result.output == output


async def test_a_tool_that_finished_is_not_forgotten_while_somebody_is_asked_about_another() -> None:
    @tool(finish_with=True)
    async def sign() -> str:
        """Sign."""
        return "signed"

    async with after_a_death(Letter("in its first round", finishes=True, beside={"c-0": sign})) as desk:
        await desk.recover()
        assert await desk.asked()
        await desk.helix.submit_tool_result(SESSION, CALL, ApprovalAnswer(approved=False))
        result = await desk.enter("resume")
        assert isinstance(result, Completed)
        assert result.output == "signed"


async def test_readers_are_told_of_a_question_once_and_by_the_approval_id_that_it_has() -> None:
    @client_tool
    def locate() -> str:
        """Where the client is."""
        raise NotImplementedError

    letter = Letter("in its first round", beside={"where": locate, "whither": locate})
    async with after_a_death(letter) as desk:
        await desk.recover()
        for answered in ("where", "whither"):
            await desk.helix.submit_tool_result(SESSION, answered, ToolAnswer(result="here"))
            assert isinstance(await desk.enter("resume"), Suspended)
        said = await desk.parts.streams.get_all_chunks(SESSION)
        (asked,) = [chunk.approval_id for chunk in said if isinstance(chunk, ToolApprovalRequest)]
        (row,) = (await desk.helix.list_pending()).items
        assert row.approval_id == asked


@pytest.mark.parametrize("died", DEATHS)
@pytest.mark.parametrize("deploy", ["took the tool away", "changed its input"])
async def test_a_deploy_that_cannot_run_the_tool_does_not_say_that_it_did_not_run(died: Died, deploy: str) -> None:
    @tool(effect="once")
    async def send(address: int) -> str:
        """Send a letter."""
        raise NotImplementedError

    async with after_a_death(Letter(died)) as desk:
        tools = [send] if deploy == "changed its input" else []
        desk.letter.agent = Agent(name="writer", model=ScriptedModel(["Well.", "Well."]), tools=tools)
        assert isinstance(await desk.enter("resume"), Completed)
        assert (await desk.result())[1] == "outcome_unknown"
        assert await desk.parts.state.list_effects(SESSION) == ()


async def test_a_result_on_record_is_used_although_a_deploy_took_its_tool_away() -> None:
    @tool(effect="once")
    async def stamp() -> str:
        """Put a stamp on it."""
        return "stamped"

    letter = Letter("in its first round", beside={"c-0": stamp})
    async with after_a_death(letter) as desk:
        assert {each.tool_call_id: each.state for each in await desk.parts.state.list_effects(SESSION)}["c-0"] == "done"
        desk.letter.agent = Agent(name="writer", model=ScriptedModel(["Well.", "Well."]), tools=[letter.tool])
        assert isinstance(await desk.enter("resume"), Suspended)
        await desk.helix.submit_tool_result(SESSION, CALL, ToolAnswer(result="it was sent"))
        assert isinstance(await desk.enter("resume"), Completed)
        rows = [row.message for row in await desk.parts.state.load_transcript(SESSION)]
        assert [row.content for row in rows if isinstance(row, ToolMessage)] == ["stamped", "it was sent"]


async def test_a_run_that_could_not_be_recovered_does_not_forget_the_call() -> None:
    @asynccontextmanager
    async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
        raise ConnectionError("no database")
        yield ""

    async with after_a_death(Letter("in its first round")) as desk:
        parts, agent = desk.parts, desk.letter.agent
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, janitor_seconds=None, deps=broken, agents=[agent]) as unlucky:
            await unlucky.recover()
            handle = await unlucky.get_handle(agent, SESSION)
            assert handle is not None
            assert isinstance(await handle.result(), Failed)
        assert isinstance(await (await desk.helix.retry(agent, SESSION)).result(), Completed)
        assert (await desk.result())[1] == "outcome_unknown"
        assert desk.letter.sent == 1
        assert await parts.state.list_effects(SESSION) == ()


@pytest.mark.parametrize(
    "problem", [ConnectionError("no bank"), ToolFailed("no such letter"), FailRun("no"), SystemExit()]
)
async def test_a_reconcile_function_that_fails_leaves_the_question_to_a_person(problem: BaseException) -> None:
    async def find_out(inputs: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        raise problem

    async with after_a_death(Letter("in its first round", find_out)) as desk:
        assert isinstance(await desk.enter("resume"), Suspended)
        assert await desk.asked()


@pytest.mark.parametrize("ends_by", ["a stop", "its time limit"])
async def test_a_reconcile_function_that_takes_for_ever_holds_nobody_up(ends_by: str) -> None:
    asking = asyncio.Event()

    async def find_out(inputs: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        asking.set()
        await asyncio.Event().wait()
        return StillUnknown()

    options = EngineOptions(effect_lease_ms=50, cancel_grace_seconds=0)
    async with after_a_death(Letter("in its first round"), options=options) as desk:
        present = Letter("in its first round", find_out, timeout=None if ends_by == "a stop" else 0.05)
        handle = await desk.helix.resume(present.agent, SESSION)
        await asking.wait()
        if ends_by == "a stop":
            await handle.interrupt("enough")
            assert isinstance(await handle.result(), Interrupted)
            assert (await desk.result())[1] == "outcome_unknown"
        else:
            assert isinstance(await handle.result(), Suspended)
            assert await desk.asked()


async def test_a_call_that_did_not_happen_is_not_begun_again_in_a_run_that_was_asked_to_stop() -> None:
    asking, stopping = asyncio.Event(), asyncio.Event()

    async def find_out(inputs: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        asking.set()
        await stopping.wait()
        while not ctx.cancelled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return DidNotHappen()

    async with after_a_death(Letter("in its first round", find_out)) as desk:
        handle = await desk.helix.resume(desk.letter.agent, SESSION)
        await asking.wait()
        await handle.interrupt("enough")
        stopping.set()
        assert isinstance(await handle.result(), Interrupted)
        assert desk.letter.sent == 1


class Wire:
    """A tool whose answers get lost on their way, in a process that lives on; `lost` says how many of them."""

    def __init__(self, policy: Any = None, *, lost: int = 1, effect: Literal["once", "repeatable"] = "once") -> None:
        self.runs = 0
        self.keys: set[str] = set()

        async def send(ctx: ToolContext[Any, Any], to: str = "her") -> str:
            """Send a letter, which cannot be taken back."""
            self.runs += 1
            self.keys.add(ctx.idempotency_key)
            ctx.record_usage("stamps", 1)
            if self.runs <= lost:
                raise OutcomeUnknown("no answer in 5 s.")
            return "sent"

        self.tool = tool(effect=effect, unknown_outcome=policy)(send)
        script = ScriptedModel([call("send", {}, id=CALL), "Well then."])
        self.agent = Agent(name="writer", model=script, tools=[self.tool])

    async def write(self, *answers: ApprovalAnswer | ToolAnswer) -> tuple[Any, str | None, list[str]]:
        """The call's result, why it has none, and what readers were told of the call."""
        async with await open_backend(f"memory://wire-{next(_numbers)}") as parts, asyncio.timeout(20):
            stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
            async with Executor(**stores, janitor_seconds=None) as helix:
                result = await (await helix.execute(self.agent, "Write to her.", SESSION)).result()
                for given in answers:
                    assert isinstance(result, Suspended)
                    [row] = (await helix.list_pending()).items
                    assert (row.tool_call_id, row.reason, row.input) == (CALL, "unknown_outcome", {"to": "her"})
                    await helix.submit_tool_result(SESSION, CALL, given)
                    result = await (await helix.resume(self.agent, SESSION)).result()
            assert isinstance(result, Completed)
            assert await parts.state.list_effects(SESSION) == ()
            used = await parts.usage.query_usage(UsageFilter(session_id=SESSION, source_type="custom"))
            assert len(used.items) == self.runs
            rows = await parts.state.load_transcript(SESSION)
            [found] = [row.message for row in rows if isinstance(row.message, ToolMessage)]
            chunks = await parts.streams.get_all_chunks(SESSION)
            about = [chunk.type for chunk in chunks if getattr(chunk, "tool_call_id", None) == CALL]
            return found.content, found.code, [each for each in about if each in ("tool_end", "tool_error")]


UNHEARD = "no answer in 5 s; it may or may not have taken effect."


async def test_a_tool_may_say_that_nobody_knows_and_its_policy_decides_as_after_a_death() -> None:
    async def found(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return Happened("it is in the box")

    async def not_there(given: Mapping[str, Any], ctx: ToolContext[Any, Any]) -> Reconciled:
        return DidNotHappen()

    unknown = "The outcome of this call is unknown: it may or may not have taken effect."
    approved, denied = ApprovalAnswer(approved=True), ApprovalAnswer(approved=False)
    expected: list[tuple[Wire, tuple[Any, ...], tuple[Any, str | None], int]] = [
        (Wire(), (ToolAnswer(result="it was sent"),), ("it was sent", None), 1),
        (Wire(), (denied,), (unknown, "outcome_unknown"), 1),
        (Wire(), (approved,), ("sent", None), 2),
        (Wire(lost=2), (approved, approved), ("sent", None), 3),
        (Wire("fail"), (), (UNHEARD, "outcome_unknown"), 1),
        (Wire("retry", lost=2), (), ("sent", None), 3),
        (Wire("retry", lost=99), (), (UNHEARD, "outcome_unknown"), 3),
        (Wire(found), (), ("it is in the box", None), 1),
        (Wire(not_there), (), ("sent", None), 2),
        (Wire(not_there, lost=99), (), (UNHEARD, "outcome_unknown"), 3),
        (Wire(effect="repeatable"), (), (UNHEARD, "outcome_unknown"), 1),
    ]
    for wire, answers, (content, code), runs in expected:
        told = "tool_end" if code is None else "tool_error"
        assert await wire.write(*answers) == (content, code, [told])
        assert (wire.runs, len(wire.keys)) == (runs, 1)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_stop_is_heard_while_another_try_has_the_call(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met = asyncio.Event()

    @tool
    async def note() -> str:
        """Take a note."""
        return "noted"

    @tool(effect="once")
    async def send() -> str:
        """Send a letter, which cannot be taken back."""
        return "never"

    calls = [call("send", {}, id=CALL), *[call("note", {}, id="c-2")] * others]
    agent = Agent(name="writer", model=ScriptedModel([reply(calls=calls), "Never."]), tools=[send, note])
    async with await open_backend("memory://") as parts:
        begin = parts.state.begin_effect

        async def meet_another(request: BeginEffect) -> EffectOutcome:
            # Somebody else's try, whose process may be frozen, or just gone: its lease says that it lives.
            await begin(msgspec.structs.replace(request, owner="another", lease_ms=600_000))
            outcome = await begin(request)
            met.set()
            return outcome

        monkeypatch.setattr(parts.state, "begin_effect", meet_another)
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, janitor_seconds=None) as helix, asyncio.timeout(10):
            handle = await helix.execute(agent, "Go", SESSION)
            await met.wait()
            await handle.interrupt("enough")
            assert isinstance(await handle.result(), Interrupted)
        rows = [row.message for row in await parts.state.load_transcript(SESSION)]
        told = [(row.tool_call_id, row.code) for row in rows if isinstance(row, ToolMessage)]
        assert told == [(CALL, "outcome_unknown"), *[("c-2", None)] * others]

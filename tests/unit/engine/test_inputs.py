"""What user code hands over and is not what it should be is refused, with a word about what to give instead."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.hooks import Hooks
from helix_agents.domain.errors import (
    DefinitionError,
    InvalidIdError,
    InvalidInputError,
    InvalidPageError,
    InvalidStateError,
    UnstorableValueError,
)
from helix_agents.domain.pending import PendingFilter, ToolAnswer
from helix_agents.domain.sessions import BranchPoint, SessionFilter
from helix_agents.domain.writes import StepWrites
from helix_agents.llm.scripted import ScriptedModel
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.contracts.executor.stage import SESSION

WRONG: Any = 5


def untyped(value: object) -> Any:
    """What nobody looks at the type of."""
    return value


def agent() -> Agent[Any, str, Any]:
    return Agent(name="talker", model=ScriptedModel(lambda _: "Fine."))


@pytest.fixture
async def helix() -> AsyncGenerator[Executor]:
    async with Executor.open("memory://", janitor_seconds=None) as helix:
        await (await helix.execute(agent(), "Hello", SESSION)).result()
        yield helix


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"session_id": ""}, InvalidIdError, "it is empty"),
        ({"session_id": WRONG}, InvalidIdError, "it is of type int; it has to be text"),
        ({"tags": "urgent"}, InvalidInputError, "it is the text 'urgent'; give a list"),
        ({"idempotency_key": WRONG}, InvalidInputError, "it is of type int; give a text"),
        ({"expires_in": "1h"}, DefinitionError, "give seconds above 0 or a timedelta"),
        ({"user_id": WRONG}, InvalidInputError, "This user id cannot be used: it is of type int; give a text"),
        ({"metadata": {"a": WRONG}}, InvalidInputError, "This metadata cannot be used: .*; give a dict of texts"),
        ({"tags": [WRONG]}, InvalidInputError, "it is of type int; give a text"),
        ({"branch": "s-1"}, InvalidInputError, "This branch cannot be used: it is of type str; give BranchPoint"),
        ({"branch": BranchPoint(from_session_id="")}, InvalidIdError, "it is empty"),
        ({"model": WRONG}, InvalidInputError, 'it is 5; give a name like "openai:gpt-5", or a model adapter'),
        ({"hooks": Hooks}, InvalidInputError, "This hook cannot be used: .*derives from Hooks"),
        ({"state": {"a": 1}}, InvalidStateError, "the agent has no state; define it with Agent"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
async def test_what_a_turn_cannot_begin_with(
    helix: Executor, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        await helix.execute(agent(), "Hello", **given)
    assert (await helix.sessions.list()).total == 1


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"mode": "backwards"}, InvalidInputError, "'backwards' is not one of 'continue', 'with_message'"),
        ({"mode": "with_message"}, InvalidInputError, "needs message=…"),
        ({"mode": "from_checkpoint"}, InvalidInputError, "needs checkpoint_id=…"),
        ({"mode": "from_checkpoint", "checkpoint_id": WRONG}, InvalidIdError, "it is of type int"),
        ({"checkpoint_id": "beginning"}, InvalidInputError, "use mode='from_checkpoint'"),
        ({"mode": "with_message", "message": WRONG}, InvalidInputError, "it is of type int; give a text"),
        ({"mode": "with_message", "message": untyped(b"Hi")}, InvalidInputError, "it is of type bytes; give a text"),
    ],
)
async def test_how_a_session_cannot_be_gone_on_with(
    helix: Executor, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    before = await helix.sessions.get(SESSION)
    with pytest.raises(error, match=told):
        await helix.resume(agent(), SESSION, **given)
    assert await helix.sessions.get(SESSION) == before


@pytest.mark.parametrize("wrong", [5, b"bytes", ["a"], "half \ud83d", ""], ids=repr)
async def test_what_no_session_can_be_called(helix: Executor, wrong: Any) -> None:
    sessions = helix.sessions
    for entry in (
        helix.execute(agent(), "Hello", wrong),
        helix.execute(agent(), "Hello", branch=BranchPoint(from_session_id=wrong)),
        helix.resume(agent(), wrong),
        helix.retry(agent(), wrong),
        helix.rewind(wrong, "beginning"),
        helix.rewind(SESSION, wrong),
        helix.get_handle(agent(), wrong),
        helix.submit_tool_result(wrong, "call", ToolAnswer(result=1)),
        helix.submit_tool_result(SESSION, wrong, ToolAnswer(result=1)),
        helix.interrupt(wrong),
        helix.abort(wrong),
        sessions.get(wrong),
        sessions.find(wrong),
        sessions.messages(wrong),
        sessions.runs(wrong),
        sessions.delegations(wrong),
        sessions.checkpoints(wrong),
        sessions.snapshot(wrong),
        sessions.update_state(wrong, StepWrites()),
        sessions.delete(wrong),
    ):
        with pytest.raises(InvalidIdError):
            await entry
    assert isinstance(await helix.can_resume(agent(), wrong), InvalidIdError)
    assert (await helix.sessions.list()).total == 1


async def test_what_is_no_agent(helix: Executor) -> None:
    name: Any = "talker"
    for entry in (
        helix.execute(name, "Hello"),
        helix.resume(name, SESSION),
        helix.retry(name, SESSION),
        helix.get_handle(name, SESSION),
        helix.can_resume(name, SESSION),
    ):
        with pytest.raises(InvalidInputError, match="it is 'talker'; give the Agent itself, not its name"):
            await entry


async def test_a_page_that_is_no_number(helix: Executor) -> None:
    everything: Any = "all"
    with pytest.raises(InvalidPageError, match="limit=all"):
        await helix.list_pending(limit=everything)


async def test_a_reason_that_is_no_text_stops_nothing(helix: Executor) -> None:
    with pytest.raises(UnstorableValueError, match="reason"):
        await helix.interrupt(SESSION, WRONG)


async def test_a_script_that_is_one_text_is_refused_and_a_step_that_is_none_is_told(helix: Executor) -> None:
    with pytest.raises(DefinitionError, match=r"write \['Hello'\]"):
        ScriptedModel("Hello")
    wrong = Agent(name="wrong", model=ScriptedModel([WRONG]))
    ended = await (await helix.execute(wrong, "Hello")).result()
    assert "a step of a script is a text, call(…), reply(…)" in getattr(ended, "error", "")


@pytest.mark.parametrize("given", [{"hooks": Hooks()}, {"model": ScriptedModel(["Mine."])}], ids=["hooks", "model"])
async def test_what_is_given_for_one_call_is_not_forgotten_where_others_drive(
    helix: Executor, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(helix._runtime, "works", False)
    with pytest.raises(InvalidInputError, match="drives no runs; give them to the agent, or to a worker"):
        await helix.execute(agent(), "Hello", **given)
    assert (await helix.sessions.list()).total == 1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda helix: helix.list_pending("s-1"), r"of type str; give PendingFilter\(root_session_id=…\)"),
        (lambda helix: helix.list_pending(PendingFilter(states=untyped("waiting"))), "Expected `array`, got `str`"),
        (lambda helix: helix.sessions.list("s-1"), r"of type str; give SessionFilter\(user_id=…\)"),
        (lambda helix: helix.sessions.list(SessionFilter(tags=untyped("abc"))), "Expected `array`, got `str`"),
        (lambda helix: helix.usage_by_day("s-1"), r"of type str; give UsageFilter\(session_id=…\)"),
        (lambda helix: helix.sessions.update_state(SESSION, {"a": 1}), r"of type dict; give StepWrites\(ops="),
    ],
)
async def test_what_is_no_filter_and_no_change_is_told_what_to_write(helix: Executor, asked: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        await asked(helix)

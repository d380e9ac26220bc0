"""A handoff that could not work is refused where it is defined, or where an executor learns of it."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypeForm

from helix_agents import (
    Agent,
    Executor,
    Handoff,
    InMemoryWorkspaces,
    LocalWorkspaces,
    ScriptedModel,
    Workspace,
    flow,
    tool,
)
from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.handoffs import circle_of
from helix_agents.agent.output import fits_output
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.errors import DefinitionError, UnknownModelError
from helix_agents.flows.flow_run import FlowRun

MODEL = ScriptedModel([])


class Notes(BaseModel):
    seen: list[str] = []


class Other(BaseModel):
    number: int = 0


class Report(BaseModel):
    title: str


def agent(name: str = "billing", **fields: Any) -> AnyAgent:
    return Agent(**{"name": name, "model": MODEL, "description": f"The {name}.", **fields})


def refused(*handoffs: Any, **fields: Any) -> str:
    with pytest.raises(DefinitionError) as refusal:
        agent("desk", handoffs=list(handoffs), **fields)
    return str(refusal.value)


async def _async(state: Any, given: Any) -> Any: ...


def test_what_is_no_agent_is_refused_with_what_to_write_instead():
    assert "write handoffs=[…]" in str(refused_list(agent()))
    assert "write Handoff('billing', description=…)" in refused("billing")
    assert "give the agent itself" in refused(agent().as_tool())
    assert "is not an Agent" in refused(5)
    assert "when to hand over; give the agent a description=…" in refused(Agent(name="x", model=MODEL))
    assert "when to hand over" in refused(Handoff("billing"))
    assert "a name has 1 to 64" in refused(Handoff("no name", description="x"))


def refused_list(given: Any) -> DefinitionError:
    with pytest.raises(DefinitionError) as refusal:
        Agent(name="desk", model=MODEL, handoffs=given)
    return refusal.value


def test_an_agent_behind_another_service_is_delegated_to():
    from helix_agents import a2a_agent_tool

    elsewhere = a2a_agent_tool("http://localhost:1", name="tides", description="Tides.")
    assert "has its own session there: delegate to it" in refused(elsewhere)


def test_a_flow_does_not_take_over():
    @flow
    async def steps(run: FlowRun) -> str:
        """Goes through steps."""
        return ""

    assert "is a flow, which works on a turn from its beginning" in refused(steps)


def test_a_handoff_to_itself_or_twice_to_the_same_is_refused():
    assert "hands over to itself" in refused(Handoff("desk", description="x"))
    assert "two of its handoffs are to 'billing'" in refused(agent(), Handoff(agent(), description="again"))
    inner = agent("inner", handoffs=[agent("billing")])
    assert "are called 'billing'; rename one" in refused(agent("billing"), inner)


def test_a_state_function_is_a_plain_function_of_state_and_input():
    async def streaming(state: Any, given: Any) -> AsyncGenerator[Any]:
        yield state

    def generated(state: Any, given: Any) -> Any:
        yield state

    wrongs: list[Any] = [Notes, "x", _async, streaming, generated, lambda state: state]
    for wrong in wrongs:
        assert "is not a plain function of the state so far and the input" in refused(Handoff(agent(), state=wrong))


def test_states_of_different_types_need_a_function_even_past_an_agent_that_has_none():
    text = refused(agent(state=Other), state=Notes)
    assert "its state is a Notes, that of 'billing' a Other" in text
    assert "Handoff(billing, state=lambda state, input: Other(…))" in text
    between = agent("between", handoffs=[agent(state=Other)])
    assert "and its conversations may get there" in refused(between, state=Notes)
    made = Handoff(agent(state=Other), state=lambda state, given: Other())
    agent("desk", state=Notes, handoffs=[made])
    agent("desk", handoffs=[agent(state=Other)])
    agent("desk", state=Notes, handoffs=[agent(state=Notes), agent("plain")])


def test_the_other_agent_has_to_produce_what_this_one_may_produce():
    assert "who runs 'desk' gets text, but 'billing' produces Report" in refused(agent(output=Report))
    assert "gets Report, but 'billing' produces text" in refused(agent(), output=Report)
    agent("desk", output=Report, handoffs=[agent(output=Report)])
    either: Any = TypeForm(Report | str)
    agent("desk", output=either, handoffs=[agent(output=Report), agent("plain"), agent("both", output=either)])
    assert fits_output(None, str)
    assert not fits_output(either, Report)


def test_a_conversation_has_one_workspace(tmp_path: Path):
    one = agent("one", workspace=Workspace(InMemoryWorkspaces()))
    other = agent("other", workspace=Workspace(LocalWorkspaces(tmp_path)))
    text = refused(one, other)
    assert "may work in the same conversation, but have workspaces of different providers" in text


def test_the_name_of_its_tool_belongs_to_it():
    with pytest.raises(DefinitionError, match="belong to built-in tools"):

        @tool(name="handoff__billing")
        async def mine() -> str:
            """Mine."""
            return ""


def test_agents_that_are_only_named_are_looked_for_where_an_executor_is_opened():
    back = Handoff("desk", description="All else.")
    billing = agent(handoffs=[back])
    desk = agent("desk", handoffs=[billing])
    assert list(circle_of(desk)) == ["desk", "billing"]
    assert list(circle_of(billing)) == ["billing"]
    AgentRegistry([desk]).check_handoffs()
    AgentRegistry([billing, desk]).check_handoffs()
    with pytest.raises(DefinitionError, match="'desk', which is not an agent that is known here; register that agent"):
        AgentRegistry([billing]).check_handoffs()
    unfit = agent("desk", output=Report)
    with pytest.raises(DefinitionError, match="'desk' produces Report"):
        AgentRegistry([billing, unfit]).check_handoffs()
    assert AgentRegistry([desk]).find("billing") is billing


async def test_an_executor_refuses_what_it_cannot_carry_out_before_anything_runs():
    billing = agent(handoffs=[Handoff("desk", description="All else.")])
    with pytest.raises(DefinitionError, match="not an agent that is known here"):
        await Executor.open("memory://", agents=[billing])
    async with Executor.open("memory://") as helix:
        with pytest.raises(DefinitionError, match="not an agent that is known here"):
            await helix.execute(billing, "Hello")


async def test_a_run_is_refused_if_an_agent_that_is_only_named_could_not_work_here():
    desk = agent("desk", handoffs=[Handoff("billing", description="Money.")])
    async with Executor.open("memory://", agents=[desk, agent(model="nobodys:model")]) as helix:
        with pytest.raises(UnknownModelError):
            await helix.execute(desk, "Hello", "s-1")
        assert await helix.sessions.find("s-1") is None

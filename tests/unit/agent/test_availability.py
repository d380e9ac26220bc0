"""A tool may have a function that decides whether a model is offered it: every kind of tool takes one."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.availability import Conditional, withheld_from
from helix_agents.agent.client_tools import ask_human, client_tool
from helix_agents.agent.context import RunContext, RunLink
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.state_type import NoState
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.mcp_tools.catalogue import catalogue_of
from helix_agents.mcp_tools.server import MCPToolServer
from helix_agents.server.remote import remote_agent_tool


class Question(BaseModel):
    text: str


def always(ctx: RunContext[Any]) -> bool:
    return True


def go() -> None:
    """Go somewhere."""


def yields(ctx: RunContext[Any]) -> Any:
    yield True


async def yields_later(ctx: RunContext[Any]) -> Any:
    yield True


class ByAgent:
    """An object that decides."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, ctx: RunContext[Any]) -> bool:
        return ctx.agent in self.names

    async def later(self, ctx: RunContext[Any]) -> bool:
        return self(ctx)


def context(agent: str = "writer") -> RunContext[Any, Any]:
    link = RunLink(draft=StateDraft.holding(NoState()))
    return RunContext(session_id="s", run_id="r", step=1, agent=agent, deps=None, link=link)


def mcp_tool(**options: Any) -> Tool[..., Any]:
    offered = catalogue_of([{"name": "search", "inputSchema": {"type": "object", "properties": {}}}])
    [made] = MCPToolServer("docs", url="https://docs.example/mcp").tools(catalogue=offered, **options)
    return made


def agent(**options: Any) -> Agent[Any, Any, Any]:
    return Agent(**{"name": "other", "model": "openai:gpt-5", "description": "Another.", **options})


KINDS: dict[str, Callable[..., Tool[..., Any]]] = {
    "tool": lambda **options: tool(**options)(go),
    "client tool": lambda **options: client_tool(**options)(go),
    "client tool by name": lambda **options: client_tool(name="x", description="X.", input=Question, **options),
    "question": ask_human,
    "sub-agent": lambda **options: agent().as_tool(**options),
    "sub-agent tool": lambda **options: sub_agent_tool(agent(), **options),
    "remote agent": lambda **options: remote_agent_tool("https://h", "other", description="Other.", **options),
    "MCP tool": mcp_tool,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tool_takes_a_function_that_decides_whether_it_is_offered(kind: str) -> None:
    made = KINDS[kind](available=always)
    assert made.available is always
    assert agent(tools=[made]).conditional_tools == (Conditional(made.name, always),)
    with pytest.raises(DefinitionError, match="available=True is not a function"):
        KINDS[kind](available=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_without_such_a_function_is_always_offered(kind: str) -> None:
    assert agent(tools=[KINDS[kind]()]).conditional_tools == ()


@pytest.mark.parametrize(
    ("available", "teaches"),
    [
        (False, r"available=False is not a function of the run; to leave a tool out for good, leave it out of the"),
        ("ann", r"available='ann' is not a function of the run"),
        (ByAgent, r"available=<class .*ByAgent'> is not a function of the run"),
        (yields, "available is a generator, which runs nothing"),
        (yields_later, "available is a generator, which runs nothing"),
        (lambda: True, r"available is called with the run; write it as a function of it, \(ctx\)"),
        (lambda given, ctx: True, "available is called with the run"),
        (lambda *, ctx: True, "available is called with the run"),
    ],
)
def test_what_could_not_decide_is_refused_when_the_tool_is_defined(available: Any, teaches: str) -> None:
    with pytest.raises(DefinitionError, match=teaches):
        tool(available=available)(go)


async def test_functions_methods_objects_and_partials_decide_in_whatever_form() -> None:
    def named(name: str, ctx: RunContext[Any], *, other: bool = False) -> bool:
        return ctx.agent == name

    by_name = ByAgent("writer")
    for available in (by_name, by_name.later, functools.partial(named, "writer"), lambda ctx: ctx.agent == "writer"):
        made = tool(available=available)(go)
        conditional = agent(tools=[made]).conditional_tools
        assert await withheld_from(conditional, context("writer")) == frozenset()
        assert await withheld_from(conditional, context("reader")) == {"go"}


async def test_a_function_that_says_nothing_says_no() -> None:
    def forgets(ctx: RunContext[Any]) -> Any:
        always(ctx)

    assert await withheld_from([Conditional("go", forgets)], context()) == {"go"}


async def test_what_a_function_raises_is_raised_and_what_would_end_the_process_is_contained() -> None:
    def leave(ctx: RunContext[Any]) -> bool:
        raise SystemExit(3)

    def fail(ctx: RunContext[Any]) -> bool:
        raise KeyError("who")

    with pytest.raises(KeyError, match="who"):
        await withheld_from([Conditional("go", fail)], context())
    with pytest.raises(RuntimeError, match=r"The availability predicate of 'go' raised SystemExit"):
        await withheld_from([Conditional("go", leave)], context())

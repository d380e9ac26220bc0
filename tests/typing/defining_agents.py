# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
# ruff: noqa: B018, PIE790
"""What a type checker knows about agents and tools; `test_types.py` reads its verdict.

A line with an ignore comment has to be wrong: where nothing is wrong any more, the checker says so.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, assert_type

from pydantic import BaseModel
from typing_extensions import TypeForm

from helix_agents import (
    Agent,
    AgentServer,
    DBOSAgentExecutor,
    DefaultAnswer,
    Executor,
    FlowRun,
    Handoff,
    Hooks,
    InMemoryWorkspaces,
    Memory,
    ModelSettings,
    RetryOutput,
    RunContext,
    TemporalAgentExecutor,
    Tool,
    ToolContext,
    Workspace,
    ask_human,
    client_tool,
    flow,
    tool,
)
from helix_agents.agent.context import CompletedStep, RunInfo
from helix_agents.agent.hook_events import AfterToolEvent, HandoffEvent, TextDeltaEvent
from helix_agents.agent.state_type import NoState


class Notes(BaseModel):
    queries: list[str] = []


class Report(BaseModel):
    title: str
    body: str


@dataclass
class Services:
    archive: dict[str, str]


# ---- the example everybody meets first


@tool
async def search(ctx: ToolContext[Notes], query: str) -> list[str]:
    """Search the archive."""
    ctx.state.queries.append(query)
    return [f"a page about {query}"]


@tool(require_approval=True)
async def publish(report_id: str) -> str:
    """Publish a finished report."""
    return f"published {report_id}"


writer = Agent(
    name="writer",
    model="anthropic:claude-sonnet-4-5",
    instructions="Write short reports.",
    tools=[search, publish],
    state=Notes,
    output=Report,
)
assert_type(writer, Agent[Notes, Report, Any])
assert_type(writer.load_output({"title": "Tides", "body": "…"}), Report)


# ---- a tool is still the function it was, with its types


async def calling_a_tool() -> None:
    ctx = ToolContext.standalone(Notes())
    assert_type(ctx.state, Notes)
    assert_type(await search(ctx, "tides"), list[str])
    assert_type(await search(ctx, query="tides"), list[str])
    await search(ctx)  # pyright: ignore[reportCallIssue]
    await search(ctx, 7)  # pyright: ignore[reportArgumentType]
    await search(ToolContext.standalone(Report(title="", body="")), "tides")  # pyright: ignore[reportArgumentType]


@tool
def look_up(page: int, *, ctx: ToolContext[Notes, Services]) -> str | None:
    """Look up a page of the archive."""
    assert_type(ctx.deps, Services)
    ctx.deps.archives  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ctx.state.querys.append("x")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return ctx.deps.archive.get(ctx.state.queries[page])


assert_type(look_up(3, ctx=ToolContext.standalone(Notes(), Services({}))), str | None)


# ---- what an agent leaves out has a type too

talker = Agent(name="talker", model="openai:gpt-5")
assert_type(talker, Agent[NoState, str, Any])
lister = Agent(name="lister", model="openai:gpt-5", output=list[str])
assert_type(lister.load_output(["a"]), list[str])
chooser = Agent(name="chooser", model="openai:gpt-5", output=Report | int)
assert_type(chooser.load_output(3), Report | int)
spelled_out = Agent(name="chooser", model="openai:gpt-5", output=TypeForm(Report | int))
assert_type(spelled_out.load_output(3), Report | int)

Agent(name="nameless")  # pyright: ignore[reportCallIssue]
Agent(name="clerk", model="openai:gpt-5", workspace=Workspace(InMemoryWorkspaces(), capabilities=["fs", "snapshot"]))
Agent(name="clerk", model="openai:gpt-5", workspace=True)  # pyright: ignore[reportArgumentType]
Workspace(InMemoryWorkspaces(), capabilities=["files"])  # pyright: ignore[reportArgumentType]
Agent(name="friend", model="openai:gpt-5", memory=Memory(entity=lambda ctx: ctx.metadata.get("team")))
Agent(name="friend", model="openai:gpt-5", memory=True)  # pyright: ignore[reportArgumentType]
Agent(name="odd", model="openai:gpt-5", tools=[print])  # pyright: ignore[reportArgumentType]
writer.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


# ---- an executor knows its settings, and a run the output of its agent


@asynccontextmanager
async def open_services(session_id: str, user_id: str | None) -> AsyncGenerator[Services]:
    yield Services(archive={})


@asynccontextmanager
async def open_for_a_run(run: RunInfo) -> AsyncGenerator[Services]:
    yield Services(archive={})


async def running() -> None:
    async with Executor.open("memory://", agents=[writer, talker], deps=open_services, lease_ms=1_000) as helix:
        assert_type(await (await helix.execute(writer, "Write")).output(), Report)
        await helix.execute(talker, ["Write"])  # pyright: ignore[reportArgumentType]
        await helix.submit_tool_result("s-1", "c-1", True)  # pyright: ignore[reportArgumentType]
    Executor.open("memory://", agent=[writer])  # pyright: ignore[reportCallIssue]
    Executor.open("memory://", agents=writer)  # pyright: ignore[reportArgumentType]
    Executor.open("memory://", deps=open_for_a_run)  # pyright: ignore[reportArgumentType]
    DBOSAgentExecutor.open("sqlite:///helix.db", agents=[writer], placement="shared", lease_ms=1_000)
    TemporalAgentExecutor.open("sqlite:///helix.db", agents=[writer], task_queue="helix")
    TemporalAgentExecutor.open("sqlite:///helix.db", lease_ms=1_000)  # pyright: ignore[reportCallIssue]


# ---- functions of an agent see its state


def instructions(ctx: RunContext[Notes, Services]) -> str:
    return f"You asked {len(ctx.state.queries)} times of {len(ctx.deps.archive)}."


briefed = Agent(name="briefed", model="openai:gpt-5", state=Notes, instructions=instructions)
assert_type(briefed, Agent[Notes, str, Services])


async def async_instructions(ctx: RunContext[Report]) -> str:
    return ctx.state.title


Agent(
    name="terse",
    model="openai:gpt-5",
    state=Notes,
    instructions=lambda ctx: ctx.state.queries[0],
    stop_when=lambda step: step.called("search") and len(step.state.queries) > 3,
    migrate_state=lambda old, from_version: {"queries": old["searches"]} if from_version < 2 else old,
)
Agent(name="a", model="openai:gpt-5", state=Notes, instructions=lambda ctx: ctx.state.titel)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType, reportUnknownMemberType]
Agent(name="b", model="openai:gpt-5", state=Notes, instructions=async_instructions)  # pyright: ignore[reportArgumentType]


def enough(step: CompletedStep[Notes]) -> bool | str:
    return "enough" if step.state.queries else False


Agent(name="c", model="openai:gpt-5", state=Notes, stop_when=enough)


# ---- hooks


class Audit(Hooks[Notes]):
    async def after_tool(self, ctx: RunContext[Notes], event: AfterToolEvent) -> None:
        ctx.state.queries.append(event.tool_name)

    def on_text_delta(self, ctx: RunInfo, event: TextDeltaEvent) -> None:
        ctx.state  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class Everywhere(Hooks):
    async def after_tool(self, ctx: RunContext, event: TextDeltaEvent) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


Agent(name="d", model="openai:gpt-5", state=Notes, hooks=Audit())
Agent(name="e", model="openai:gpt-5", state=Notes, hooks=[Audit(), Everywhere()])
Agent(name="f", model="openai:gpt-5", state=Notes, hooks=Hooks(after_tool=lambda ctx, event: print(event.result)))
Agent(name="g", model="openai:gpt-5", state=Report, hooks=Audit())  # pyright: ignore[reportArgumentType]


# ---- tools that run elsewhere


@client_tool(deadline=3600, on_deadline=DefaultAnswer([]))
def pick_files(folder: str) -> list[str]:
    """Let the person pick files."""
    ...


@client_tool
def where() -> tuple[float, float]:
    """Where the person is."""
    ...


assert_type(pick_files, Tool[[str], list[str]])  # pyright: ignore[reportAssertTypeFailure]
assert_type(ask_human("How many?", answer=int), Tool[..., int])
assert_type(ask_human(), Tool[..., str])
client_tool(name="weather", description="The weather.", input=Report, output=str)
client_tool(finish_with=True)  # pyright: ignore[reportCallIssue]


def costly(given: Mapping[str, Any], ctx: RunContext[Any]) -> bool:
    return given["amount"] > 100


@tool(require_approval=costly, effect="once", unknown_outcome="retry", deadline=None, timeout=5)
def pay(amount: int) -> None:
    """Pay somebody."""


tool(effect="twice")  # pyright: ignore[reportArgumentType]


# ---- checks of the output


def sourced(ctx: RunContext[Notes, Services], output: Report) -> None:
    if not ctx.state.queries:
        raise RetryOutput("name your sources")


async def polite(ctx: RunContext[Any, Any], output: object) -> None: ...


def brief(ctx: RunContext, output: str) -> None: ...


Agent(name="g", model="openai:gpt-5", state=Notes, output=Report, output_checks=[sourced, polite])
Agent(name="h", model="openai:gpt-5", output_checks=[brief, polite])
Agent(name="i", model="openai:gpt-5", state=Notes, output=Report, output_checks=[brief])  # pyright: ignore[reportArgumentType]
Agent(name="j", model="openai:gpt-5", output_checks=sourced)  # pyright: ignore[reportArgumentType]


# ---- tools that are not always offered


def is_curious(ctx: RunContext[Notes, Services]) -> bool:
    return bool(ctx.state.queries and ctx.deps.archive)


async def is_ready(ctx: RunContext[Notes]) -> bool:
    return len(ctx.state.queries) > 1


@tool(available=is_curious)
async def ponder(ctx: ToolContext[Notes], page: int) -> str:
    """Think about a page."""
    return ctx.state.queries[page]


async def pondering() -> None:
    assert_type(await ponder(ToolContext.standalone(Notes()), 3), str)
    await ponder(ToolContext.standalone(Notes()), "x")  # pyright: ignore[reportArgumentType]


assert_type(ask_human("How many?", answer=int, available=is_ready), Tool[..., int])
client_tool(available=lambda ctx: ctx.step > 1)
talker.as_tool(available=is_ready)
tool(available=True)  # pyright: ignore[reportArgumentType]
tool(available=costly)  # pyright: ignore[reportArgumentType]
ModelSettings(tool_choice="required")
ModelSettings(tool_choice="ponder")
ModelSettings(tool_choice=True)  # pyright: ignore[reportArgumentType]


async def names(helix: Executor) -> list[str]:
    page = await helix.sessions.list()
    assert_type(page[0].session_id, str)
    return [session.agent_type for session in page]


# ---- a server knows which executor it hosts

server = AgentServer(Executor.open(agents=[lister]), allow_unauthenticated=True)
anyhow: AgentServer = server


async def beside(question: str) -> list[str]:
    run = await server.executor.execute(lister, question)
    return await run.output()


# ---- a flow knows what its calls take and give


@tool
async def find_out(ctx: ToolContext, query: str) -> list[str]:
    """Search the archive."""
    return []


@tool(require_approval=True)
def refund(amount: int, *, reason: str = "") -> float:
    """Give money back."""
    return float(amount)


sure = ask_human("Sure?", answer=bool, name="sure")


@flow(tools=[find_out, refund, sure, pick_files, where], agents=[writer, talker])
async def complaint(run: FlowRun, order: Report) -> Report:
    assert_type(await run.call(find_out, "tides"), list[str])
    assert_type(await run.call(refund, 20, reason="late"), float)
    assert_type(await run.call(pick_files, folder="/"), list[str])
    assert_type(await run.call(where), tuple[float, float])
    assert_type(await run.call(sure), bool)
    assert_type(await run.ask(talker, "Hello"), str)
    report, paid = await asyncio.gather(run.ask(writer, order.title), run.call(refund, 3))
    assert_type(report, Report)
    assert_type(paid, float)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run.call(find_out, query="tides"))
    assert_type(task.result(), list[str])
    await run.call(refund, "all")  # pyright: ignore[reportCallIssue, reportArgumentType]
    await run.call(refund)  # pyright: ignore[reportCallIssue]
    await run.call(refund, 3, why="late")  # pyright: ignore[reportCallIssue]
    await run.ask(refund, "Hello")  # pyright: ignore[reportArgumentType]
    return report


@flow
async def quick(run: FlowRun) -> list[int]:
    return []


assert_type(complaint, Agent[NoState, Report, Any])


async def complaining(helix: Executor) -> None:
    assert_type(await helix.run(complaint, "…"), Report)
    assert_type(await (await helix.execute(quick, "Go")).output(), list[int])


# ---- handing a conversation over


class Refund(BaseModel):
    amount: float


refunds = Agent(name="refunds", description="Money back.", model="openai:gpt-5", output=Refund, state=Notes)
front = Agent(
    name="front",
    model="openai:gpt-5",
    state=Notes,
    output=TypeForm(Refund | str),
    handoffs=[refunds, Handoff("desk", description="All else."), Handoff(refunds, state=lambda state, given: state)],
)


async def hand_over(helix: Executor) -> None:
    handle = await helix.execute(front, "My money back")
    assert_type(await handle.output(), Refund | str)


Agent(name="x", model="openai:gpt-5", handoffs=["refunds"])  # pyright: ignore[reportArgumentType]
Agent(name="x", model="openai:gpt-5", handoffs=[refunds.as_tool()])  # pyright: ignore[reportArgumentType]
Handoff(refunds, "when it is about money")  # pyright: ignore[reportCallIssue]


def watch_handoffs(ctx: RunContext[Notes], event: HandoffEvent) -> None:
    assert_type(event.to, str)
    assert_type(event.input, Mapping[str, Any])


Hooks[Notes, Any](on_handoff=watch_handoffs)

"""The agents of the demo: an editor, and researchers who buy articles. Worth reading as an example."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.outcomes import DidNotHappen, Happened, Reconciled
from helix_agents.agent.tools import tool
from helix_agents.cli.commands.demo.shop import Shop
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.llm.script import Step, call, finish, reply
from helix_agents.llm.scripted import RoutingScriptedModel
from helix_agents.ports.llm import LLMAdapter, ModelEvent, ModelRequest, TextPiece

TASK = "Why do some coasts have one tide a day? Publish a report."

FINDINGS = {
    "The moon's pull": "The moon pulls up two bulges of water, so most coasts pass under two high tides a day.",
    "The shape of basins": (
        "A sea basin swings like water in a bath. Where its own rhythm is near a day, as in the Gulf of Tonkin, one of "
        "the two tides is drowned out and a single one is left. Where it is near half a day, as in the North Atlantic, "
        "both are strong and nearly equal. Most coasts lie somewhere in between, with one high tide higher than the "
        "other, and a harbour can differ from its neighbour two hundred kilometres away."
    ),
    "Tide tables since 1833": "Two centuries of tables show that each port keeps its own mixture, year after year.",
}


class Notes(BaseModel):
    """What the editor writes down."""

    questions: list[str] = []


class Report(BaseModel):
    """What the desk delivers."""

    title: str
    summary: str


def find_order(given: Mapping[str, Any], ctx: ToolContext[Any, Shop]) -> Reconciled:
    """Find out whether an order took place although its process died: the shop knows it by its idempotency key."""
    found = ctx.deps.find(ctx.idempotency_key)
    return DidNotHappen() if found is None else Happened(f"bought {found.title!r} (found in the order book)")


@tool(effect="once", unknown_outcome=find_order)
def buy_article(ctx: ToolContext[Any, Shop], title: str) -> str:
    """Buy an article on a question. It costs money, so it must not happen twice."""
    ctx.deps.write("order", title, ctx.idempotency_key)
    ctx.deps.wait_for_confirmation(ctx.idempotency_key)
    return f"bought {title!r}"


@tool
def take_note(ctx: ToolContext[Notes, Shop], question: str) -> str:
    """Write down a question to look into."""
    ctx.state.questions.append(question)
    return "noted"


@tool(require_approval=True)
def publish(ctx: ToolContext[Notes, Shop], title: str) -> str:
    """Publish the report. A person has to approve it."""
    ctx.deps.write("publish", title, ctx.idempotency_key)
    return f"published {title!r}"


def build_agents(model: str | LLMAdapter) -> list[AnyAgent]:
    """The editor, who delegates, and the researcher, who buys and reads articles."""
    researcher = Agent(
        name="researcher",
        description="Looks into one question: buys one article on it and sums it up.",
        model=model,
        instructions="Buy exactly one article on the question you are given, then sum it up in two sentences.",
        tools=[buy_article],
    )
    editor = Agent(
        name="editor",
        model=model,
        instructions=(
            "You run a research desk. First, in one reply: note the overall question and send out three researchers at "
            "once, each with one question. Then publish under a short title. Then deliver the report."
        ),
        tools=[take_note, researcher.as_tool(), publish],
        state=Notes,
        output=Report,
    )
    return [editor, researcher]


@asynccontextmanager
async def open_shop(folder: Path, session_id: SessionId, user_id: str | None) -> AsyncGenerator[Shop, None]:
    """Opens what the tools get as `ctx.deps`, in whichever process they run."""
    yield Shop(folder)


def scripted_model() -> RoutingScriptedModel:
    """A model that follows a script, at about the pace of a real one."""
    return RoutingScriptedModel({"editor": _EDITOR, "researcher": _researcher}, chunk=7, pace=_as_fast_as_one_reads)


_EDITOR: list[Step] = [
    reply(
        "Three questions decide this. I am sending three researchers out at once.",
        calls=[
            call("take_note", {"question": "Why do some coasts have one tide a day?"}),
            *(call("subagent__researcher", {"message": question}) for question in FINDINGS),
        ],
    ),
    reply("All three are back. The report is ready to go out.", calls=[call("publish", {"title": "One tide or two"})]),
    finish(
        {
            "title": "One tide or two",
            "summary": "The moon offers every coast two tides a day; the basin decides how many it keeps.",
        }
    ),
]


def _researcher(request: ModelRequest) -> Step:
    first = request.messages[0]
    question = first.content if isinstance(first, UserMessage) and isinstance(first.content, str) else ""
    if len(request.messages) == 1:
        return call("buy_article", {"title": question})
    return FINDINGS.get(question, "The article says little.")


async def _as_fast_as_one_reads(event: ModelEvent) -> None:
    if isinstance(event, TextPiece):
        await asyncio.sleep(0.025)

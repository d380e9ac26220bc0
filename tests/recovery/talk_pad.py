"""What a talk writes down in its state, and what has to stand there: it follows from what the tools answered."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel

from helix_agents.agent.context import ToolContext
from helix_agents.agent.merging import Merge
from helix_agents.agent.tools import tool
from helix_agents.domain.messages import Message, ToolMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.writes import Add, Append, Include, StepWrites

FROM_OUTSIDE = 1_000
"""What everybody outside spends, so that nobody takes it for what a tool spent."""


class Pad(BaseModel):
    """What was written down: in a list, and in fields that are merged, each in another way."""

    notes: list[str] = []
    spent: Annotated[int, Merge.SUM] = 0
    marks: Annotated[set[str], Merge.UNION] = set()
    shelf: Annotated[dict[str, str], Merge.KEYS] = {}


def pad_tools() -> list[Any]:
    """Tools that do nothing but write, and answer with what they wrote."""

    @tool
    async def note(ctx: ToolContext[Pad], text: str) -> str:
        """Write something down."""
        ctx.state.notes.append(text)
        return f"noted {text}"

    @tool
    async def spend(ctx: ToolContext[Pad], amount: int) -> str:
        """Spend something, or take it back."""
        ctx.state.spent += amount
        return f"spent {amount}"

    @tool
    async def mark(ctx: ToolContext[Pad], text: str) -> str:
        """Mark something, or rub the mark out."""
        if text in ctx.state.marks:
            ctx.state.marks.discard(text)
            return f"rubbed {text}"
        ctx.state.marks.add(text)
        return f"marked {text}"

    @tool
    async def shelve(ctx: ToolContext[Pad], name: str) -> str:
        """Put something on the shelf."""
        ctx.state.shelf[name] = str(ctx.tool_call_id)
        return f"shelved {name}"

    @tool
    async def clear(ctx: ToolContext[Pad], name: str) -> str:
        """Take something off the shelf."""
        return f"cleared {name}" if ctx.state.shelf.pop(name, None) else f"found {name} cleared"

    return [note, spend, mark, shelve, clear]


def written_outside(note: str) -> StepWrites:
    """A change from outside: all of it is there or none."""
    add = Add(key="spent", after=FROM_OUTSIDE)
    return StepWrites(ops=(Append(key="notes", items=[note]), add, Include(key="marks", items=[note])))


def check_pad(state: dict[str, JSON], transcript: Sequence[Message], outside: Iterable[str], about: str) -> None:
    """The state has what the calls wrote that say so, once each, and what these notes from outside came with."""
    pad, wanted = Pad.model_validate(state), Pad(notes=list(outside))
    wanted.spent, wanted.marks = FROM_OUTSIDE * len(wanted.notes), set(wanted.notes)
    for message in transcript:
        if isinstance(message, ToolMessage) and not message.error:
            _write(wanted, message)
    assert Counter(pad.notes) == Counter(wanted.notes), f"notes: {about}"
    assert pad.spent == wanted.spent, f"spent: {about}"
    assert pad.marks == wanted.marks, f"marks: {about}"
    assert pad.shelf == wanted.shelf, f"shelf: {about}"


def _write(pad: Pad, result: ToolMessage) -> None:
    """Do again what a result says was done: what calls of one reply did to the same thing, the later one decides."""
    if result.tool_name == "wire":
        pad.notes.append(f"wire {result.tool_call_id}")
        return
    match str(result.content).split():
        case ["noted", text] if result.tool_name == "note":
            pad.notes.append(text)
        case ["spent", amount] if result.tool_name == "spend":
            pad.spent += int(amount)
        case ["marked", text] if result.tool_name == "mark":
            pad.marks.add(text)
        case ["rubbed", text] if result.tool_name == "mark":
            pad.marks.discard(text)
        case ["shelved", name] if result.tool_name == "shelve":
            pad.shelf[name] = result.tool_call_id
        case ["cleared", name] if result.tool_name == "clear":
            pad.shelf.pop(name, None)
        case _:
            pass

"""Persistent agents: named children that keep their conversation, and the tools a parent has to work with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, Field

from helix_agents.agent.choices import check_choice
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError

if TYPE_CHECKING:
    from helix_agents.agent.agent import AnyAgent

CompanionMode: TypeAlias = Literal["blocking", "non_blocking"]


@dataclass(frozen=True)
class PersistentAgent:
    """An agent that another agent may keep as a companion.

    With `blocking`, the parent waits for each answer. With `non_blocking`, the parent continues; the child outlives the
    parent's run and even its process, and its end reaches the parent as a message, exactly once.
    """

    agent: "AnyAgent"
    mode: CompanionMode = "blocking"
    description: str | None = None

    def __post_init__(self) -> None:
        subject = f"PersistentAgent({self.agent!r})"
        if not hasattr(self.agent, "persistent_agents"):
            raise DefinitionError(subject, "it has to be given an Agent.")
        check_choice(subject, "mode", self.mode, get_args(CompanionMode))


class SpawnAgent(BaseModel):
    """Start a companion, or give a finished one a new task."""

    agent: str = Field(description="Which kind of companion.")
    initialMessage: str = Field(description="The task, with everything needed to do it.")  # noqa: N815
    name: str | None = Field(default=None, description="What to call it; chosen for you if left out.")


class SendMessage(BaseModel):
    """Send a companion a message: a running one is interrupted and continues with it, a finished one takes it on."""

    name: str
    message: str


class NamedChild(BaseModel):
    """One companion, by its name."""

    name: str


class NoInput(BaseModel):
    """No input is needed."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompanionTool(Tool[..., Any]):
    """A built-in tool for working with companions. The engine runs it after the commit that announced the call."""


SPAWN_AGENT = "companion__spawnAgent"

_TOOLS: dict[str, tuple[str, type[BaseModel]]] = {
    SPAWN_AGENT: ("Start a companion and give it a task.", SpawnAgent),
    "companion__sendMessage": ("Send a companion a further message.", SendMessage),
    "companion__listChildren": ("List your companions and their status.", NoInput),
    "companion__getChildStatus": ("Get the status of one companion, and its latest result.", NamedChild),
    "companion__terminateChild": ("Stop a companion for good.", NamedChild),
    "companion__waitForResult": ("Wait until a companion has finished, and get its result.", NamedChild),
}


def companion_tools(agents: Sequence[PersistentAgent], subject: str) -> tuple[CompanionTool, ...]:
    """The tools that an agent with these companions gets. Waiting is included only if at least one is blocking.

    Raises:
        DefinitionError: two companions are of the same kind, or an item is not a `PersistentAgent`.
    """
    if not agents:
        return ()
    for each in agents:
        if not isinstance(each, PersistentAgent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                subject, f"{each!r} in persistent_agents is not a PersistentAgent; wrap the agent in one."
            )
    kinds = [each.agent.name for each in agents]
    if len(set(kinds)) != len(kinds):
        raise DefinitionError(subject, "two persistent_agents have the same agent; give it once.")
    known = "; ".join(f"{each.agent.name}: {each.description or each.agent.description}" for each in agents)
    blocking = any(each.mode == "blocking" for each in agents)
    return tuple(
        CompanionTool(
            name=name,
            description=f"{about} Kinds: {known}" if form is SpawnAgent else about,
            input=InputType(form, f"Tool {name!r}"),
            function=_runs_in_the_engine,
            kind="companion",
        )
        for name, (about, form) in _TOOLS.items()
        if blocking or name != "companion__waitForResult"
    )


def _runs_in_the_engine(**_: Any) -> None:
    raise TypeError("a companion tool is run by an executor, not called")

"""Agents as tools: a call of one is a conversation of its own, whose result is the call's result."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.agent.names import SUBAGENT
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON, encode


class Delegation(BaseModel):
    """What a sub-agent is told, unless it declares an input of its own."""

    message: str = Field(description="The task, with everything needed to do it: nothing else is known there.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DelegationTool(Tool[..., Any]):
    """A tool whose calls are done by another agent, here or elsewhere, in a session of its own."""

    @property
    def child_type(self) -> str:
        """The name of the agent that does the work."""
        raise NotImplementedError

    def opening_message(self, values: dict[str, JSON]) -> UserMessage:
        """What the child is told first: the task as text, or its declared input as JSON."""
        return UserMessage(content=str(values["message"]) if self.is_plain else encode(values).decode())

    @property
    def is_plain(self) -> bool:
        """Whether the child is told a text, as no input type was declared."""
        return self.input.schema.get("properties", {}).keys() == {"message"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SubAgentTool(DelegationTool):
    """A tool whose calls are done by another agent of this process."""

    agent: AnyAgent

    @property
    def child_type(self) -> str:
        return self.agent.name


def sub_agent_tool(
    agent: AnyAgent,
    *,
    input: Any = None,
    description: str | None = None,
    timeout: Duration | None = None,
) -> SubAgentTool:
    """Let an agent delegate to another one.

    The child has a session, a state and tools of its own. What it does is visible in the parent's stream; what it
    waits for can be answered at the root.

    Args:
        agent: Who does the work.
        input: A type whose fields the parent's model fills in; a `message` if left out.
        description: When to delegate, for the parent's model; the agent's description if left out.
        timeout: How long the child may work before it is stopped. Time it waits for people does not count; time
            in which nobody drove it, after a crash, does.

    Raises:
        DefinitionError: nothing says what the agent does, or the input has no named fields.
    """
    name = f"{SUBAGENT}{agent.name}"[:64]
    subject = f"Tool {name!r}"
    if not (description or agent.description):
        raise DefinitionError(
            subject,
            "the model decides by the description when to delegate; give the agent a description=…, or the tool one.",
        )
    return SubAgentTool(
        name=name,
        description=description or agent.description,
        input=InputType(input or Delegation, subject),
        function=runs_as_an_agent,
        kind="agent",
        timeout_ms=optional_milliseconds(timeout, subject, "timeout"),
        agent=agent,
    )


def runs_as_an_agent(**_: Any) -> None:
    """Stands in for the function that a delegated call does not have."""
    raise TypeError("a sub-agent is run by an executor, not called")

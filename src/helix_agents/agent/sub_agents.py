"""Agents as tools: each call is its own conversation, whose result is the call's result."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.agent.names import SUBAGENT
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON, encode


class Delegation(BaseModel):
    """The input of a sub-agent that declares no input type."""

    message: str = Field(description="The task, with everything needed to do it: nothing else is known there.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DelegationTool(Tool[..., Any]):
    """A tool whose calls another agent does, here or elsewhere, in its own session."""

    @property
    def child_type(self) -> str:
        """The name of the agent that does the work."""
        raise NotImplementedError

    def opening_message(self, values: dict[str, JSON]) -> UserMessage:
        """The child's first message: the task as text, or its declared input as JSON."""
        return UserMessage(content=str(values["message"]) if self.is_plain else encode(values).decode())

    @property
    def is_plain(self) -> bool:
        """Whether the child gets plain text, because no input type was declared."""
        return self.input.schema.get("properties", {}).keys() == {"message"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SubAgentTool(DelegationTool):
    """A tool whose calls another agent of this process does."""

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
    available: AvailabilityPredicate | None = None,
) -> SubAgentTool:
    """Let an agent delegate to another one.

    The child has its own session, state and tools. What it does is visible in the parent's stream; what it waits for
    can be answered at the root.

    Args:
        agent: The agent that does the work.
        input: A type whose fields the parent's model fills in. Defaults to a single `message`.
        description: When to delegate, for the parent's model. Defaults to the agent's description.
        timeout: How long the child may work before it is stopped. Time spent waiting for people does not count; time
            in which no process drove it, after a crash, does.
        available: Decides before each model call whether the parent's model may delegate; see `tool`.

    Raises:
        DefinitionError: nothing says what the agent does, or the input has no named fields.
    """
    name = f"{SUBAGENT}{agent.name}"[:64]
    subject = f"Tool {name!r}"
    if not (description or agent.description):
        raise DefinitionError(
            subject,
            "the model decides from the description when to delegate; give the agent a description=…, or the tool one.",
        )
    return SubAgentTool(
        name=name,
        description=description or agent.description,
        input=InputType(input or Delegation, subject),
        function=runs_as_an_agent,
        kind="agent",
        timeout_ms=optional_milliseconds(timeout, subject, "timeout"),
        available=available,
        agent=agent,
    )


def runs_as_an_agent(**_: Any) -> None:
    """Placeholder for the function that a delegated call does not have."""
    raise TypeError("a sub-agent is run by an executor, not called")

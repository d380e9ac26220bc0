"""Output checks as a definition takes them, and what their answers mean."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from helix_agents import Agent, RetryOutput, ScriptedModel, ToolContext
from helix_agents.agent.output_checks import refused
from helix_agents.domain.errors import DefinitionError, ToolInputError


def accept(ctx: Any, output: Any) -> None: ...


def generator(ctx: Any, output: Any) -> Iterator[None]:
    yield None


def too_few(output: Any) -> None: ...


class Sourced(BaseModel):
    sources: list[str]

    @field_validator("sources")
    @classmethod
    def name_them(cls, given: list[str]) -> list[str]:
        if not given:
            raise RetryOutput("name your sources")
        return given


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (accept, r"is not a list; write output_checks=\[…\]"),
        ("all", "is not a list"),
        ({"a": accept}, "is not a list"),
        ([3], r"which is not a function of a run and its output: \(ctx, output\)"),
        ([too_few], "which is not a function of a run and its output"),
        ([accept, generator], "'generator' is a generator"),
    ],
)
def test_what_cannot_check_an_output_is_refused_when_the_agent_is_defined(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Agent(name="reader", model=ScriptedModel(["Hi."]), output_checks=given)


async def test_a_sync_check_does_not_hold_up_the_event_loop() -> None:
    met: list[int] = []

    def look(ctx: Any, output: Any) -> None:
        met.append(threading.get_ident())

    assert await refused([look], ToolContext.standalone(), "x", in_thread=asyncio.to_thread) is None
    assert met != [threading.get_ident()]


def test_a_validator_of_the_type_may_say_the_same() -> None:
    agent = Agent(name="reader", model=ScriptedModel([]), output=Sourced)
    assert agent.output_type is not None
    with pytest.raises(ToolInputError, match="name your sources"):
        agent.output_type.parse({"sources": []})

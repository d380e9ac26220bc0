"""Several models as one: who is asked, and what is raised where nobody answers."""

import re

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.fallback_model import FallbackModel
from helix_agents.domain.errors import (
    ContextTooLongError,
    DefinitionError,
    ModelError,
    ModelOverloadedError,
    ModelRefusedError,
    UnknownModelError,
)
from helix_agents.llm.scripted import ScriptedModel
from helix_agents.ports.llm import LLMAdapter, ModelEvent
from tests.support.asking import answer_of, events_of, question

REFUSED = ModelRefusedError("b", "no key")
BUSY = ModelOverloadedError("a", "busy")
LONG = ContextTooLongError("a", "too long")


def saying(said: str | ModelError, name: str = "scripted") -> ScriptedModel:
    return ScriptedModel(lambda _: said, name=name)


async def test_the_first_that_answers_is_named_and_those_after_it_are_not_asked() -> None:
    first, second, third = saying(REFUSED, "a"), saying("Here.", "b"), saying("Here, too.", "c")
    model = FallbackModel(first, second, third)
    done = await answer_of(model, question())
    assert (done.reply.text, done.answered_by) == ("Here.", "b")
    assert (first.asked, second.asked, third.asked) == (1, 1, 0)
    assert model.name == "a"


@pytest.mark.parametrize(
    ("problems", "raised"),
    [((BUSY, REFUSED), BUSY), ((REFUSED, BUSY), BUSY), ((LONG, REFUSED), LONG), ((REFUSED, REFUSED), REFUSED)],
)
async def test_where_nobody_answers_the_problem_that_may_pass_is_raised(
    problems: tuple[ModelError, ...], raised: ModelError
) -> None:
    with pytest.raises(type(raised), match=re.escape(str(raised))):
        await events_of(FallbackModel(*map(saying, problems)), question())


async def test_a_reply_that_has_begun_is_not_taken_over() -> None:
    async def break_off(_: ModelEvent) -> None:
        if broke:
            raise BUSY
        broke.append(True)

    broke: list[bool] = []
    spare = saying("Here.", "b")
    model = FallbackModel(ScriptedModel(["A long beginning."], name="a", pace=break_off), spare)
    with pytest.raises(ModelOverloadedError):
        await events_of(model, question())
    assert broke
    assert spare.asked == 0


async def test_models_by_name_are_opened_by_whoever_closes_them() -> None:
    opened: list[str | LLMAdapter] = []

    def adapter_of(model: str | LLMAdapter) -> LLMAdapter:
        opened.append(model)
        return saying(f"I am {model}.", str(model))

    model = FallbackModel("anthropic:claude", "openai:gpt").opened(adapter_of)
    assert opened == ["anthropic:claude", "openai:gpt"]
    assert (await answer_of(model, question())).reply.text == "I am anthropic:claude."
    with pytest.raises(UnknownModelError, match="nowhere"):
        await events_of(FallbackModel("nowhere:x", "openai:gpt"), question())


def test_what_could_not_work_is_refused_when_it_is_defined() -> None:
    with pytest.raises(DefinitionError, match="two models or more, not 1"):
        FallbackModel("openai:gpt")
    with pytest.raises(DefinitionError, match="names no provider"):
        Agent(name="a", model=FallbackModel("openai:gpt", "claude"))


def test_an_agent_says_which_models_it_may_ask() -> None:
    compaction = Compaction(above_tokens=9, model="google:gemini")
    agent = Agent(name="a", model=FallbackModel("openai:gpt", "anthropic:claude"), compaction=compaction)
    assert agent.models == ("openai:gpt", "anthropic:claude", "google:gemini")

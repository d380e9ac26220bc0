"""A provider of skills that hangs holds up no run."""

import asyncio

import pytest

from helix_agents import Agent, Completed, Executor, Failed, ScriptedModel, Skill
from helix_agents.agent import skills as skills_of_agents
from helix_agents.agent.skills import SkillList
from helix_agents.domain.messages import ToolMessage
from helix_agents.engine.steps import skills as skills_of_runs
from helix_agents.ports.skills import LoadedSkill, SkillInfo
from helix_agents.testing import ModelRequest, Step, call

TIDES = Skill(name="tides", description="Reads tide tables.", body="Look.")


class Shelf(SkillList):
    """A service that may stop answering."""

    def __init__(self) -> None:
        super().__init__([TIDES])
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_skills(self) -> list[SkillInfo]:
        await self.answers.wait()
        return [*await super().list_skills()]

    async def get_skill(self, name: str) -> LoadedSkill | None:
        await self.answers.wait()
        return await super().get_skill(name)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (skills_of_agents, skills_of_runs):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.02)


async def test_a_run_whose_skills_are_never_listed_fails_and_a_retry_asks_again() -> None:
    shelf = Shelf()
    shelf.answers.clear()
    agent = Agent(name="skipper", model=ScriptedModel(["High water."]), skills=shelf)
    async with asyncio.timeout(10), Executor.open("memory://", agents=[agent]) as helix:
        run = await helix.execute(agent, "When?", "s-1")
        match await run.result():
            case Failed(code="skills_unavailable", retryable=True, error=error):
                assert "did not answer within 0.02 seconds" in error
            case other:
                raise AssertionError(other)
        shelf.answers.set()
        assert isinstance(await (await helix.retry(agent, "s-1")).result(), Completed)


async def test_a_model_whose_skill_never_comes_is_told_so() -> None:
    shelf = Shelf()

    def hangs(_: ModelRequest) -> Step:
        shelf.answers.clear()
        return call("load_skill", {"name": "tides"})

    agent = Agent(name="skipper", model=ScriptedModel([hangs, "I do without."]), skills=shelf)
    async with asyncio.timeout(10), Executor.open("memory://", agents=[agent]) as helix:
        assert await (await helix.execute(agent, "When?", "s-1")).output() == "I do without."
        stored = (await helix.sessions.messages("s-1")).items
    [result] = [each.message for each in stored if isinstance(each.message, ToolMessage)]
    assert result.error

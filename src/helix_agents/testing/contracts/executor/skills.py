"""Scenarios of skills: a model sees the list, reads what it needs, and is told the same throughout a run."""

from collections.abc import Sequence
from typing import Any

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.skills import Skill, SkillList, loaded_skills, skills_fragment
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import Custom
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.skills import SkillInfo
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    lines,
    spoken,
    suspended,
    transcript,
)

TIDES = Skill(
    name="read-tides",
    description="Reads tide tables. Use it for high and low water.",
    body="Look at tables/brest.md.",
    files={"tables/brest.md": "Brest\nhigh 6:12\nlow 12:30\n"},
)
BOATS = Skill(name="book-boats", description="Books boats.", body="Ask for the date first.")


class _Shelf(SkillList):
    """Skills that are exchanged while a run is running; the provider may also be unavailable."""

    def __init__(self, *skills: Skill) -> None:
        super().__init__(skills)
        self.is_away = False

    def exchange(self, *skills: Skill) -> None:
        super().__init__(skills)

    async def list_skills(self) -> Sequence[SkillInfo]:
        if self.is_away:
            raise ConnectionError("nobody at home")
        return await super().list_skills()


def _agent(*script: Any, **fields: Any) -> tuple[AnyAgent, ScriptedModel]:
    model = ScriptedModel(script)
    settings: dict[str, Any] = {"instructions": "Help.", "skills": [TIDES, BOATS], **fields}
    return Agent(name="skipper", model=model, **settings), model


def _told(model: ScriptedModel) -> list[str]:
    return [asked.instructions for asked in model.requests]


class SkillsContract(ScenarioContract):
    """Skills are texts: their names are in the instructions, and the model reads them like results of any tool."""

    async def test_a_model_sees_which_skills_there_are_and_reads_what_it_needs(self, helix: Executor) -> None:
        agent, model = _agent(
            reply(calls=[call("load_skill", {"name": "read-tides"}), call("load_skill", {"name": "tides"})]),
            reply(
                calls=[
                    call("read_skill_file", {"skill": "read-tides", "path": "tables/brest.md", "start_line": 2}),
                    call("read_skill_file", {"skill": "read-tides", "path": "../secrets"}),
                    call("load_skill", {"name": "read-tides"}),
                ]
            ),
            "High water is at 6:12.",
            preload_skills=["book-boats", "fly"],
        )
        handle = await helix.execute(agent, "When is high water?", SESSION)
        chunks = await chunks_of(handle)
        assert await completed(handle) == "High water is at 6:12."
        active = await SkillList([BOATS]).get_skill("book-boats")
        assert active is not None
        infos = [SkillInfo(name=each.name, description=each.description) for each in (TIDES, BOATS)]
        assert _told(model) == [f"Help.\n\n{skills_fragment(infos, [active])}"] * 3
        results = [each for each in await transcript(helix) if isinstance(each, ToolMessage)]
        assert [(each.content, each.error) for each in results] == [
            ("Look at tables/brest.md.\n\nFiles of this skill, for `read_skill_file`:\n- tables/brest.md", False),
            ("There is no skill 'tides'. There are: book-boats, read-tides.", True),
            ("high 6:12\nlow 12:30\n", False),
            ("The skill 'read-tides' has no file '../secrets'. It has: tables/brest.md.", True),
            ("The skill 'read-tides' is already loaded: you have its text above, and it has not changed.", False),
        ]
        events = [(chunk.name, chunk.data) for chunk in chunks if isinstance(chunk, Custom)]
        assert events == [("skill_loaded", {"name": "read-tides"})]
        assert loaded_skills(await transcript(helix)) == {"read-tides"}

    async def test_what_a_run_was_told_of_skills_stands_until_it_ends_and_the_next_run_is_told_anew(
        self, open_executor: OpenExecutor
    ) -> None:
        shelf = _Shelf(TIDES)

        @tool
        async def tidy_up() -> str:
            """Exchange the skills."""
            shelf.exchange(BOATS)
            return "tidied"

        script = [call("tidy_up"), call("ask_human", {"question": "Which?"}), "Done.", "Ahoy.", "Bye."]
        agent, model = _agent(*script, skills=shelf, tools=[tidy_up, ask_human()])
        async with open_executor() as helix:
            [pending] = (await suspended(await helix.execute(agent, "Tidy up", SESSION))).pending
        async with open_executor() as helix:
            await helix.submit_tool_result(SESSION, pending.tool_call_id, ToolAnswer(result="boats"))
            assert await completed(await helix.resume(agent, SESSION)) == "Done."
            assert await completed(await helix.execute(agent, "And now?", SESSION)) == "Ahoy."
            plain, told = Agent(name="skipper", model=ScriptedModel(script)), model.requests
            assert await completed(await helix.execute(plain, "No skills?", SESSION)) == "Bye."
            said = await spoken(helix)
        # The run that continues with the answer is a new one; within each, nothing changed.
        assert ["read-tides" in each.instructions for each in told] == [True, True, False, False]
        assert ["book-boats" in each.instructions for each in told] == [False, False, True, True]
        assert [line for line in said if line.startswith("hidden")] == ["hidden: skills"] * 2
        for asked in (*told, *_requests(plain)):
            assert not any(line.startswith("hidden") for line in lines(asked.messages))
        assert _told_to(plain) == [""]

    async def test_a_run_whose_process_died_goes_on_with_the_skills_it_was_told_of(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        script = [call("load_skill", {"name": "read-tides"}), call("work"), "Done."]
        agent, before = _agent(*script, tools=[work], skills=[TIDES])
        async with open_executor(grace=0) as dying:
            await dying.execute(agent, "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        deployed, after = _agent(*script, tools=[work], skills=[BOATS])
        async with open_executor(agents=[deployed]) as other:
            await other.recover()
            handle = await other.get_handle(deployed, SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."
            assert (await spoken(other)).count("hidden: skills") == 1
        assert after.asked
        assert {*_told(before), *_told(after)} == {_told(before)[0]}
        assert "read-tides" in _told(before)[0]

    async def test_skills_that_are_not_to_be_had_fail_the_run_and_a_retry_asks_again(self, helix: Executor) -> None:
        shelf = _Shelf(TIDES)
        shelf.is_away = True
        agent, model = _agent("High water.", skills=shelf)
        result = await failed(await helix.execute(agent, "When?", SESSION))
        assert (result.code, result.retryable, model.asked) == ("skills_unavailable", True, 0)
        assert "nobody at home" in result.error
        shelf.is_away = False
        assert await completed(await helix.retry(agent, SESSION)) == "High water."
        assert "read-tides" in _told(model)[0]


def _requests(agent: AnyAgent) -> Sequence[Any]:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


def _told_to(agent: AnyAgent) -> list[str]:
    return [asked.instructions for asked in _requests(agent)]

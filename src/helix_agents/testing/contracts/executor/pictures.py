"""Scenarios of results with images and files: the model sees them, wherever a result comes from and rests meanwhile."""

from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import DefaultAnswer, client_tool
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.context import RunContext
from helix_agents.agent.hook_events import AfterToolEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import ToolEnd
from helix_agents.domain.messages import File, Image, Message, Part, Text, ToolMessage, UserMessage
from helix_agents.domain.pending import AnswerLate, AnswerRefused, ToolAnswer
from helix_agents.domain.rendering import render
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    scripted,
    suspended,
    transcript,
)

MOON = Image.of(b"\x89PNG moon", "image/png", "moon.png")
PAPERS = File.of(b"%PDF-1.7", "application/pdf", "papers.pdf")
SHOWN = (Text(text="The moon:"), MOON, Text(text="and its papers:"), PAPERS)


@tool
async def look() -> list[Text | Image | File | str]:
    """Look at the sky."""
    return ["The moon:", MOON, Text(text="and its papers:"), PAPERS]


@tool(effect="once")
async def photograph() -> Image:
    """Take a picture, once."""
    return MOON


@client_tool
def capture() -> Image:
    """Take a picture of the page."""
    raise NotImplementedError


@client_tool
def describe() -> list[dict[str, str]]:
    """Describe the page."""
    raise NotImplementedError


@tool(finish_with=True)
async def draw() -> Image:
    """Draw the moon."""
    return MOON


AT_ONCE = (reply(calls=[call("photograph"), call("capture"), call("look")]), "Seen.")


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="eye", tools=[look, photograph, capture, describe])


def _painter() -> AnyAgent:
    return scripted([call("draw")], {}, name="painter", description="Paints.", tools=[draw], output=Image)


def _results(messages: list[Message]) -> list[tuple[Part, ...]]:
    return [each.parts for each in messages if isinstance(each, ToolMessage)]


def _last_asked(agent: AnyAgent) -> list[Message]:
    """What the model was shown last, in this process."""
    assert isinstance(agent.model, ScriptedModel)
    return list(agent.model.requests[-1].messages)


class PicturesContract(ScenarioContract):
    """A result of texts, images and files reaches the model as such, in order."""

    async def test_a_model_sees_the_images_and_files_that_a_tool_returns(self, helix: Executor) -> None:
        agent = _agent(call("look"), "Seen.")
        handle = await helix.execute(agent, "Look", SESSION)
        chunks = await chunks_of(handle)
        assert await completed(handle) == "Seen."
        assert _results(_last_asked(agent)) == [SHOWN]
        stored = await transcript(helix)
        assert _results(stored) == [SHOWN]
        [end] = [chunk for chunk in chunks if isinstance(chunk, ToolEnd)]
        assert end.in_parts
        [shown] = [each for each in render((), chunks) if isinstance(each, ToolMessage)]
        assert shown.parts == SHOWN

    async def test_data_that_looks_like_an_image_stays_data(self, helix: Executor) -> None:
        @tool
        async def search() -> list[dict[str, str]]:
            """Search for pictures."""
            return [{"type": "image", "url": "https://example.com/moon.png"}]

        agent = _agent(call("search"), "Found.", tools=[search])
        await completed(await helix.execute(agent, "Search", SESSION))
        [found] = [each for each in await transcript(helix) if isinstance(each, ToolMessage)]
        assert (found.in_parts, found.parts) == (False, ())
        assert found.content == [{"type": "image", "url": "https://example.com/moon.png"}]

    async def test_hooks_are_given_the_images(self, helix: Executor) -> None:
        told: list[tuple[Part, ...]] = []

        def note(ctx: RunContext[Any, Any], event: AfterToolEvent) -> None:
            told.append(event.parts)

        agent = _agent(call("look"), "Seen.", hooks=Hooks(after_tool=note))
        await completed(await helix.execute(agent, "Look", SESSION))
        assert told == [SHOWN]

    async def test_images_rest_while_other_calls_of_their_step_wait(self, open_executor: OpenExecutor) -> None:
        async with open_executor() as first:
            await suspended(await first.execute(_agent(*AT_ONCE), "Look", SESSION))
            assert [held.parts for held in await first.sessions.held(SESSION)] == [(MOON,), SHOWN]
        async with open_executor() as second:
            await second.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result=MOON))
        async with open_executor() as third:
            agent = _agent(*AT_ONCE)
            assert await completed(await third.resume(agent, SESSION)) == "Seen."
            assert _results(_last_asked(agent)) == [(MOON,), (MOON,), SHOWN]

    async def test_a_client_answers_with_an_image_if_its_tool_declares_one(self, helix: Executor) -> None:
        agent = _agent(reply(calls=[call("capture", id="a"), call("describe", id="b")]), "Seen.")
        await suspended(await helix.execute(agent, "Capture", SESSION))
        refused = await helix.submit_tool_result(SESSION, "a", ToolAnswer(result={"type": "file", "url": MOON.url}))
        assert isinstance(refused, AnswerRefused)
        broken = await helix.submit_tool_result(
            SESSION, "a", ToolAnswer(result={"type": "image", "url": "data:;base64,x"})
        )
        assert isinstance(broken, AnswerRefused)
        image = {"type": "image", "url": MOON.url, "media_type": "image/png", "filename": "moon.png"}
        await helix.submit_tool_result(SESSION, "a", ToolAnswer(result=image))
        await helix.submit_tool_result(SESSION, "b", ToolAnswer(result=[{"type": "image", "url": MOON.url}]))
        await completed(await helix.resume(agent, SESSION))
        assert _results(_last_asked(agent)) == [(MOON,), ()]

    async def test_an_answer_with_an_image_outlives_the_run_that_asked_for_it(self, helix: Executor) -> None:
        agent = _agent(reply(calls=[call("capture", id="a"), call("describe", id="b")]), "Gone on.")
        await suspended(await helix.execute(agent, "Capture", SESSION))
        await helix.submit_tool_result(SESSION, "a", ToolAnswer(result=MOON))
        await helix.interrupt(SESSION)
        assert _results(await transcript(helix)) == [(MOON,), ()]
        assert await completed(await helix.execute(agent, "Go on", SESSION)) == "Gone on."
        assert _results(_last_asked(agent)) == [(MOON,), ()]

    async def test_a_summary_is_made_from_the_names_of_images(self, helix: Executor) -> None:
        def ask(request: ModelRequest) -> Any:
            return "Seen." if isinstance(request.messages[-1], ToolMessage) else call("look")

        summariser = ScriptedModel(lambda _: "They looked at the moon.", name="summariser")
        compaction = Compaction(above_tokens=300, keep_tokens=50, model=summariser)
        agent = _agent(model=ScriptedModel(ask), compaction=compaction)
        for question in ("Look", "Look again"):
            await completed(await helix.execute(agent, question, SESSION))
        told = str([list(each.messages) for each in summariser.requests])
        assert "[image: moon.png, image/png" in told
        assert MOON.url not in told

    async def test_an_image_that_comes_too_late_is_named(self, helix: Executor, clock: ManualClock) -> None:
        agent = _agent(call("capture", id="a"), "Without, then.", "Thanks anyway.")
        await suspended(await helix.execute(agent, "Capture", SESSION))
        clock.advance(8 * 24 * 60 * 60 * 1000)
        await completed(await helix.resume(agent, SESSION))
        late = await helix.submit_tool_result(SESSION, "a", ToolAnswer(result=MOON))
        assert isinstance(late, AnswerLate)
        await completed(await helix.execute(agent, "And now?", SESSION))
        [notice] = [each for each in await transcript(helix) if isinstance(each, UserMessage) and each.hidden]
        assert notice.content == (
            "A late answer to call a of capture has come: [image: moon.png, image/png, about 9 bytes]"
        )

    async def test_a_default_answer_can_be_an_image(self, helix: Executor, clock: ManualClock) -> None:
        @client_tool(on_deadline=DefaultAnswer(MOON))
        def capture() -> Image:
            """Take a picture of the page."""
            raise NotImplementedError

        agent = _agent(call("capture", id="a"), "Seen.", tools=[capture])
        await suspended(await helix.execute(agent, "Capture", SESSION))
        clock.advance(8 * 24 * 60 * 60 * 1000)
        await completed(await helix.resume(agent, SESSION))
        assert _results(_last_asked(agent)) == [(MOON,)]

    async def test_an_image_that_is_too_large_fails_its_call_alone(self, helix: Executor) -> None:
        @tool
        async def pan() -> Image:
            """Look at everything."""
            return Image.of(b"x" * 900_000, "image/png")

        agent = _agent(reply(calls=[call("pan"), call("look")]), "Seen.", tools=[pan, look])
        await completed(await helix.execute(agent, "Look", SESSION))
        refused, seen = [each for each in await transcript(helix) if isinstance(each, ToolMessage)]
        assert (refused.code, refused.in_parts) == ("tool_output_invalid", False)
        assert "at most 1000000 are stored" in refused.content
        assert seen.parts == SHOWN

    async def test_an_image_can_be_the_output_of_an_agent(self, helix: Executor) -> None:
        assert await completed(await helix.execute(_painter(), "Draw", SESSION)) == MOON

    async def test_the_image_that_a_sub_agent_made_is_seen_by_the_agent_above(self, helix: Executor) -> None:
        script = (call("subagent__painter", {"message": "The moon."}), "Painted.")
        agent = _agent(*script, tools=[_painter().as_tool()])
        assert await completed(await helix.execute(agent, "Paint", SESSION)) == "Painted."
        assert _results(_last_asked(agent)) == [(MOON,)]

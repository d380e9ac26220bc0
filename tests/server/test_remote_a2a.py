"""Somebody else's agent as a sub-agent, over A2A: what a parent sees of it, and what reaches it from here."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents import (
    Agent,
    AnyAgent,
    Completed,
    Executor,
    Failed,
    Interrupted,
    ScriptedModel,
    ToolAnswer,
)
from helix_agents.domain.chunks import SubagentEnd, TextDelta
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.engine.remote.stops import PLACE, REMOTE
from helix_agents.engine.services import EngineOptions
from helix_agents.ports.remote_agents import RemoteSession, RemoteStart
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.server.remote_a2a.transport import A2ARemoteAgentTransport
from tests.server.chain import a2a_boss, pass_on
from tests.server.delegating import child_of, delegated, eventually, finish, only
from tests.server.foreign import CARD, CHAPTERS, STORY, Foreign, serving
from tests.server.live import LiveServer


@pytest.fixture(scope="module", params=[True, False], ids=["streams", "does not stream"])
def foreign(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with serving(Foreign(streaming=request.param)) as live:
        yield live


@pytest.fixture(autouse=True)
def journal(request: pytest.FixtureRequest) -> list[str]:
    if "foreign" not in request.fixturenames:
        return []
    app = request.getfixturevalue("foreign").app
    app.journal.clear()
    app.errands.going.clear()
    return app.journal


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


async def result_of(helix: Executor, agent: AnyAgent, order: str) -> ToolMessage:
    """What a delegated order came to."""
    assert isinstance(await finish(helix, agent, f"remote {order}"), Completed)
    return await delegated(helix)


async def told(helix: ExecutorCore) -> str:
    """The words of the child as they stand in the stream of its parent."""
    chunks = await helix._services.streams.get_all_chunks("s")
    return "".join(each.delta for each in chunks if isinstance(each, TextDelta) and each.remote_sequence is not None)


async def test_its_words_are_seen_here_and_are_the_calls_result(foreign: LiveServer, helix: Executor) -> None:
    run = await helix.execute(a2a_boss(foreign.url), "remote hello", "s")
    chunks = [chunk async for chunk in run.stream()]
    assert isinstance(await run.result(), Completed)
    (end,) = [each for each in chunks if isinstance(each, SubagentEnd)]
    assert (end.status, end.result) == ("completed", "You said: hello.")
    assert await told(helix) == "You said: hello."
    child = await helix.sessions.get(await child_of(helix))
    assert (child.status, child.output, child.agent_type) == ("completed", "You said: hello.", "worker")
    assert REMOTE not in child.metadata
    assert "task_id" in child.metadata[PLACE]
    (ref,) = await helix._services.store.get_sub_session_refs("s")
    assert (ref.location, ref.status, ref.remote and ref.remote.url) == ("remote", "completed", foreign.url)


@pytest.mark.parametrize(
    ("order", "result"),
    [
        ("chat", "Only words."),
        ("note", "Done, as I said."),
        ("data", {"title": "Tides", "pages": 2}),
        ("json", '{"title": "Tides", "pages": 2}'),
        ("file", ["A map.", {"url": "https://example.com/map.png", "mediaType": "image/png"}]),
        ("rewrite", "Version 11. More. "),
        ("weave", f"{''.join(f'a{n} ' for n in range(12))}\n\n{''.join(f'b{n} ' for n in range(12))}"),
    ],
)
async def test_what_it_made_is_the_result_in_whatever_form(
    foreign: LiveServer, helix: Executor, order: str, result: Any
) -> None:
    message = await result_of(helix, a2a_boss(foreign.url), order)
    assert (message.error, message.content) == (False, result)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("data", "Here it is: "),
        ("rewrite", "Version 11. More. "),
        ("weave", f"{''.join(f'a{n} ' for n in range(12))}{''.join(f'b{n} ' for n in range(12))}"),
        ("story", "".join(f"{chapter}: {STORY}" for chapter in range(CHAPTERS))),
    ],
)
async def test_its_words_stand_in_the_stream_once_whatever_it_changes_about_them(
    foreign: LiveServer, helix: Executor, order: str, words: str
) -> None:
    await result_of(helix, a2a_boss(foreign.url), order)
    assert await told(helix) == words


class Report(BaseModel):
    title: str
    pages: int


@pytest.mark.parametrize("order", ["data", "json"])
async def test_a_typed_result_is_checked(foreign: LiveServer, helix: Executor, order: str) -> None:
    message = await result_of(helix, a2a_boss(foreign.url, output=Report), order)
    assert (message.error, message.content) == (False, {"title": "Tides", "pages": 2})


async def test_a_result_of_another_type_is_a_failed_call(foreign: LiveServer, helix: Executor) -> None:
    message = await result_of(helix, a2a_boss(foreign.url, output=Report), "hello")
    assert (message.error, message.code) == (True, "tool_output_invalid")


@pytest.mark.parametrize(
    ("order", "reason"), [("fail", "(task_failed): The boat sank."), ("reject", "(task_rejected): I do not sail.")]
)
async def test_one_that_fails_or_rejects_is_a_failed_call(
    foreign: LiveServer, helix: Executor, order: str, reason: str
) -> None:
    message = await result_of(helix, a2a_boss(foreign.url), order)
    assert (message.error, message.code) == (True, "sub_agent_failed")
    assert reason in str(message.content)


async def test_a_question_is_answered_at_the_root(foreign: LiveServer, helix: Executor, journal: list[str]) -> None:
    agent = a2a_boss(foreign.url)
    waiting = only(await finish(helix, agent, "remote ask port"))
    assert (waiting.kind, waiting.tool_name) == ("question", "input_required")
    assert waiting.input == {"question": "Which port?"}
    assert waiting.deadline is not None
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert (await delegated(helix)).content == "About port. \n\nSo it is ['Brest']."
    assert await told(helix) == "About port. So it is ['Brest']."
    assert journal == ["ask port", "answer: Brest"]


async def test_several_questions_one_after_the_other_are_each_asked_once(
    foreign: LiveServer, helix: Executor, journal: list[str]
) -> None:
    agent = a2a_boss(foreign.url)
    first = only(await finish(helix, agent, "remote ask port and boat and port"))
    seen = [first.tool_call_id]
    for answer in ("Brest", {"name": "Ann"}, "Cork"):
        await helix.submit_tool_result("s", seen[-1], ToolAnswer(result=answer))
        result = await (await helix.resume(agent, "s")).result()
        if answer != "Cork":
            seen.append(only(result).tool_call_id)
    assert isinstance(result, Completed)
    assert len(set(seen)) == 3
    assert journal == ["ask port and boat and port", "answer: Brest", "answer: {'name': 'Ann'}", "answer: Cork"]
    assert "So it is ['Brest', {'name': 'Ann'}, 'Cork']." in str((await delegated(helix)).content)


async def test_a_sign_in_waits_like_a_question(foreign: LiveServer, helix: Executor) -> None:
    agent = a2a_boss(foreign.url)
    waiting = only(await finish(helix, agent, "remote sign in"))
    assert waiting.tool_name == "auth_required"
    assert waiting.input == {"question": "Sign in at https://example.com/in, then say so."}
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="I did."))
    assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
    assert (await delegated(helix)).error is False


async def test_a_question_two_levels_down_is_answered_at_the_root(foreign: LiveServer, helix: Executor) -> None:
    below = a2a_boss(foreign.url).find_tool("subagent__worker")
    assert below is not None
    middle = Agent(name="worker", model=ScriptedModel(pass_on), tools=[below])
    root = Agent(name="root", model=ScriptedModel(pass_on), tools=[middle.as_tool(description="Passes on.")])
    waiting = only(await finish(helix, root, "remote remote ask port"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    result = await (await helix.resume(root, "s")).result()
    assert isinstance(result, Completed)
    assert "So it is ['Brest']." in result.output


async def test_a_question_that_nobody_answers_is_answered_with_that(foreign: LiveServer, journal: list[str]) -> None:
    options = EngineOptions(pending_deadline_ms=1)
    async with Executor.open("memory://", janitor_seconds=None, options=options) as helix:
        agent = a2a_boss(foreign.url)
        only(await finish(helix, agent, "remote ask port"))

        async def is_over() -> bool:
            await helix._services.store.expire_pending()
            return await helix.can_resume(agent, "s") is None

        await eventually(is_over)
        assert isinstance(await (await helix.resume(agent, "s")).result(), Completed)
        assert journal == ["ask port", "answer: There is no answer: Nobody answered this call in time."]


@pytest.mark.parametrize("kind", ["interrupt", "abort"])
async def test_a_stop_cancels_its_task(foreign: LiveServer, helix: Executor, journal: list[str], kind: str) -> None:
    run = await helix.execute(a2a_boss(foreign.url), "remote hold", "s")
    async for chunk in run.stream():
        if isinstance(chunk, TextDelta) and chunk.remote_sequence is not None:
            break
    await getattr(helix, kind)("s", "enough")
    assert isinstance(await run.result(), Interrupted if kind == "interrupt" else Failed)
    assert journal == ["hold", "cancelled"]
    assert REMOTE not in (await helix.sessions.get(await child_of(helix))).metadata


class SlowToAnswer(A2ARemoteAgentTransport):
    """A way on which the answer to the first message takes its time."""

    began: asyncio.Event

    async def start(
        self, session: RemoteSession, message: UserMessage, *, depth: int, again: bool = False
    ) -> RemoteStart:
        begun = await super().start(session, message, depth=depth, again=again)
        self.began.set()
        await asyncio.sleep(0.1)
        return begun

    async def _find(self, session: RemoteSession) -> None:
        """It cannot be asked for a task either."""


async def test_a_stop_while_a_task_begins_cancels_it(foreign: LiveServer, helix: Executor, journal: list[str]) -> None:
    slow = SlowToAnswer(foreign.url)
    slow.began = asyncio.Event()
    run = await helix.execute(a2a_boss(slow), "remote hold", "s")
    await slow.began.wait()
    await helix.interrupt("s", "enough")
    assert isinstance(await run.result(), Interrupted)
    assert journal == ["hold", "cancelled"]


async def test_a_stop_reaches_a_task_that_waits(foreign: LiveServer, journal: list[str]) -> None:
    async with Executor.open("memory://", janitor_seconds=60) as helix:
        only(await finish(helix, a2a_boss(foreign.url), "remote ask port"))
        await helix.interrupt("s", "enough")
        child = await child_of(helix)

        async def is_paid() -> bool:
            return REMOTE not in (await helix.sessions.get(child)).metadata

        await eventually(is_paid)
        assert journal == ["ask port", "cancelled"]


async def test_a_task_that_takes_too_long_is_cancelled(
    foreign: LiveServer, helix: Executor, journal: list[str]
) -> None:
    message = await result_of(helix, a2a_boss(foreign.url, timeout=0.3), "hold")
    assert message.code == "sub_agent_timeout"
    assert journal == ["hold", "cancelled"]


async def test_a_card_is_found_by_its_own_address_too(foreign: LiveServer, helix: Executor) -> None:
    assert (await result_of(helix, a2a_boss(f"{foreign.url}{CARD}"), "hello")).content == "You said: hello."

"""A step that died in a tool and that nobody goes on with: nothing of it stays behind, and nothing untrue is said."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.chunks import SubagentEnd, ToolStart
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import ApprovalAnswer
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply

SESSION = "s-1"


class Outbox(BaseModel):
    """Who got a letter."""

    sent: list[str] = []


async def test_a_new_message_after_a_crash_clears_the_ledger_of_the_step_that_died():
    begun = asyncio.Event()
    sent: list[str] = []

    @tool(effect="once")
    async def send_letter(ctx: ToolContext[Outbox], to: str) -> str:
        """Send a letter, which cannot be taken back."""
        ctx.state.sent.append(to)
        sent.append(to)
        if to == "bob":
            begun.set()
            await asyncio.Event().wait()
        return f"sent to {to}"

    letters = reply("I write. ", calls=[call("send_letter", {"to": to}, id=to) for to in ("ann", "bob")])
    agent = Agent(name="writer", model=ScriptedModel([letters, "Well then."]), tools=[send_letter], state=Outbox)
    async with await open_backend("memory://given-up") as parts:
        stores = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            await dying.execute(agent, "Write to both.", SESSION)
            await begun.wait()
            while not any(each.state == "done" for each in await parts.state.list_effects(SESSION)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert len(await parts.state.list_effects(SESSION)) == 2
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None) as helix:
            assert await (await helix.execute(agent, "Never mind.", SESSION)).output() == "Well then."
            messages = [each.message for each in await parts.state.load_transcript(SESSION)]
        results = {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}
        assert (results["ann"].content, results["ann"].error) == ("sent to ann", False)
        assert (await parts.state.load_state(SESSION)).custom_state == {"sent": ["ann"]}
        assert results["bob"].code == "outcome_unknown"
        assert sent == ["ann", "bob"]
        assert await parts.state.list_effects(SESSION) == ()
        assert not await parts.state.has_staged_changes(SESSION)


async def test_a_stop_of_a_step_that_died_keeps_what_its_recorded_calls_changed():
    begun = asyncio.Event()

    @tool(effect="once")
    async def send_letter(ctx: ToolContext[Outbox], to: str) -> str:
        """Send a letter, which cannot be taken back."""
        ctx.state.sent.append(to)
        if to == "bob":
            begun.set()
            await asyncio.Event().wait()
        return f"sent to {to}"

    letters = reply("I write. ", calls=[call("send_letter", {"to": to}, id=to) for to in ("ann", "bob")])
    agent = Agent(name="writer", model=ScriptedModel([letters]), tools=[send_letter], state=Outbox)
    async with await open_backend("memory://stopped") as parts:
        stores = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            await dying.execute(agent, "Write to both.", SESSION)
            await begun.wait()
            while not any(each.state == "done" for each in await parts.state.list_effects(SESSION)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        async with asyncio.timeout(20), Executor(**stores, agents=[agent], janitor_seconds=None) as helix:
            await helix.interrupt(SESSION)
            await helix.recover()
            await helix.idle()
        messages = [each.message for each in await parts.state.load_transcript(SESSION)]
        results = {each.tool_call_id: each.code for each in messages if isinstance(each, ToolMessage)}
        assert results == {"ann": None, "bob": "outcome_unknown"}
        session = await parts.state.load_state(SESSION)
        assert (session.status, session.custom_state) == ("interrupted", {"sent": ["ann"]})


@pytest.mark.parametrize("rewound", [False, True])
async def test_readers_are_told_once_that_a_child_is_done_whose_parent_died_before_it_could_say_what_follows(
    rewound: bool,
):
    begun = asyncio.Event()

    @tool
    async def write_draft() -> str:
        """Write a draft."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(["Helped."]))
    calls = reply(calls=[call("subagent__helper", {"message": "Help"}, id="help"), call("write_draft")])
    tools = [helper.as_tool(), write_draft]
    agent = Agent(name="writer", model=ScriptedModel([calls, "Well then."]), tools=tools)
    async with await open_backend(f"memory://told-once-{rewound}") as parts:
        stores = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}

        async def ends() -> list[str]:
            return [c.status for c in await parts.streams.get_all_chunks(SESSION) if isinstance(c, SubagentEnd)]

        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            await dying.execute(agent, "Write.", SESSION)
            await begun.wait()
            while not await ends():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None) as helix:
            if rewound:
                await helix.rewind(SESSION, BEGINNING)
                agent = Agent(name="writer", model=ScriptedModel(["Well then."]))
            assert await (await helix.execute(agent, "Never mind.", SESSION)).output() == "Well then."
        assert await ends() == ["completed"]


@pytest.mark.parametrize("beside", ["alone", "beside a tool that must not run twice"])
async def test_a_new_message_after_a_crash_does_not_say_that_a_tool_which_had_begun_was_not_executed(beside: str):
    begun = asyncio.Event()

    @tool
    async def write_draft() -> str:
        """Write a draft, which may be done again."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @tool(effect="once")
    async def send_letter() -> str:
        """Send a letter, which cannot be taken back."""
        await begun.wait()
        return "sent"

    calls = [call("write_draft", id="draft"), *([] if beside == "alone" else [call("send_letter", id="send")])]
    model = ScriptedModel([reply("I write. ", calls=calls), "Well then."])
    agent = Agent(name="writer", model=model, tools=[write_draft, send_letter])
    async with await open_backend(f"memory://begun-{len(calls)}") as parts:
        stores = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            handle = await dying.execute(agent, "Write.", SESSION)
            async for chunk in handle.stream():
                if isinstance(chunk, ToolStart):
                    break
            await begun.wait()
        async with asyncio.timeout(20), Executor(**stores, janitor_seconds=None) as helix:
            assert await (await helix.execute(agent, "Never mind.", SESSION)).output() == "Well then."
            messages = [each.message for each in await parts.state.load_transcript(SESSION)]
    results = {each.tool_call_id: each for each in messages if isinstance(each, ToolMessage)}
    assert results["draft"].content == "This call was cut short: it may or may not have taken effect."


@pytest.mark.parametrize("died", ["in its first round", "after its approval"])
@pytest.mark.parametrize("end", ["it cannot be driven", "it expires"])
async def test_what_a_recorded_call_changed_stands_where_nobody_goes_on_with_its_run(end: str, died: str):
    begun = asyncio.Event()
    gated = died == "after its approval"

    @tool(effect="once", require_approval=gated)
    async def send_letter(ctx: ToolContext[Outbox], to: str) -> str:
        """Send a letter, which cannot be taken back."""
        ctx.state.sent.append(to)
        if to == "bob":
            begun.set()
            await asyncio.Event().wait()
        return f"sent to {to}"

    @asynccontextmanager
    async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
        raise ConnectionError("no database")
        yield ""

    letters = reply("I write. ", calls=[call("send_letter", {"to": to}, id=to) for to in ("ann", "bob")])
    agent = Agent(name="writer", model=ScriptedModel([letters, "Well then."]), tools=[send_letter], state=Outbox)
    async with await open_backend(f"memory://nobody-{end}-{died}") as parts, asyncio.timeout(20):
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, janitor_seconds=None, grace=0.0) as dying:
            first = await dying.execute(agent, "Write to both.", SESSION)
            if gated:
                await first.result()
                for to in ("ann", "bob"):
                    await dying.submit_tool_result(SESSION, to, ApprovalAnswer(approved=True))
                await dying.resume(agent, SESSION)
            await begun.wait()
            while not any(each.state == "done" for each in await parts.state.list_effects(SESSION)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        if end == "it expires":
            session = await parts.state.load_state(SESSION)
            await parts.state.save_state(SESSION, msgspec.structs.replace(session, expires_at=1))
            async with Executor(**stores, janitor_seconds=None) as helix:
                assert (await helix.sweep()).expired_sessions == 1
        else:
            async with Executor(**stores, agents=[agent], janitor_seconds=None, deps=broken) as unlucky:
                await unlucky.recover()
                await unlucky.idle()
            assert (await parts.state.load_state(SESSION)).status == "failed"
            async with Executor(**stores, janitor_seconds=None) as helix:
                assert await (await helix.retry(agent, SESSION)).output() == "Well then."
        messages = [each.message for each in await parts.state.load_transcript(SESSION)]
        results = {each.tool_call_id: each.code for each in messages if isinstance(each, ToolMessage)}
        assert results == {"ann": None, "bob": "outcome_unknown"}
        assert (await parts.state.load_state(SESSION)).custom_state == {"sent": ["ann"]}

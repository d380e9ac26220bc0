"""Agents call the tools of real MCP servers, over either transport, through the public API."""

import asyncio
import logging
from typing import Any

import pytest

from helix_agents import ApprovalAnswer, Executor, Suspended
from helix_agents.domain.chunks import Custom
from helix_agents.domain.errors import MCPUnavailableError
from helix_agents.testing import call, reply
from tests.mcp_tools.shelves import PATIENCE, Shelf, agent_with, is_alive, results, results_in, until


async def test_a_call_is_run_by_the_server_and_its_result_is_the_calls(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__search", {"query": "tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert (result.tool_name, result.content, result.error) == ("shelf__search", ["tides 1", "tides 2"], False)


async def test_the_server_gets_the_idempotency_key_of_the_call(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__order", {"title": "Tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        await results(helix, agent)
        [run] = (await helix.sessions.runs((await helix.sessions.list()).items[0].session_id)).items
    [order] = shelf.orders
    assert order["title"] == "Tides"
    assert order["key"].startswith(run.run_id)


async def test_calls_of_one_reply_are_with_the_server_at_the_same_time_over_one_connection(shelf: Shelf) -> None:
    names = [f"book-{number}" for number in range(5)]
    both = reply("All.", calls=[call("shelf__lend", {"name": name}) for name in names])
    agent = agent_with(shelf.tools(), [both, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        going = asyncio.create_task(results(helix, agent))
        for name in names:
            await shelf.until_told(f"{name}.begun")
        for name in names:
            shelf.say(f"{name}.go")
        assert [each.content for each in await going] == [f"{name} is back" for name in names]
    assert len(shelf.pids) == 1


async def test_what_a_tool_says_about_its_failure_is_told_to_the_model(service: Shelf) -> None:
    agent = agent_with(service.tools(), [call("shelf__missing", {"title": "Moon"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert (result.content, result.code) == ("there is no Moon; try 'Tides'", "tool_failed")


async def test_arguments_that_cannot_fit_never_reach_the_server(service: Shelf) -> None:
    wrong = [{}, {"title": 5}, {"title": ["Tides"]}]
    agent = agent_with(service.tools("order"), [*(call("shelf__order", each) for each in wrong), "Done."], retries=5)
    async with Executor.open("memory://", agents=[agent]) as helix:
        told = await results(helix, agent)
    assert [each.code for each in told] == ["invalid_arguments"] * 3
    assert "'title' is a required property" in told[0].content
    assert "title: 5 is not of type 'string'" in told[1].content
    assert service.orders == []


async def test_progress_is_an_event_of_the_stream(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__count", {"books": 50}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix, asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, "Count")
        told = [chunk async for chunk in run.stream() if isinstance(chunk, Custom)]
    assert told[0].name == "mcp.progress"
    assert told[0].data["message"] == "book 0"
    assert told[0].data["total"] == 50
    assert len(told) < 50, "readers cannot see so many"


async def test_arguments_that_a_server_wants_as_headers_are_sent_as_headers(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__move", {"title": "Tides", "to": "cellar"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert result.content == "Tides is in the cellar"


async def test_a_server_that_asks_for_input_in_the_middle_of_a_call_fails_the_call(service: Shelf) -> None:
    agent = agent_with(service.tools(), [call("shelf__ask"), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert (result.error, result.code) == (True, "tool_failed")


PNG = "iVBOR4lQTkeJUE5H"
SHOWN = {
    "nothing": None,
    "picture": [{"type": "image", "url": f"data:image/png;base64,{PNG}", "media_type": "image/png"}],
    "sound": [
        {"type": "text", "text": "a note"},
        {"type": "file", "url": "data:audio/wav;base64,c2Vh", "media_type": "audio/wav"},
    ],
    "page": [
        {"type": "image", "url": f"data:image/png;base64,{PNG}", "media_type": "image/png", "filename": "1.png"},
        {
            "type": "file",
            "url": "data:application/octet-stream;base64,c2Vh",
            "media_type": "application/octet-stream",
            "filename": "raw",
        },
        {"type": "text", "text": '{"pages": 3}'},
    ],
    "drawn": [
        {"type": "text", "text": '{"pages": 3}'},
        {"type": "image", "url": f"data:image/png;base64,{PNG}", "media_type": "image/png"},
    ],
    "link": "[Tides: book://tides] of the sea",
    "chapter": "The sea breathes.",
    "both": {"text": "a note", "data": {"pages": 3}},
    "data": {"pages": 3},
    "twice": "a note\n\na note",
}


async def test_results_of_any_kind_have_a_form(service: Shelf) -> None:
    asked = reply("All.", calls=[call("shelf__show", {"what": what}) for what in SHOWN])
    agent = agent_with(service.tools(), [asked, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        told = await results(helix, agent)
    assert dict(zip(SHOWN, (each.content for each in told), strict=True)) == SHOWN
    assert [what for what, each in zip(SHOWN, told, strict=True) if each.in_parts] == [
        "picture",
        "sound",
        "page",
        "drawn",
    ]


async def test_an_image_that_cannot_be_read_fails_its_call(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__show", {"what": "smudge"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [smudge] = await results(helix, agent)
    assert (smudge.code, smudge.in_parts) == ("tool_output_invalid", False)
    assert "not valid base64" in smudge.content


async def test_an_error_names_the_images_in_it(shelf: Shelf) -> None:
    agent = agent_with(shelf.tools(), [call("shelf__show", {"what": "torn"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [torn] = await results(helix, agent)
    assert (torn.error, torn.content) == (True, "torn\n\n[image: image/png, about 12 bytes]")


async def test_a_result_that_is_too_large_fails_its_call_alone(shelf: Shelf) -> None:
    asked = reply("Both.", calls=[call("shelf__show", {"what": "much"}), call("shelf__search", {"query": "x"})])
    agent = agent_with(shelf.tools(), [asked, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        much, found = await results(helix, agent)
    assert much.code == "tool_output_invalid"
    assert "at most 1000000 are stored" in much.content
    assert not found.error


async def test_a_stop_cancels_the_call_at_the_server(shelf: Shelf) -> None:
    from helix_agents import EngineOptions

    agent = agent_with(shelf.tools(), [call("shelf__watch", {"name": "Tides"}), "Done."])
    options = EngineOptions(cancel_grace_seconds=0.05)
    async with Executor.open("memory://", agents=[agent], options=options) as helix, asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, "Watch")
        await shelf.until_told("Tides.begun")
        await run.interrupt()
        assert (await run.result()).status == "interrupted"
        await shelf.until_told("Tides.cancelled")


async def test_a_call_that_takes_too_long_is_cancelled_and_says_that_nobody_knows(shelf: Shelf) -> None:
    server = shelf.server()
    tools = (*shelf.tools("search", server=server), *shelf.tools("lend", timeout=1, server=server))
    agent = agent_with(tools, [call("shelf__search", {"query": "x"}), call("shelf__lend", {"name": "Tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        _, result = await results(helix, agent)
        await shelf.until_told("Tides.cancelled")
    assert result.code == "tool_timeout"
    assert "may or may not have taken effect" in result.content


async def test_what_the_server_says_it_destroys_waits_for_a_person(service: Shelf) -> None:
    agent = agent_with(service.tools(), [call("shelf__burn", {"title": "Tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix, asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, "Burn it")
        outcome = await run.result()
        assert isinstance(outcome, Suspended)
        assert service.told("burnt") == []
        [waiting] = outcome.pending
        edited = ApprovalAnswer(approved=True, edited_input={"title": "Storms"})
        await helix.submit_tool_result(run.session_id, waiting.tool_call_id, edited)
        await (await helix.resume(agent, run.session_id)).result()
    assert service.told("burnt") == ["Storms"]


async def test_a_predicate_sees_the_arguments(service: Shelf) -> None:
    def is_dear(given: Any, _ctx: Any) -> bool:
        return given["title"] == "Atlas"

    tools = service.tools("order", require_approval=is_dear)
    script = [call("shelf__order", {"title": "Tides"}), call("shelf__order", {"title": "Atlas"}), "Done."]
    agent = agent_with(tools, script)
    async with Executor.open("memory://", agents=[agent]) as helix, asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, "Order")
        assert isinstance(await run.result(), Suspended)
        assert len(await results_in(helix, run.session_id)) == 1
    assert [order["title"] for order in service.orders] == ["Tides"]


async def test_a_sub_agent_has_them_too(service: Shelf) -> None:
    below = agent_with(
        service.tools(),
        [call("shelf__search", {"query": "tides"}), "Found."],
        name="finder",
        description="Finds books.",
    )
    agent = agent_with([below.as_tool()], [call("subagent__finder", {"message": "tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
        [root] = [each.session_id for each in (await helix.sessions.list()).items if each.agent_type == "reader"]
        [child] = await helix.sessions.delegations(root)
        [found] = await results_in(helix, child.sub_session_id)
    assert (result.content, found.content) == ("Found.", ["tides 1", "tides 2"])


async def test_two_executors_share_a_connection_and_the_one_that_stays_is_not_disturbed(program: Shelf) -> None:
    server = program.server()
    tools = program.tools(server=server)
    first = agent_with(tools, [call("shelf__lend", {"name": "Tides"}), "Done."], name="first")
    second = agent_with(tools, [call("shelf__search", {"query": "x"}), "Done."], name="second")
    async with Executor.open("memory://", agents=[first]) as helix:
        going = asyncio.create_task(results(helix, first))
        await program.until_told("Tides.begun")
        async with Executor.open("memory://", agents=[second]) as other:
            await results(other, second)
        program.say("Tides.go")
        [result] = await going
    assert result.content == "Tides is back"
    assert len(program.pids) == 1
    await until(lambda: not is_alive(program.pids[0]))


async def test_defining_a_server_and_an_agent_opens_nothing_and_an_executor_that_is_left_leaves_nothing(
    program: Shelf,
) -> None:
    agent = agent_with(program.tools(), [call("shelf__environment"), "Done.", "Hello."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        assert program.pids == []
        await results(helix, agent)
        [pid] = program.pids
        assert is_alive(pid)
    assert not is_alive(pid)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]


async def test_a_program_inherits_nothing_and_gets_what_is_given(
    program: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "helix_agents")
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-strangers")
    server = program.server(env={"SHELF_SECRET": "for-the-shelf"})
    agent = agent_with(program.tools(server=server), [call("shelf__environment"), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert "OPENAI_API_KEY" not in result.content["names"]
    assert result.content["secret"] == "for-the-shelf"
    assert "for-the-shelf" not in caplog.text
    assert "for-the-shelf" not in repr(server)
    assert "mcp.stderr server='shelf' line='the shelf is open'" in caplog.text


async def test_headers_are_made_anew_for_each_request_and_are_in_no_log(
    service: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = iter(range(1_000))

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer secret-{next(given)}"}

    server = service.server(headers=headers)
    agent = agent_with(service.tools(server=server), [call("shelf__search", {"query": "x"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        await results(helix, agent)
    sent = service.told("tokens")
    assert len(sent) >= 2
    assert len({*sent}) == len(sent)
    ours = [record for record in caplog.records if record.name.startswith(("helix_agents", "httpx2", "mcp"))]
    assert ours
    assert not [record for record in ours if "secret-" in record.getMessage()]


async def test_a_connection_belongs_to_an_event_loop_and_each_loop_has_its_own(program: Shelf) -> None:
    server = program.server()
    [environment] = program.tools("environment", server=server)

    def elsewhere() -> Any:
        from helix_agents import ToolContext

        async def ask() -> Any:
            try:
                return await environment(ToolContext.standalone(), {})
            finally:
                await server.close()

        return asyncio.run(ask())

    agent = agent_with([environment], [call("shelf__environment"), call("shelf__environment"), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        first, second = await results(helix, agent)
        other = await asyncio.to_thread(elsewhere)
    assert first.content["pid"] == second.content["pid"] != other["pid"]
    assert not any(map(is_alive, program.pids))


async def test_a_server_that_is_not_there_is_told_to_whoever_asks_for_its_catalogue(service: Shelf) -> None:
    await service.kill()
    with pytest.raises(MCPUnavailableError, match="MCP server 'shelf' does not answer: ConnectError"):
        await service.server().take_catalogue()

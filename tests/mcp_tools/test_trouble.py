"""Servers that die, refuse, babble or change: the model is told, the run goes on, and nothing silently runs twice."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from helix_agents import Executor, MCPToolServer, Suspended, ToolAnswer
from helix_agents.domain.errors import MCPProtocolError, MCPRefusedError, MCPUnavailableError
from helix_agents.mcp_tools import carrier, connections, protocol
from helix_agents.testing import call, reply
from tests.mcp_tools.shelves import PATIENCE, Shelf, agent_with, is_alive, results, results_in, until

SEARCH = call("shelf__search", {"query": "x"})


async def test_a_call_that_may_have_been_done_when_its_server_died_asks_a_person_what_became_of_it(
    program: Shelf,
) -> None:
    agent = agent_with(program.tools(), [call("shelf__lend", {"name": "Tides"}, id="lend"), "Good."])
    async with Executor.open("memory://", agents=[agent]) as helix, asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, "Lend it")
        await program.until_told("Tides.begun")
        await program.kill()
        assert isinstance(await run.result(), Suspended)
        [asked] = (await helix.list_pending()).items
        assert (asked.tool_call_id, asked.reason, asked.input) == ("lend", "unknown_outcome", {"name": "Tides"})
        await helix.submit_tool_result(run.session_id, "lend", ToolAnswer(result="it was lent"))
        assert await (await helix.resume(agent, run.session_id)).output() == "Good."
        [known] = await results_in(helix, run.session_id)
    assert (known.content, known.error) == ("it was lent", False)
    assert len(program.told("Tides.begun")) == 1


async def test_a_call_that_may_have_been_done_when_its_server_died_says_so_and_the_next_one_finds_a_new_server(
    shelf: Shelf,
) -> None:
    agent = agent_with(shelf.tools(unknown_outcome="fail"), [call("shelf__lend", {"name": "Tides"}), "One."])
    again = agent_with(agent.tools, [SEARCH, "Two."], name="again")
    async with Executor.open("memory://", agents=[agent, again]) as helix:
        going = asyncio.create_task(results(helix, agent))
        await shelf.until_told("Tides.begun")
        await shelf.kill()
        [lost] = await going
        await asyncio.to_thread(shelf.start)
        [found] = await results(helix, again)
    assert lost.code == "outcome_unknown"
    assert lost.content.startswith("MCP server 'shelf' does not answer: ")
    assert lost.content.endswith("it may or may not have taken effect.")
    assert found.content == ["x 1", "x 2"]
    assert len(shelf.told("Tides.begun")) == 1
    assert len(shelf.pids) == 2


async def test_a_call_that_only_reads_is_sent_again_when_its_server_died(program: Shelf) -> None:
    agent = agent_with(program.tools(), [call("shelf__watch", {"name": "Tides"}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        going = asyncio.create_task(results(helix, agent))
        await program.until_told("Tides.begun")
        await program.kill()
        await until(lambda: len(program.told("Tides.begun")) == 2)
        program.say("Tides.go")
        [result] = await going
    assert result.content == "Tides is back"


async def test_a_server_that_died_between_two_calls_is_started_again_without_a_word(program: Shelf) -> None:
    agent = agent_with(program.tools(), [call("shelf__order", {"title": "A"}), "One."])
    again = agent_with(agent.tools, [call("shelf__order", {"title": "B"}), "Two."], name="again")
    async with Executor.open("memory://", agents=[agent, again]) as helix:
        await results(helix, agent)
        await program.kill()
        # Whoever calls before the end of the connection was seen here cannot know whether the call was taken.
        await until(lambda: not any(task.get_name() == "mcp shelf" for task in asyncio.all_tasks()))
        [result] = await results(helix, again)
    assert result.content == "ordered B"
    assert [order["title"] for order in program.orders] == ["A", "B"]


async def test_a_service_that_was_restarted_and_forgot_its_sessions_gets_the_call_over_a_new_one(
    service: Shelf,
) -> None:
    service.say("legacy")
    agent = agent_with(service.tools(), [call("shelf__order", {"title": "A"}), "One."])
    again = agent_with(agent.tools, [call("shelf__order", {"title": "B"}), "Two."], name="again")
    async with Executor.open("memory://", agents=[agent, again]) as helix:
        await results(helix, agent)
        await service.kill()
        await asyncio.to_thread(service.start)
        [result] = await results(helix, again)
    assert result.content == "ordered B"
    assert [order["title"] for order in service.orders] == ["A", "B"]


async def test_a_service_that_does_not_say_good_bye_holds_nobody_up(
    service: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "GOODBYE_SECONDS", 0.1)
    service.say("legacy")
    service.say("silent")
    agent = agent_with(service.tools(), [SEARCH, "Done."])
    async with asyncio.timeout(PATIENCE):
        async with Executor.open("memory://", agents=[agent]) as helix:
            await results(helix, agent)
    assert service.told("goodbye") == [""]


async def test_a_service_that_is_just_being_restarted_is_waited_for(
    service: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAITS", (0.0, *[0.1] * 600))
    agent = agent_with(service.tools(), [call("shelf__order", {"title": "A"}), "One."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        await service.kill()
        going = asyncio.create_task(results(helix, agent))
        await asyncio.to_thread(service.start)
        [result] = await going
    assert result.content == "ordered A"


async def test_a_service_that_does_not_answer_fails_its_calls_and_not_the_run(service: Shelf) -> None:
    await service.kill()
    agent = agent_with(service.tools(), [reply("Two.", calls=[SEARCH, SEARCH]), "It is closed."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        told = await results(helix, agent)
    assert [each.code for each in told] == ["tool_failed"] * 2
    assert told[0].content.startswith("MCP server 'shelf' does not answer: ConnectError")
    assert "may or may not" not in told[0].content


async def test_a_service_that_never_greets_is_waited_for_as_long_as_was_said(program: Shelf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        server = MCPToolServer("shelf", url=f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp", connect_timeout=0.2)
        agent = agent_with(program.tools(server=server), [SEARCH, "It is deaf."])
        async with Executor.open("memory://", agents=[agent]) as helix:
            [result] = await results(helix, agent)
    assert result.content == "MCP server 'shelf' does not answer: no connection within 0.2 s."


SAID = {
    "401 text/plain no": "MCP server 'shelf' refused the request: it does not accept these credentials (status 401).",
    "403 text/plain no": "MCP server 'shelf' refused the request: it does not accept these credentials (status 403).",
    "429 text/plain no": "MCP server 'shelf' does not answer: it asks callers to try again later (status 429).",
    "500 text/plain no": "MCP server 'shelf' does not answer: it failed with status 500; "
    "it may or may not have taken effect.",
    "418 text/plain no": "MCP server 'shelf' refused the request: it answered with status 418.",
    '400 application/json {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such tool"}}': "MCP server "
    "'shelf' refused the call: no such tool",
    "200 application/json {nothing": "MCP server 'shelf' does not follow the protocol: its answer cannot be read; "
    "it may or may not have taken effect.",
    "200 text/html <p>": "MCP server 'shelf' refused the call: Unexpected content type: text/html",
    '200 application/json {"jsonrpc":"2.0","id":1,"result":{"content":7}}': "MCP server 'shelf' does not follow the "
    "protocol: ",
}


UNKNOWN = [said for said, told in SAID.items() if "may or may not" in told or "protocol: " in told]


@pytest.mark.parametrize("said", SAID)
async def test_what_a_service_answers_instead_is_told_and_other_calls_go_on(said: str, service: Shelf) -> None:
    script = [call("shelf__lend", {"name": "Tides"}), "One."]
    patient = agent_with(service.tools(), script, name="patient")
    told = service.tools("order", unknown_outcome="fail")
    agent = agent_with(told, [call("shelf__order", {"title": "A"}), "Two."])
    async with Executor.open("memory://", agents=[agent, patient]) as helix:
        going = asyncio.create_task(results(helix, patient))
        await service.until_told("Tides.begun")
        service.say("says", said)
        [result] = await results(helix, agent)
        (service.folder / "says").unlink()
        service.say("Tides.go")
        [other] = await going
    assert result.code == ("outcome_unknown" if said in UNKNOWN else "tool_failed")
    assert result.content.startswith(SAID[said])
    assert other.content == "Tides is back"


async def test_wrong_credentials_are_told_where_the_catalogue_is_taken(service: Shelf) -> None:
    service.say("token", "right")
    with pytest.raises(MCPRefusedError, match=r"does not accept these credentials \(status 401\)"):
        await service.server(headers={"authorization": "Bearer wrong"}).take_catalogue()
    server = service.server(headers={"authorization": "Bearer right"})
    assert await server.take_catalogue() == service.catalogue
    await server.close()


async def test_a_redirect_to_another_place_is_not_followed_so_a_token_goes_nowhere_else(service: Shelf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        service.say("location", f"http://127.0.0.1:{elsewhere.getsockname()[1]}/mcp")
        server = service.server(headers={"authorization": "Bearer secret"})
        first = agent_with(service.tools(server=server), [SEARCH, "One."], name="first")
        agent = agent_with(first.tools, [call("shelf__order", {"title": "A"}), "Two."])
        async with Executor.open("memory://", agents=[first, agent]) as helix:
            await results(helix, first)
            service.say("says", "307 text/plain there")
            [result] = await results(helix, agent)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert result.content.startswith("MCP server 'shelf' refused the call: Redirect to http://127.0.0.1:")


@pytest.mark.parametrize("form", ["json", "events"])
async def test_an_answer_without_end_is_not_read_to_its_end(
    form: str, service: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "json":
        service.say("json")
        await service.kill()
        await asyncio.to_thread(service.start)
    monkeypatch.setattr(carrier, "MOST_BYTES", 100_000)
    monkeypatch.setattr(protocol, "MOST_BYTES", 100_000)
    agent = agent_with(service.tools(), [call("shelf__show", {"what": "much"}), SEARCH, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        much, found = await results(helix, agent)
    assert much.code == "outcome_unknown"
    assert "more than 100000 bytes" in much.content or "closed during the call" in much.content
    assert found.content == ["x 1", "x 2"]


async def test_headers_that_cannot_be_made_fail_the_call_and_are_not_shown(service: Shelf) -> None:
    async def headers() -> dict[str, str]:
        raise ValueError("secret-token expired")

    tools = service.tools(server=service.server(headers=headers))
    agent = agent_with(tools, [SEARCH, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert result.content == "MCP server 'shelf' does not answer: its request headers could not be made."


async def test_a_tool_that_is_gone_since_the_catalogue_was_taken_fails_its_calls_alone(shelf: Shelf) -> None:
    shelf.say("gone", "order")
    if shelf.transport == "http":
        await shelf.kill()
        await asyncio.to_thread(shelf.start)
    script = [reply("Both.", calls=[call("shelf__order", {"title": "A"}), SEARCH]), "Done."]
    agent = agent_with(shelf.tools(), script)
    async with Executor.open("memory://", agents=[agent]) as helix:
        gone, found = await results(helix, agent)
    assert (gone.error, gone.code) == (True, "tool_failed")
    assert "order" in gone.content
    assert found.content == ["x 1", "x 2"]


async def test_a_server_that_describes_itself_anew_changes_nothing_until_its_catalogue_is_taken(program: Shelf) -> None:
    program.say("renamed")
    server = program.server()
    taken = await server.take_catalogue()
    await server.close()
    assert program.catalogue.changes_to(taken) == ["search has a different description"]
    [known] = program.tools("search")
    [new] = server.tools("search", catalogue=taken)
    assert (known.description, new.description) == ("Search the shelf.", "Look at the shelf.")


PROGRAMS = {
    "import sys; sys.exit('no config')": (MCPUnavailableError, "it ended before it was ready; it said: no config"),
    "import time; time.sleep(600)": (MCPUnavailableError, "no connection within 2 s"),
    "import sys; print('{not json', flush=True); sys.stdin.read()": (MCPUnavailableError, "no connection within 2 s"),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_that_is_no_server_is_not_waited_for_and_not_left_behind(program: str, tmp_path: Path) -> None:
    kind, reason = PROGRAMS[program]
    code = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); {program}"
    server = MCPToolServer("odd", command=[sys.executable, "-c", code], connect_timeout=2)
    with pytest.raises(kind, match=reason):
        await server.take_catalogue()
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not is_alive(pid))


async def test_a_program_that_is_not_there_is_told() -> None:
    server = MCPToolServer("none", command=["there-is-no-such-program"])
    with pytest.raises(MCPUnavailableError, match="its program cannot be started: No such file or directory"):
        await server.take_catalogue()


STRANGE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and asked["method"] == "initialize":
        told = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
    elif "id" in asked:
        error = {"code": -32601, "message": "what?"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""


async def test_a_server_that_speaks_another_version_of_the_protocol_is_told(program: Shelf) -> None:
    server = MCPToolServer("old", command=[sys.executable, "-c", STRANGE])
    with pytest.raises(MCPProtocolError, match="Unsupported protocol version"):
        await server.take_catalogue()
    agent = agent_with(
        server.tools("order", catalogue=program.catalogue), [call("old__order", {"title": "A"}), "Done."]
    )
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert "Unsupported protocol version from the server: 1999-01-01" in result.content
    assert "may or may not" not in result.content, "it was not even asked"


BY_HAND = """
import json, sys
PAGES = {None: ["a", "b"], "2": ["c"]}
def answer(asked):
    match asked["method"]:
        case "initialize":
            about = {"name": "by hand", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            cursor = (asked.get("params") or {}).get("cursor")
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in PAGES[cursor]]
            return {"tools": tools} if cursor else {"tools": tools, "nextCursor": "2"}
        case "tools/call":
            return {"content": [{"type": "text", "text": asked["params"]["name"] + " was called"}]}
for line in sys.stdin:
    asked = json.loads(line)
    print("I am chatty", flush=True)
    if "id" in asked:
        told = answer(asked)
        reply = {"result": told} if told else {"error": {"code": -32601, "message": "what?"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"""


async def test_a_server_of_an_older_version_that_lists_in_pages_and_prints_what_it_should_not_is_understood() -> None:
    server = MCPToolServer("hand", command=[sys.executable, "-c", BY_HAND])
    offered = await server.take_catalogue()
    assert [offer.name for offer in offered.tools] == ["a", "b", "c"]
    agent = agent_with(server.tools(catalogue=offered), [call("hand__c", {"x": 1}), "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert result.content == "c was called"


BROKEN = (
    '{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"text": "the tide',
    '{"jsonrpc": "2.0", "result": 7, and no more',
    '{"jsonrpc":"2.0","id":%s,"nothing":[]}',
)


async def test_an_answer_of_a_program_that_cannot_be_read_is_told_at_once_and_other_calls_go_on() -> None:
    odd = f"""
    if asked.get("method") == "tools/call" and asked["params"]["name"] == "a":
        line = {BROKEN!r}[asked["params"]["arguments"]["which"]]
        print(line.replace("%s", str(asked["id"])), flush=True)
        continue
    if "id" in asked:"""
    server = MCPToolServer("hand", command=[sys.executable, "-c", BY_HAND.replace('\n    if "id" in asked:', odd)])
    offered = await server.take_catalogue()
    tools = server.tools(catalogue=offered, unknown_outcome="fail", timeout=30)
    asked = [call("hand__a", {"which": which}) for which in range(3)]
    both = reply("Two.", calls=[asked[0], call("hand__c", {})])
    agent = agent_with(tools, [both, asked[1], asked[2], "Done."])
    async with asyncio.timeout(20), Executor.open("memory://", agents=[agent]) as helix:
        first, fine, *others = await results(helix, agent)
    assert fine.content == "c was called"
    for result, line in zip((first, *others), BROKEN, strict=True):
        assert result.code == "outcome_unknown"
        assert result.content.startswith("MCP server 'hand' does not follow the protocol: its answer cannot be read: {")
        assert line[-12:] in result.content


LISTS = {
    "without end": ('return {"tools": tools} if cursor else', "return", MCPProtocolError, "does not end after 3 pages"),
    "no tools": ('"inputSchema": {"type": "object"}', '"colour": 1', MCPProtocolError, "ValidationError"),
    "a refusal": ('case "tools/list"', 'case "tools/other"', MCPRefusedError, "refused the request: what?"),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_that_cannot_be_used_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_PAGES", 3)
    before, after, kind, reason = LISTS[name]
    assert before in BY_HAND
    text = BY_HAND.replace(before, after).replace("PAGES[cursor]", 'PAGES.get(cursor, ["d"])')
    server = MCPToolServer("hand", command=[sys.executable, "-c", text])
    with pytest.raises(kind, match=reason):
        await server.take_catalogue()
    await server.close()


@pytest.mark.chaos
async def test_a_server_that_is_killed_again_and_again_breaks_no_run_and_gets_no_order_twice(program: Shelf) -> None:
    # There is nobody to ask about an order whose answer was lost with the server.
    tools = program.tools(server=program.server(), unknown_outcome="fail")
    async with Executor.open("memory://") as helix, asyncio.timeout(100):

        async def talk(number: int) -> None:
            for turn in range(40):
                asked = [
                    call("shelf__order", {"title": f"{number}-{turn}"}),
                    call("shelf__count", {"books": 20}),
                    SEARCH,
                ]
                agent = agent_with(tools, [reply("All.", calls=asked), "Done."], name=f"reader-{number}-{turn}")
                _, counted, found = await results(helix, agent)
                assert (counted.content, found.content) == ("20 books", ["x 1", "x 2"])

        async def kill() -> None:
            while True:
                await asyncio.sleep(3)
                await program.kill()
                seen = len(program.pids)
                await until(lambda seen=seen: len(program.pids) > seen)

        killing = asyncio.create_task(kill())
        await asyncio.gather(*map(talk, range(5)))
        killing.cancel()
    titles = [order["title"] for order in program.orders]
    assert len({*titles}) == len(titles)
    assert not any(map(is_alive, program.pids))


async def test_whoever_is_cancelled_while_it_connects_leaves_the_connection_to_the_others(program: Shelf) -> None:
    server = program.server()
    tools = program.tools(server=server)
    agent = agent_with(tools, [SEARCH, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        impatient = asyncio.create_task(server.take_catalogue())
        await until(lambda: bool(program.pids))
        impatient.cancel()
        await asyncio.wait((impatient,), timeout=PATIENCE)
        assert impatient.cancelled()
        await results(helix, agent)
    assert len(program.pids) == 1


async def test_a_server_that_hangs_in_a_call_ends_with_its_executor(program: Shelf) -> None:
    server = program.server()
    tools = (*program.tools("search", server=server), *program.tools("order", timeout=1, server=server))
    first = agent_with(tools, [SEARCH, "One."], name="first")
    agent = agent_with(tools, [call("shelf__order", {"title": "A"}), "Two."])
    async with Executor.open("memory://", agents=[first, agent]) as helix:
        await results(helix, first)
        os.kill(program.pids[-1], signal.SIGSTOP)
        [result] = await results(helix, agent)
    assert result.code == "tool_timeout"
    await until(lambda: not is_alive(program.pids[0]))

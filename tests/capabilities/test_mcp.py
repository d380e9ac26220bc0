"""The real MCP client lists and calls all tools, over stdio and over HTTP, several servers on one store."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.subscriptions import ResourceUpdated

from helix_agents.capabilities import auditing, housekeeping
from helix_agents.capabilities.approvals import decide_approval
from helix_agents.capabilities.auditing import checkpoints_file
from helix_agents.capabilities.catalogue import CATALOGUE, STATE
from helix_agents.capabilities.mcp import serve_http
from helix_agents.capabilities.mcp.resources import INBOX_URI, Resources, uri_of
from helix_agents.capabilities.policy import Policy, Rule
from helix_agents.capabilities.scopes import APPROVALS, OUTBOX, SESSIONS
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.vault import load_checkpoints
from helix_agents.domain.errors import StoreUnavailableError
from tests.capabilities.worlds import PASSPHRASE, World

PATIENCE = 60.0


def command(world: World, agent: str = "ann") -> StdioServerParameters:
    given = {
        "--agent": agent,
        "--store": world.url,
        "--vault": str(world.vault.path),
        "--directory": str(world.folder / "files"),
        "--export-root": str(world.folder / "out"),
    }
    return StdioServerParameters(
        command=str(Path(sys.executable).with_name("helix")),
        args=["mcp", *(word for option in given.items() for word in option)],
        env={"HELIX_VAULT_PASSPHRASE": PASSPHRASE},
    )


@contextlib.asynccontextmanager
async def over_http(world: World, **settings: Any) -> AsyncIterator[str]:
    async with world.open(face="mcp") as state:
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_http(state.gateway, "ann", on_ready=bound.set_result, **settings))
        try:
            yield f"http://127.0.0.1:{await asyncio.wait_for(bound, PATIENCE)}/mcp"
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def call(client: Client, name: str, **arguments: Any) -> Any:
    """What a tool answered, or its error."""
    result = await client.call_tool(name.replace(".", "__"), arguments)
    assert json.loads(result.content[0].text) == result.structured_content  # pyright: ignore[reportAttributeAccessIssue]
    return result.structured_content


async def use_everything(client: Client, world: World) -> None:
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == [each.tool_name for each in CATALOGUE.values()]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name) for tool in listed)
    session = (await call(client, "session.create"))["session_id"]
    answers: dict[str, Any] = {}
    for name, arguments in (
        ("state.session.set", {"key": "k", "value": 1, "session_id": session}),
        ("state.session.get", {"key": "k", "session_id": session}),
        ("state.session.list", {"session_id": session}),
        ("state.session.delete", {"key": "k", "session_id": session}),
        ("state.session.clear", {"session_id": session}),
        ("state.persistent.set", {"key": "k", "value": {"a": [1]}}),
        ("state.persistent.get", {"key": "k"}),
        ("state.persistent.list", {}),
        ("state.persistent.query", {"prefix": "k"}),
        ("state.persistent.history", {"key": "k"}),
        ("state.shared.watch", {"session_id": session}),
        ("state.shared.set", {"key": "s", "value": 1, "expected_version": 0}),
        ("state.shared.get", {"key": "s"}),
        ("state.shared.list", {}),
        ("state.shared.delete", {"key": "s"}),
        ("state.snapshot.create", {}),
        ("state.snapshot.list", {}),
        ("state.briefing.generate", {}),
        ("state.backup.create", {}),
        ("state.backup.list", {}),
        ("state.backup.restore", {"backup_id": "none"}),
        ("state.backup.export", {"backup_id": "none", "path": "out"}),
    ):
        answers[name] = await call(client, name, **arguments)
    newest = answers["state.snapshot.list"]["snapshots"][0]["snapshot_id"]
    answers["state.snapshot.load"] = await call(client, "state.snapshot.load", snapshot_id=newest)
    answers["state.persistent.delete"] = await call(client, "state.persistent.delete", key="k")
    assert answers.keys() == {each.name for each in STATE}
    assert answers["state.session.get"] == {"value": 1, "found": True}
    assert answers["state.backup.create"]["error"] == "ApprovalPending"
    assert answers["state.backup.restore"]["error"] == "BackupNotFound"
    missing = await call(client, "state.session.get", key="k", session_id="another")
    assert missing["error"] == "SessionNotFound"
    assert missing["recovery"][0]["capability"] == "session.create"
    assert (await call(client, "state.session.get", key="k"))["error"] == "SessionNotFound"
    assert (await call(client, "state.persistent.get", key=3))["error"] == "InvalidInput"
    with pytest.raises(MCPError):
        await client.call_tool("state__persistent__forget", {})
    # What was asked is decided elsewhere, and runs by itself.
    approval = answers["state.backup.create"]["context"]["approval_id"]
    async with world.open("ann", face="operator") as operator:
        assert (await decide_approval(operator.gateway, approval, approved=True, by="ada")).status == "executed"
    [decided] = (await call(client, "approvals.list", approval_id=approval))["approvals"]
    assert decided["result"]["scope"] == "full"


async def test_all_tools_over_stdio_with_several_servers_on_one_store(world: World) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Client(stdio_client(command(world))) as one, Client(stdio_client(command(world, "bob"))) as two:
            await use_everything(one, world)
            assert not (await call(two, "state.persistent.get", key="k"))["found"]
            created = [
                call(client, "state.shared.set", key="race", value=1, expected_version=0) for client in (one, two)
            ]
            outcomes = await asyncio.gather(*created)
            assert sorted("error" in each for each in outcomes) == [False, True]
            parallel = [call(one, "state.persistent.set", key=f"p{n}", value=n) for n in range(20)]
            assert len(await asyncio.gather(*parallel)) == 20
            assert (await call(one, "state.persistent.list", prefix="p"))["count"] == 20


async def test_all_tools_over_http(world: World) -> None:
    async with asyncio.timeout(PATIENCE), over_http(world) as url, Client(url) as client:
        await use_everything(client, world)


async def test_no_part_of_an_answer_waits_until_the_client_has_confirmed_the_part_before_it(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        async with asyncio.timeout(PATIENCE), over_http(world, listening=door):
            assert door.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_server_looks_after_what_nobody_else_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle sessions, requests that nobody decided, notices, old changes, and rows of the log that nobody has signed."""
    monkeypatch.setattr(housekeeping, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(auditing, "SIGN_AFTER_MS", 0)
    world.limits = Limits(session_idle_ms=1, approval_hold_ms=1, events=1)
    async with over_http(world) as url, Client(url) as client, world.open() as state:
        await call(client, "session.create")
        await call(client, "state.backup.create")
        for version in (0, 1):
            await call(client, "state.shared.set", key="k", value=1, expected_version=version)
        store = state.gateway.store
        [last] = [row.seq for row in await store.list_audit() if "shared.set" in row.entry][1:]

        async def is_swept() -> bool:
            left = [(await store.usage(scope)).keys for scope in (APPROVALS, SESSIONS, OUTBOX)]
            forgotten = (await store.list_events(0)).compacted
            signed = await load_checkpoints(checkpoints_file(state.gateway))
            return not any(left) and forgotten == 1 and any(each.seq >= last for each in signed)

        async with asyncio.timeout(PATIENCE), store.listen() as waiting:
            while not await is_swept():
                await waiting.wait(0.1)


HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "lines", "version": "1"},
    },
}


@contextlib.asynccontextmanager
async def typing_to(world: World, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server to which lines are written as any client may write them."""
    server = command(world)
    process = await asyncio.create_subprocess_exec(
        server.command,
        *server.args,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(server.env or {})},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def say(process: asyncio.subprocess.Process, *lines: Any, answers: int) -> list[Any]:
    """What a server answers to lines, or to messages."""
    assert process.stdin is not None
    assert process.stdout is not None
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    process.stdin.write("".join(f"{line}\n" for line in text).encode())
    return [json.loads(await process.stdout.readline()) for _ in range(answers)]


def deep(request_id: Any, levels: int, method: str = "tools/call") -> str:
    """A call whose arguments are nested so deep, with its number behind them."""
    nested = '{"id": "inner\\"}", "more": [' * levels + "1" + "]}" * levels
    arguments = f'{{"name": "state__persistent__set", "arguments": {{"key": "k", "value": {nested}}}}}'
    number = "" if request_id is None else f', "id": {json.dumps(request_id)}'
    return f'{{"jsonrpc": "2.0", "method": "{method}", "params": {arguments}{number}}}'


async def test_a_line_that_cannot_be_read_is_answered_under_its_number(world: World) -> None:
    async with asyncio.timeout(PATIENCE), typing_to(world) as process:
        said = await say(
            process,
            HELLO,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            deep(1, 100),
            deep("two", 100_000),
            deep(None, 100, "notifications/cancelled"),
            "",
            "what?",
            {"jsonrpc": "2.0", "id": 3, "method": 4},
            {"jsonrpc": "2.0", "id": 5, "result": 6},
            {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "half a letter: \ud83d"}},
            '{"jsonrpc": "2.0", "id": 8, "method": "ping", "text": "' + '\\"' * 200_000 + "\\",
            {"jsonrpc": "2.0", "id": 7, "method": "ping"},
            answers=9,
        )
        rest, _ = await process.communicate(b"")
        assert (rest, process.returncode) == (b"", 0)
    told = [(each["id"], each.get("error", {}).get("code")) for each in said]
    assert told == [
        (0, None),
        (1, types.PARSE_ERROR),
        ("two", types.PARSE_ERROR),
        (None, types.PARSE_ERROR),
        (3, types.INVALID_REQUEST),
        (None, types.INVALID_REQUEST),
        (6, types.PARSE_ERROR),
        (8, types.PARSE_ERROR),
        (7, None),
    ]
    assert "nested too deeply" in said[1]["error"]["message"]


@pytest.mark.parametrize(("signalled", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
async def test_a_server_ends_when_it_is_told_to_whoever_is_still_there(
    world: World, signalled: signal.Signals, code: int
) -> None:
    """Its client has not closed its input, or listens for changes; what it was asked last is in the log."""
    read = {"name": "state__persistent__get", "arguments": {"key": "k"}}
    async with asyncio.timeout(PATIENCE), typing_to(world) as process:
        await say(process, HELLO, answers=1)
        await say(process, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": read}, answers=1)
        process.send_signal(signalled)
        assert await process.wait() == code
    async with world.open() as state:
        assert "state.persistent.get" in (await state.gateway.store.list_audit())[-1].entry
    async with asyncio.timeout(PATIENCE), typing_to(world, "--http", "0") as process:
        assert process.stderr is not None
        url = (await process.stderr.readline()).decode().split()[-1]
        async with Client(url) as client, client.listen(resource_subscriptions=[INBOX_URI]) as listening:
            process.send_signal(signalled)
            assert [event async for event in listening] == []
        assert await process.wait() == code


async def test_arguments_that_are_nested_too_deeply_are_refused(world: World) -> None:
    value: Any = 1
    for _ in range(90):
        value = {"more": [value]}
    async with asyncio.timeout(PATIENCE), over_http(world) as url:
        for server in (url, stdio_client(command(world))):
            async with Client(server) as client:
                refused = await call(client, "state.persistent.set", key="k", value=value)
            assert (refused["error"], "nested" in refused["message"]) == ("InvalidInput", True)


async def test_a_token_is_asked_for_where_one_is_set(world: World) -> None:
    import urllib.error
    import urllib.request

    def status(url: str, **headers: str) -> int:
        request = urllib.request.Request(url, data=b"{}", headers=headers, method="POST")
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE).status
        except urllib.error.HTTPError as refused:
            return refused.code

    async with asyncio.timeout(PATIENCE), over_http(world, token="t0k3n") as url:
        assert await asyncio.to_thread(status, url) == 401
        assert await asyncio.to_thread(status, url, authorization="Bearer wrong") == 401
        assert await asyncio.to_thread(status, url, authorization="Bearer t0k3n") != 401


# -- resources and their doorbell


async def rings(client: Client, *uris: str, after: Callable[[], Awaitable[object]], count: int = 1) -> list[str]:
    """Which resources a client is told of while something happens."""
    async with client.listen(resource_subscriptions=uris) as listening:
        await after()
        heard: list[str] = []
        async for event in listening:
            assert isinstance(event, ResourceUpdated)
            heard.append(event.uri)
            if len(heard) == count:
                return heard
    return heard


async def hears_changes(client: Client, world: World) -> None:
    """Changes of another process ring; what they are is read."""
    assert [each.uri for each in (await client.list_resources()).resources] == [INBOX_URI]
    templates = (await client.list_resource_templates()).resource_templates
    assert [each.uri_template for each in templates] == ["state://shared/{+key}"]
    key = "config/mode 1"
    async with world.open("bob") as bob:

        async def change() -> None:
            await bob.shared.apply("other", lambda value: (value or 0) + 1)
            await bob.shared.apply(key, lambda value: (value or 0) + 1)

        for spelling in (uri_of(key), f"state://shared/{key}"):
            assert await rings(client, spelling, after=change) == [spelling]
        [content] = (await client.read_resource(uri_of(key), cache_mode="refresh")).contents
        assert json.loads(content.text)["value"] == 2  # pyright: ignore[reportAttributeAccessIssue]
        session = (await call(client, "session.create"))["session_id"]
        await call(client, "state.shared.watch", prefix="config", session_id=session)
        assert await rings(client, INBOX_URI, after=change) == [INBOX_URI]
        [content] = (await client.read_resource(INBOX_URI, cache_mode="refresh")).contents
        [message] = json.loads(content.text)["messages"]  # pyright: ignore[reportAttributeAccessIssue]
        assert (message["key"], message["version"]) == (key, 3)


async def test_a_client_is_told_over_stdio_that_a_resource_changed(world: World) -> None:
    async with asyncio.timeout(PATIENCE), Client(stdio_client(command(world))) as client:
        await hears_changes(client, world)


async def test_a_client_is_told_over_http_that_a_resource_changed(world: World) -> None:
    async with asyncio.timeout(PATIENCE), over_http(world) as url, Client(url) as client:
        await hears_changes(client, world)


async def test_what_may_not_be_read_may_not_be_listened_to(world: World) -> None:
    rule = Rule(name="secrets", applies_to="state.shared.get", when={"key": "secret"}, tier="blocked")
    world.policy = Policy(rules=(rule,))
    async with asyncio.timeout(PATIENCE), over_http(world) as url, Client(url) as client:
        for uri in (uri_of("secret"), "state://shared/", "state://else"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)
            with pytest.raises(MCPError):
                async with client.listen(resource_subscriptions=[uri]):
                    pytest.fail(f"{uri} was listened to")
        with pytest.raises(MCPError, match="no key"):
            await client.read_resource(uri_of("missing"))


async def test_who_cannot_listen_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("the store", "away")

    async with asyncio.timeout(PATIENCE), world.open("ann", face="mcp") as state:
        monkeypatch.setattr(state.gateway.store, "list_events", fail)
        wanted = types.SubscriptionsListenRequestParams.model_validate(
            {"notifications": {"resourceSubscriptions": [INBOX_URI]}}
        )
        with pytest.raises(StoreUnavailableError):
            await Resources(state.gateway, "ann").listen(None, wanted)
        monkeypatch.undo()

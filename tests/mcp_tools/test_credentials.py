"""Each run calls the tools of an MCP server as its own user."""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helix_agents import Executor, ToolContext, ToolFailed
from helix_agents.domain.messages import ToolMessage
from helix_agents.mcp_tools import connections
from helix_agents.ports.llm import ModelRequest
from helix_agents.testing import call, reply
from tests.mcp_tools.shelves import Shelf, agent_with, results, until

ORDER = call("shelf__order", {"title": "Tides"})
WHOSE = call("shelf__whose")


def own(ctx: ToolContext[Any, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer secret-of-{ctx.user_id}"}


@asynccontextmanager
async def open_vault(session_id: str, user_id: str | None) -> AsyncGenerator[dict[str, str]]:
    yield {"red": f"secret-of-{user_id}"}


async def slowly(ctx: ToolContext[Any, Any]) -> Mapping[str, str]:
    await asyncio.sleep(0)
    return {"Authorization": f"Bearer {ctx.deps[ctx.metadata['team']]}"}


def ask_and_ask_again(request: ModelRequest) -> Any:
    calls = sum(isinstance(each, ToolMessage) for each in request.messages)
    return {0: reply("Whose?", calls=[WHOSE, WHOSE]), 2: WHOSE, 3: "Done."}[calls]


def users_of_connections(service: Shelf) -> dict[str, set[str]]:
    """Who spoke over each connection of a server that keeps them apart."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in service.told("sessions"):
        connection, token = json.loads(line)
        if connection is not None:
            found[connection].add(token)
    return found


@pytest.mark.parametrize("made", [own, slowly])
@pytest.mark.parametrize("age", ["legacy", "new"])
async def test_a_call_is_made_with_the_credentials_of_its_run_and_shares_its_connection_with_no_other_user(
    made: Any, age: str, service: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    service.say(age)
    server = service.server(run_headers=made, headers={"authorization": "Bearer secret-of-the-service"})
    agent = agent_with(service.tools("whose", server=server), ask_and_ask_again)
    store = service.folder / "helix.db"
    async with Executor.open(f"sqlite:///{store}", agents=[agent], deps=open_vault) as helix:
        users = ["ann", "ben", "ann", "cid"]
        told = await asyncio.gather(*(results(helix, agent, user_id=user, metadata={"team": "red"}) for user in users))
    assert [[each.content for each in said] for said in told] == [[user] * 3 for user in users]
    used = users_of_connections(service)
    assert all(len(tokens) == 1 for tokens in used.values())
    # Calls with the same credentials share one, also across runs.
    assert len(used) == (3 if age == "legacy" else 0)
    assert {*service.told("tokens")} == {f"Bearer secret-of-{user}" for user in users}
    assert not [each for each in caplog.records if "secret-of" in each.getMessage()]
    assert "secret" not in repr(server)
    stored = await asyncio.to_thread(lambda: b"".join(each.read_bytes() for each in store.parent.glob("helix.db*")))
    assert b"Whose?" in stored
    assert b"secret-of" not in stored


async def test_a_token_that_has_expired_is_asked_for_once_more_and_the_call_is_run_once(
    service: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "helix_agents")
    service.say("token", "first")
    given = ["old", "first", "first", "second"]

    async def made(_: ToolContext[Any, Any]) -> dict[str, str]:
        token = given.pop(0)
        if len(given) == 1:
            # It expires while a connection is open.
            await asyncio.to_thread(service.say, "token", "second")
        return {"authorization": f"Bearer {token}"}

    server = service.server(run_headers=made)
    agent = agent_with(service.tools("order", server=server), [ORDER, ORDER, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        told = await results(helix, agent)
    assert [each.content for each in told] == ["ordered Tides"] * 2
    assert (len(service.orders), given) == (2, [])
    assert caplog.text.count("mcp.credentials_again server='shelf'") == 2


@pytest.mark.parametrize("given", [["wrong", "wrong"], ["wrong", "wrong too"]])
async def test_credentials_that_are_not_accepted_are_told_to_the_model_and_the_log(
    given: list[str], service: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "helix_agents")
    service.say("token", "right")
    left = list(given)
    server = service.server(run_headers=lambda _: {"authorization": f"Bearer {left.pop(0)}"})
    agent = agent_with(service.tools("order", server=server), [ORDER, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    why = "MCP server 'shelf' refused the request: it does not accept these credentials (status 401)."
    assert (result.content, result.code) == (why, "tool_failed")
    assert "code='mcp_unauthorized'" in caplog.text
    assert "wrong" not in caplog.text
    assert left == []
    assert {*service.told("tokens")} == {f"Bearer {each}" for each in given}


async def test_a_user_without_credentials_is_told_how_to_get_some(service: Shelf) -> None:
    def none_yet(ctx: ToolContext[Any, Any]) -> dict[str, str]:
        raise ToolFailed("Connect your account first.")

    server = service.server(run_headers=none_yet, headers={"authorization": "Bearer of-the-service"})
    agent = agent_with(service.tools("order", server=server), [ORDER, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert (result.content, result.code) == ("Connect your account first.", "tool_failed")
    assert service.told("tokens") == []


@pytest.mark.parametrize("made", [lambda ctx: {"authorization": ctx.deps["no"]}, lambda ctx: {"a b": "secret"}])
async def test_headers_of_a_run_that_cannot_be_made_fail_the_call_and_are_not_shown(made: Any, service: Shelf) -> None:
    agent = agent_with(service.tools("order", server=service.server(run_headers=made)), [ORDER, "Done."])
    async with Executor.open("memory://", agents=[agent]) as helix:
        [result] = await results(helix, agent)
    assert result.content == "MCP server 'shelf' does not answer: its request headers could not be made."
    assert service.told("tokens") == []


async def test_a_connection_that_its_user_does_not_need_any_more_is_left(
    service: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.01)
    service.say("legacy")
    tools = service.tools("whose", server=service.server(run_headers=own))
    agent = agent_with(tools, [WHOSE, "Done."] * 3)
    async with Executor.open("memory://", agents=[agent]) as helix:
        for user in ("ann", "ben"):
            [result] = await results(helix, agent, user_id=user)
            assert result.content == user
        await until(lambda: len(service.told("goodbye")) == 2)
        [result] = await results(helix, agent, user_id="ann")
        assert result.content == "ann"


async def test_a_catalogue_is_taken_with_the_headers_of_the_service(service: Shelf) -> None:
    service.say("token", "of-the-service")
    server = service.server(run_headers=own, headers={"authorization": "Bearer of-the-service"})
    assert await server.take_catalogue() == service.catalogue
    await server.close()

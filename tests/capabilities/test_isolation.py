"""Two agents and two tenants, all capabilities, all faces: no byte of one reaches another."""

import asyncio
import json
from typing import Any

import pytest

from helix_agents import Agent, Executor, ScriptedModel, open_state
from helix_agents.capabilities.auditing import checkpoints_file, sign_checkpoint, verify_audit
from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.capabilities.client import StateClient
from helix_agents.capabilities.mcp.tools import call_tool
from helix_agents.capabilities.policy import Policy
from helix_agents.cli.app import run as helix
from helix_agents.domain.capability_errors import ApprovalPending, CapabilityError, PolicyDenied
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.messages import ToolMessage
from helix_agents.testing import call, reply
from tests.capabilities.test_agent_tools import bundle_of
from tests.capabilities.worlds import World, approved

TAINT = "taint-of-bob"

INPUTS: dict[str, dict[str, Any]] = {
    "state.session.get": {"key": TAINT},
    "state.session.set": {"key": "mine", "value": 1},
    "state.session.delete": {"key": "mine"},
    "state.persistent.get": {"key": "k"},
    "state.persistent.set": {"key": "mine", "value": 1},
    "state.persistent.delete": {"key": "mine"},
    "state.persistent.query": {"prefix": ""},
    "state.persistent.history": {"key": "k"},
    "state.shared.get": {"key": "s"},
    "state.shared.set": {"key": "s2", "value": 1, "expected_version": 0},
    "state.shared.delete": {"key": "s2"},
    "state.briefing.generate": {"detail_level": "detailed"},
    "alerts.send": {"message": "of ann"},
    "policy.explain": {"capability": "state.shared.set"},
}


async def fill(bob: StateClient) -> str:
    """Bob leaves his mark in everything that is his; answers his session."""
    state = await bob.with_session()
    await state.session.set(TAINT, TAINT)
    for _ in range(3):
        await state.persistent.set("k", {"v": TAINT})
    await state.persistent.set(TAINT, TAINT)
    await state.call("state.shared.watch", prefix=TAINT)
    await state.call("alerts.send", message=TAINT, severity="critical")
    await approved(state, "state.backup.create", agent="bob")
    with pytest.raises(ApprovalPending):
        await state.call(
            "state.backup.export", backup_id=_newest(await state.call("state.backup.list")), path=f"/{TAINT}"
        )
    assert state.caller.session_id is not None
    return state.caller.session_id


def _newest(listed: dict[str, Any]) -> str:
    return listed["backups"][0]["backup_id"]


async def everything(state: StateClient) -> list[Any]:
    """What an agent gets to see by calling everything there is."""
    seen: list[Any] = []
    for name in CATALOGUE:
        inputs = INPUTS.get(name, {})
        if name == "state.snapshot.load":
            inputs = {"snapshot_id": seen[-1]["snapshots"][0]["snapshot_id"]}
        try:
            seen.append(await state.call(name, **inputs))
        except CapabilityError as problem:
            seen.append(problem.as_data())
    return seen


async def test_no_byte_of_another_agent_is_seen_in_python(each_world: World) -> None:
    async with each_world.open("bob") as bob:
        session = await fill(bob)
        async with each_world.open("ann") as ann:
            assert TAINT not in json.dumps(await everything(await ann.with_session()))
            stolen = StateClient(ann.gateway, agent="ann", session_id=session)
            with pytest.raises(CapabilityError, match="does not exist"):
                await stolen.session.get(TAINT)
            listed = await bob.call("state.backup.list")
            with pytest.raises(PolicyDenied):
                await ann.call("state.backup.create", agent="bob")
            with pytest.raises(PolicyDenied):
                await ann.call("state.backup.restore", backup_id=_newest(listed), agent="bob")
            with pytest.raises(CapabilityError, match="another agent"):
                await ann.call("state.backup.restore", backup_id=_newest(listed))
            with pytest.raises(CapabilityError, match="another agent"):
                await ann.call("state.backup.export", backup_id=_newest(listed), path=str(each_world.folder / "out"))


async def test_no_byte_of_another_tenant_is_seen(each_world: World) -> None:
    async with each_world.open("bob", namespace="theirs") as bob:
        await fill(bob)
        await bob.shared.set("s", TAINT, expected_version=0)
        async with each_world.open("bob", namespace="ours") as ours:
            state = await ours.with_session()
            seen = await everything(state)
            assert TAINT not in json.dumps([answer for answer in seen if answer.get("error") is None])
            assert not (await state.shared.get("s")).found
            assert (await state.persistent.list())["count"] == 0


async def test_tenants_of_any_name_have_a_folder_of_their_own_and_all_in_one_place(world: World) -> None:
    elsewhere = str(world.folder / "elsewhere")
    tenants = ("", "default", ".", "..", "../..", "a", "a/b", "a%2Fb", "a/audit", elsewhere, "é", "é" * 256, "é" * 255)
    folders: set[str] = set()
    for tenant in tenants:
        async with world.open(namespace=tenant) as state:
            await state.persistent.set("k", tenant)
            await sign_checkpoint(state.gateway)
            assert (await state.call("state.snapshot.create"))["snapshot_id"]
            where = checkpoints_file(state.gateway).resolve().relative_to(world.folder / "files")
            assert len(where.parts) == 3
            folders.add(where.parts[0])
    assert len(folders) == len(tenants)
    for tenant in tenants:
        async with world.open(namespace=tenant) as state:
            assert (await verify_audit(state.gateway))["findings"] == []


async def test_no_byte_crosses_over_mcp_and_on_the_command_line(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world.open("bob") as bob:
        session = await fill(bob)
    async with world.open("ann", face="mcp") as ann:
        caller = Caller(agent="ann", face="mcp")
        seen: list[Any] = []
        for name in CATALOGUE:
            inputs = {**INPUTS.get(name, {}), "session_id": session}
            seen.append(await call_tool(ann.gateway, caller, name, inputs))
        told = json.dumps([answer for done, answer in seen if done])
        assert TAINT not in told
    store = ["--store", world.url, "--directory", str(world.folder / "files"), "--agent", "ann", "--json"]
    for words in (
        ["state", "persistent", "query", "--prefix", ""],
        ["state", "persistent", "list"],
        ["state", "persistent", "get", "--key", "k"],
        ["state", "shared", "list"],
        ["snapshot", "create"],
        ["briefing", "generate", "--detail-level", "detailed"],
    ):
        assert await asyncio.to_thread(helix, [*words, *store]) == 0
    assert TAINT not in capsys.readouterr().out


async def test_no_byte_crosses_into_another_agents_run(world: World) -> None:
    async with world.open("bob") as bob:
        await fill(bob)
    calls = [
        call(capability.tool_name, INPUTS.get(name, {}))
        for name, capability in CATALOGUE.items()
        if name.startswith(("state.session", "state.persistent", "state.shared", "state.snapshot.c", "state.briefing"))
    ]
    ann = Agent(name="ann", model=ScriptedModel([reply(calls=calls), "done"]), capabilities=[bundle_of(world)])
    async with Executor.open(world.url, agents=[ann]) as executor:
        await (await executor.execute(ann, "go", "s-1")).result()
        page = await executor.sessions.messages("s-1")
    answers = [row.message.content for row in page.items if isinstance(row.message, ToolMessage)]
    assert len(answers) == len(calls)
    assert TAINT not in json.dumps([answer for answer in answers if not isinstance(answer, str)])


async def test_a_policy_may_list_whose_state_an_agent_may_ask_a_person_about(world: World) -> None:
    world.policy = Policy(other_agents={"ann": ["bob"]})
    async with world.open("bob") as bob, world.open("ann") as ann:
        await bob.persistent.set("k", TAINT)
        row = await approved(ann, "state.backup.create", agent="bob")
        assert row.result["scope"] == "agent:bob"
        assert TAINT not in json.dumps(row.result)
        assert row.preview["agents"] == ["bob"]
        path = str(world.folder / "out")
        row = await approved(ann, "state.backup.export", backup_id=row.result["backup_id"], path=path)
        assert (row.status, row.preview["scope"]) == ("executed", "agent:bob")


@pytest.mark.parametrize("name", ["", " ann", "an\0n", "\ud800", "a" * 257, 5])
async def test_nobody_acts_under_a_name_that_no_agent_can_have(name: Any) -> None:
    with pytest.raises(InvalidIdError, match="agent name"):
        async with open_state("memory://names", agent=name):
            pass


@pytest.mark.parametrize("name", ["\ud800", "a\0", "", " a", "a" * 257])
async def test_a_session_that_cannot_be_is_refused_and_the_audit_log_goes_on(world: World, name: str) -> None:
    async with world.open("ann") as state:
        with pytest.raises(InvalidIdError):
            state.in_session(name)
        done, answer = await call_tool(
            state.gateway, Caller(agent="ann", face="mcp"), "state__session__list", {"session_id": name}
        )
        assert (done, answer["error"]) == (False, "SessionNotFound")
        await state.gateway.flush()
        assert [json.loads(row.entry)["status"] for row in await state.gateway.store.list_audit()] == ["failed"]

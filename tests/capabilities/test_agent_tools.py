"""The capabilities as an agent's tools: what they change rides in its steps, its tiers are the engine's."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helix_agents import Agent, AnyAgent, ApprovalAnswer, Completed, Executor, ScriptedModel, Suspended
from helix_agents.capabilities.housekeeping import EXECUTORS
from helix_agents.capabilities.policy import Rule
from helix_agents.capabilities.scopes import HOUSEKEEPING
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.toolset import StateCapabilities, state_capabilities
from helix_agents.domain.capability_errors import DecryptionFailed
from helix_agents.domain.chunks import Custom, ToolApprovalRequest
from helix_agents.domain.entries import EntryTransaction, Put, Remove, session_scope
from helix_agents.domain.entry_plan import ONCE
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing import call, reply
from helix_agents.testing.contracts.entry_handles import entries_of
from helix_agents.testing.entry_scenes import values
from tests.capabilities.worlds import PASSPHRASE, World

SESSION = "s-1"


def agent(script: list[Any], bundle: StateCapabilities, name: str = "ann", **fields: Any) -> AnyAgent:
    return Agent(name=name, model=ScriptedModel(script), capabilities=[bundle], **fields)


def bundle_of(world: World, **options: Any) -> StateCapabilities:
    settings = world.settings()
    given = {
        "directory": settings.directory,
        "vault": world.vault,
        "export_roots": settings.export_roots,
        "limits": world.limits,
    }
    return state_capabilities(**(given | options))


@pytest.fixture
async def backend(world: World) -> AsyncIterator[Backend]:
    async with await open_backend(world.url) as backend:
        yield backend


@pytest.fixture
def entries(backend: Backend) -> EntryStore:
    assert backend.entries is not None
    return backend.entries


async def results(backend: Backend, session_id: str = SESSION) -> list[Any]:
    """What the tools said, in order: answers as objects, errors by name."""
    found: list[Any] = []
    for row in await backend.state.load_transcript(session_id):
        if isinstance(row.message, ToolMessage):
            content = row.message.content
            found.append(json.loads(content)["error"] if row.message.error else content)
    return found


async def run(world: World, who: AnyAgent, message: str = "go", session: str = SESSION) -> Any:
    async with Executor.open(world.url, agents=[who]) as helix:
        return await (await helix.execute(who, message, session)).result()


async def test_session_state_rides_in_steps_and_is_taken_back_by_a_rewind(
    each_world: World,
) -> None:
    script = [
        reply(calls=[call("state__session__set", {"key": "a", "value": 1})]),
        reply(calls=[call("state__session__set", {"key": "a", "value": 2}), call("state__session__get", {"key": "a"})]),
        reply(calls=[call("state__session__list", {}), call("state__session__clear", {})]),
        "done",
    ]
    ann = agent(script, bundle_of(each_world))
    scope = session_scope(SESSION)
    async with await open_backend(each_world.url) as backend, Executor.open(each_world.url, agents=[ann]) as helix:
        entries = entries_of(backend)
        assert isinstance(await (await helix.execute(ann, "go", SESSION)).result(), Completed)
        # Calls of one step all start from what was committed before it.
        assert await results(backend) == [
            {"previous_value": None, "overwritten": False},
            {"previous_value": 1, "overwritten": True},
            {"value": 1, "found": True},
            {"keys": ["a"], "count": 1},
            {"removed_count": 1},
        ]
        assert await values(entries, scope) == {}
        checkpoints = (await backend.state.list_checkpoints(SESSION)).items
        by_step = {each.step_count: each.checkpoint_id for each in checkpoints if each.step_count}
        silent = ScriptedModel(["done"] * 5)
        handle = await helix.resume(ann, SESSION, mode="from_checkpoint", checkpoint_id=by_step[2], model=silent)
        await handle.result()
        assert await values(entries, scope) == {"a": 2}
        assert (await backend.state.load_state(SESSION)).custom_state == {}
        await backend.state.delete_session(SESSION)
        assert await values(entries, scope) == {}


async def test_calls_of_one_step_share_the_sessions_room(world: World, backend: Backend) -> None:
    calls = [call("state__session__set", {"key": f"k{n}", "value": "x" * 40}) for n in range(4)]
    await run(world, agent([reply(calls=calls), "done"], bundle_of(world, limits=Limits(session_bytes=100))))
    told = await results(backend)
    assert sorted(map(str, told)).count("QuotaExceeded") == 2


async def test_a_session_has_no_more_keys_than_it_may(world: World, backend: Backend) -> None:
    def put(key: str) -> Any:
        return call("state__session__set", {"key": key, "value": 1})

    # One after another, and then side by side; what is written over or given up makes room.
    script = [
        reply(calls=[put("a")]),
        reply(calls=[put("b")]),
        reply(calls=[put("c")]),
        reply(calls=[put("b"), call("state__session__delete", {"key": "a"})]),
        reply(calls=[put("d"), put("e")]),
        "done",
    ]
    await run(world, agent(script, bundle_of(world, limits=Limits(keys=2))))
    refused = [each == "QuotaExceeded" for each in await results(backend)]
    assert refused[:5] == [False, False, True, False, False]
    assert sorted(refused[5:]) == [False, True]


async def test_a_write_with_notice_is_told_and_a_repetition_finds_the_first_answer(
    world: World, backend: Backend, entries: EntryStore
) -> None:
    script = [reply(calls=[call("state__shared__set", {"key": "c", "value": 1, "expected_version": 0})]), "done"]
    ann = agent(script, bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        handle = await helix.execute(ann, "go", SESSION)
        chunks = [chunk async for chunk in handle.stream()]
    assert [chunk.name for chunk in chunks if isinstance(chunk, Custom)] == ["state.notification"]
    [notice] = (await entries.list_entries("sys.outbox", values=True)).items
    assert json.loads(notice.value or "")["capability"] == "state.shared.set"
    # The same call of the same session, made again after a crash.
    tool = next(tool for tool in ann.all_tools if tool.name == "state__shared__set")
    [message] = [
        row.message for row in await backend.state.load_transcript(SESSION) if isinstance(row.message, ToolMessage)
    ]
    assert message.content["version"] == 1
    assert tool.effect == "repeatable"
    gateway = bundle_of(world).gateway(entries)
    from helix_agents.capabilities.calls import Caller

    caller = Caller(agent="ann", face="agent", session_id=SESSION)
    inputs = {"key": "c", "value": 1, "expected_version": 0}
    [remembered] = (await entries.list_entries(ONCE)).items
    again = await gateway.call(caller, "state.shared.set", inputs, once=remembered.key)
    assert again == message.content
    assert (await entries.find("shared", "c")).version == 1  # pyright: ignore[reportOptionalMemberAccess]


async def test_a_write_after_a_rewind_is_no_repetition_though_its_call_has_the_same_id(
    world: World, entries: EntryStore
) -> None:
    async with Executor.open(world.url) as helix:
        for version in (0, 1):
            inputs = {"key": "c", "value": f"value {version}", "expected_version": version}
            ann = agent([reply(calls=[call("state__shared__set", inputs, id="c-1")]), "done"], bundle_of(world))
            await (await helix.execute(ann, "go", SESSION)).output()
            await helix.rewind(SESSION, "beginning")
    found = await entries.find("shared", "c")
    assert found is not None
    assert (found.version, json.loads(found.value or "")) == (2, "value 1")


async def test_a_rule_that_asks_for_notices_gets_one_of_every_call(world: World, entries: EntryStore) -> None:
    rule = Rule(name="tell", applies_to="state.*", tier="notify")
    made = ["state__session__set", "state__persistent__set", "state__shared__get", "state__session__list"]
    inputs: dict[str, dict[str, Any]] = {name: {"key": "k", "value": 1} for name in made[:2]}
    inputs["state__shared__get"] = {"key": "k"}
    script = [reply(calls=[call(name, inputs.get(name, {})) for name in made]), "done"]
    ann = agent(script, bundle_of(world, policy=[rule]))
    async with Executor.open(world.url, agents=[ann]) as helix:
        handle = await helix.execute(ann, "go", SESSION)
        chunks = [chunk async for chunk in handle.stream()]
    notices = [json.loads(each.value or "") for each in (await entries.list_entries("sys.outbox", values=True)).items]
    assert sorted(each["capability"].replace(".", "__") for each in notices) == sorted(made)
    shown = {chunk.data["id"] for chunk in chunks if isinstance(chunk, Custom)}
    assert shown == {each["id"] for each in notices}


async def test_reads_and_session_writes_are_audited_with_their_step(world: World, entries: EntryStore) -> None:
    script = [
        reply(
            calls=[
                call("state__persistent__get", {"key": "k"}),
                call("state__session__set", {"key": "s", "value": "secret"}),
                call("state__persistent__set", {"key": "k", "value": "secret"}),
            ]
        ),
        "done",
    ]
    await run(world, agent(script, bundle_of(world)))
    lines = [json.loads(row.entry) for row in await entries.list_audit()]
    assert sorted(line["capability"] for line in lines) == [
        "state.persistent.get",
        "state.persistent.set",
        "state.session.set",
    ]
    assert "secret" not in json.dumps(lines)
    assert all(line["session_id"] == SESSION and line["run_id"] for line in lines)


async def test_what_an_agent_watches_reaches_it_at_its_next_step_once(
    world: World, backend: Backend, entries: EntryStore
) -> None:
    script = [
        reply(calls=[call("state__shared__watch", {"prefix": "config.", "wake": "never"})]),
        "watching",
        "heard",
        "nothing new",
    ]
    ann = agent(script, bundle_of(world))
    await run(world, ann)
    async with world.open("bob") as bob:
        await bob.shared.set("config.mode", "dark", expected_version=0)
        await bob.shared.set("other", 1, expected_version=0)
    await run(world, ann, "again")
    await run(world, ann, "and again")
    hidden = [
        row.message
        for row in await backend.state.load_transcript(SESSION)
        if isinstance(row.message, UserMessage) and row.message.hidden
    ]
    assert len(hidden) == 1
    assert '"key":"config.mode"' in str(hidden[0].content)
    assert '"other"' not in str(hidden[0].content)


# -- approval


def backup_script(**inputs: Any) -> list[Any]:
    return [reply(calls=[call("state__backup__create", inputs, id="call-1")]), "done", "done"]


async def test_an_approved_call_runs_once_and_shows_what_it_would_do(
    world: World, backend: Backend, entries: EntryStore
) -> None:
    async with world.open("ann") as state:
        await state.persistent.set("k", 1)
    ann = agent(backup_script(), bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        handle = await helix.execute(ann, "go", SESSION)
        chunks = [chunk async for chunk in handle.stream()]
        suspended = await handle.result()
        assert isinstance(suspended, Suspended)
        [waiting] = suspended.pending
        assert waiting.preview == {
            "capability": "state.backup.create",
            "agent": "ann",
            "reason": "the tier of the capability itself",
            "agents": ["ann"],
            "shared": True,
            "keys": 1,
            "bytes": 2,
        }
        [asked] = [chunk for chunk in chunks if isinstance(chunk, ToolApprovalRequest)]
        assert asked.preview == waiting.preview
        assert world.files("backups") == []
        # A double click, in two processes; then two resumes at once.
        answers = [await helix.submit_tool_result(SESSION, "call-1", ApprovalAnswer(approved=True)) for _ in range(2)]
        assert [type(each).__name__ for each in answers] == ["AnswerAccepted", "AnswerAlreadyCompleted"]
    async with Executor.open(world.url, agents=[ann]) as one, Executor.open(world.url, agents=[ann]) as two:
        outcomes = await asyncio.gather(one.resume(ann, SESSION), two.resume(ann, SESSION), return_exceptions=True)
        handles = [each for each in outcomes if not isinstance(each, BaseException)]
        assert handles
        assert isinstance(await handles[0].result(), Completed)
    assert len(world.files("backups")) == 1
    [answer] = await results(backend)
    assert answer["scope"] == "full"
    assert (await entries.usage("sys.backups")).keys == 1


async def test_a_denied_or_expired_call_never_runs(world: World, backend: Backend) -> None:
    ann = agent(backup_script(), bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
        await helix.submit_tool_result(SESSION, "call-1", ApprovalAnswer(approved=False, reason="not now"))
        assert isinstance(await (await helix.resume(ann, SESSION)).result(), Completed)
        late = await helix.submit_tool_result(SESSION, "call-1", ApprovalAnswer(approved=True))
        assert type(late).__name__ == "AnswerAlreadyCompleted"
    assert world.files("backups") == []


async def test_a_locked_vault_is_said_before_anybody_is_asked_and_unlocking_meanwhile_approves_nothing(
    world: World, backend: Backend
) -> None:
    world.vault.lock()
    ann = agent(backup_script(), bundle_of(world))
    assert isinstance(await run(world, ann), Completed)
    assert await results(backend) == ["VaultLocked"]
    # The predicate saw a locked vault; the tool finds it open. It must not run.
    bundle = bundle_of(world)
    tool = next(tool for tool in bundle.tools if tool.name == "state__backup__create")
    await world.vault.unlock(PASSPHRASE)
    from helix_agents.agent.context import EntryLink, RunLink, ToolContext
    from helix_agents.agent.failures import ToolFailed
    from helix_agents.agent.state_draft import StateDraft

    alone: ToolContext[Any, Any] = ToolContext.standalone()
    link = RunLink(draft=StateDraft.holding(alone.state), entries=EntryLink(store=backend.entries))
    context = msgspec.structs.replace(alone, link=link)
    with pytest.raises(ToolFailed, match="ApprovalPending"):
        await tool.function(context, agent=None)
    assert world.files("backups") == []


async def test_a_locked_vault_after_the_approval_stops_the_call(world: World, backend: Backend) -> None:
    ann = agent(backup_script(), bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
        world.vault.lock()
        await helix.submit_tool_result(SESSION, "call-1", ApprovalAnswer(approved=True))
        assert isinstance(await (await helix.resume(ann, SESSION)).result(), Completed)
    assert await results(backend) == ["VaultLocked"]
    assert world.files("backups") == []


@pytest.mark.parametrize("row_too", [True, False], ids=["with-its-row", "the-file-alone"])
async def test_another_file_under_the_approved_id_is_not_restored(
    world: World, backend: Backend, entries: EntryStore, row_too: bool
) -> None:
    """Whatever its row says by now: what decides is whether it is the file that was shown."""
    async with world.open("ann", face="operator") as state:
        await state.persistent.set("k", "first")
        one = await state.call("state.backup.create")
        await state.persistent.set("k", "second")
        two = await state.call("state.backup.create")
        await state.persistent.set("k", "third")
    asks = reply(calls=[call("state__backup__restore", {"backup_id": one["backup_id"]}, id="call-1")])
    again = reply(calls=[call("state__backup__restore", {"backup_id": one["backup_id"]}, id="call-2")])
    ann = agent([asks, again, "done"], bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        suspended = await (await helix.execute(ann, "go", SESSION)).result()
        assert isinstance(suspended, Suspended)
        assert suspended.pending[0].preview["keys"]["agent:ann"] == {"added": 0, "changed": 1, "removed": 0}
        # Somebody puts another backup, and perhaps its row, in the place of the one that was shown.
        paths = {path.stem: path for path in world.files("backups")}
        paths[one["backup_id"]].write_bytes(paths[two["backup_id"]].read_bytes())
        if row_too:
            row = await entries.find("sys.backups", two["backup_id"])
            put = Put(scope="sys.backups", key=one["backup_id"], value=row.value or "")  # pyright: ignore[reportOptionalMemberAccess]
            await entries.transact(EntryTransaction(changes=(put,)))
        await helix.submit_tool_result(SESSION, "call-1", ApprovalAnswer(approved=True))
        after = await (await helix.resume(ann, SESSION)).result()
    # Asked for once more, a file that fits its row is shown to a person, and one that does not is worth nobody's time.
    assert isinstance(after, Suspended) == row_too
    assert await results(backend) == (["ApprovalPending"] if row_too else ["ApprovalPending", "DecryptionFailed"])
    async with world.open("ann") as state:
        assert (await state.persistent.get("k")).value == "third"


async def test_a_file_that_is_exchanged_while_it_is_restored_is_not_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at first and read then; what was read has to be what was looked at."""
    from helix_agents.capabilities.backups import Backups

    async with world.open("ann", face="operator") as state:
        await state.persistent.set("k", "first")
        one = await state.call("state.backup.create")
        await state.persistent.set("k", "second")
        two = await state.call("state.backup.create")
        await state.persistent.set("k", "third")
        paths = {path.stem: path for path in world.files("backups")}
        hash_of = Backups.hash_of

        async def exchanging(self: Backups, known: Any) -> str:
            found = await hash_of(self, known)
            await asyncio.to_thread(shutil.copyfile, paths[two["backup_id"]], paths[one["backup_id"]])
            return found

        monkeypatch.setattr(Backups, "hash_of", exchanging)
        with pytest.raises(DecryptionFailed):
            await state.call("state.backup.restore", backup_id=one["backup_id"])
        assert (await state.persistent.get("k")).value == "third"


async def test_edited_input_is_another_call_than_the_one_that_was_shown(world: World, backend: Backend) -> None:
    async with world.open("ann", face="operator") as state:
        await state.persistent.set("k", 1)
        made = await state.call("state.backup.create")
    script = [
        reply(calls=[call("state__backup__restore", {"backup_id": made["backup_id"]}, id="call-1")]),
        "done",
        "done",
    ]
    ann = agent(script, bundle_of(world))
    async with Executor.open(world.url, agents=[ann]) as helix:
        await (await helix.execute(ann, "go", SESSION)).result()
        edited = ApprovalAnswer(approved=True, edited_input={"backup_id": made["backup_id"], "agent": "ann"})
        await helix.submit_tool_result(SESSION, "call-1", edited)
        await (await helix.resume(ann, SESSION)).result()
    assert await results(backend) == ["ApprovalPending"]


async def test_a_rule_makes_a_capability_ask_and_nothing_makes_it_ask_less(world: World, backend: Backend) -> None:
    rules = [
        Rule(name="guard", applies_to="state.shared.*", when={"key": "config.*"}, tier="approval_required"),
        Rule(name="relax", applies_to="state.backup.*", tier="autonomous"),
        Rule(name="never", applies_to="state.persistent.delete", tier="blocked"),
    ]
    script = [
        reply(
            calls=[
                call("state__shared__set", {"key": "free", "value": 1, "expected_version": 0}),
                call("state__shared__set", {"key": "config.a", "value": 1, "expected_version": 0}),
                call("state__backup__create", {}),
                call("state__persistent__delete", {"key": "k"}),
            ]
        )
    ]
    ann = agent(script, bundle_of(world, policy=rules))
    suspended = await run(world, ann)
    assert isinstance(suspended, Suspended)
    assert sorted(each.tool_name for each in suspended.pending) == ["state__backup__create", "state__shared__set"]
    async with world.open("ann") as state:
        assert (await state.shared.get("free")).found
        assert not (await state.shared.get("config.a")).found


async def test_a_run_on_a_store_without_entries_is_told_so_and_goes_on(backend: Backend) -> None:
    ann = agent([reply(calls=[call("state__session__list", {})]), "Then not."], state_capabilities())
    async with Executor(state=backend.state, streams=backend.streams, usage=backend.usage, agents=[ann]) as helix:
        assert isinstance(await (await helix.execute(ann, "go", SESSION)).result(), Completed)
    rows = [row.message for row in await backend.state.load_transcript(SESSION)]
    told = [message.content for message in rows if isinstance(message, ToolMessage)]
    assert [str(content).count("have no place in this store") for content in told] == [1]
    assert backend.entries is not None
    assert await backend.entries.list_scopes("sys.") == ()


async def test_what_agents_keep_that_only_take_over_or_work_for_others_is_looked_after(
    world: World, entries: EntryStore
) -> None:
    helper = agent([], bundle_of(world), "helper", description="Helps.")
    plain: dict[str, Any] = {"name": "ann", "model": ScriptedModel([])}
    for ann in (Agent(**plain, handoffs=[helper]), Agent(**plain, tools=[helper.as_tool()])):
        await entries.transact(EntryTransaction(changes=(Remove(scope=HOUSEKEEPING, key=EXECUTORS),), owner="test"))
        async with Executor.open(world.url, agents=[ann]) as helix:
            await helix.sweep()
        assert await entries.find(HOUSEKEEPING, EXECUTORS) is not None


async def test_a_store_without_entries_is_refused_by_name(tmp_path: Path) -> None:
    from helix_agents.capabilities.client import entries_for
    from helix_agents.domain.errors import UnsupportedBackendError

    with pytest.raises(UnsupportedBackendError, match=r"redis:// does not support .*; use sqlite:///.*postgresql://"):
        entries_for(None, "redis://localhost")
    bundle = state_capabilities()
    with pytest.raises(DefinitionError, match="two tools"):
        Agent(name="twice", model=ScriptedModel([]), capabilities=[bundle, bundle])
    with pytest.raises(DefinitionError, match="state_capabilities"):
        Agent(name="odd", model=ScriptedModel([]), capabilities=[state_capabilities])  # pyright: ignore[reportArgumentType]

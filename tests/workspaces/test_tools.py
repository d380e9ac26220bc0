"""What a model sees of a workspace, which ones cannot be defined, and what stops and failures leave of one."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from helix_agents import (
    Agent,
    Completed,
    DefinitionError,
    EngineOptions,
    Executor,
    Image,
    InMemoryWorkspaces,
    LocalWorkspaces,
    ScriptedModel,
    ToolContext,
    Workspace,
    ask_human,
    tool,
)
from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.domain.workspaces import files_message, key_of, latest_standing, matches, place_of, stands
from helix_agents.engine.steps.workspaces import TAKEN_BACK
from helix_agents.ports.workspaces import WorkspaceOwner
from helix_agents.testing import call, reply
from helix_agents.testing.contracts.executor.stage import until
from tests.workspaces.processes import until_gone, until_there

pytestmark = pytest.mark.anyio

FILES = ["read_file", "ls", "glob", "search", "write_file", "edit", "delete", "move"]


def _agent(workspace: Workspace, *script: Any, **fields: Any) -> Agent[Any, Any, Any]:
    return Agent(name="clerk", model=ScriptedModel(script), workspace=workspace, **fields)


async def _told(helix: Executor, session_id: str = "s") -> list[Any]:
    page = await helix.sessions.messages(session_id)
    found = [each.message for each in reversed(page.items)]
    return [each.content for each in found if isinstance(each, ToolMessage)]


def test_a_model_sees_the_tools_of_what_was_declared() -> None:
    def seen(*capabilities: Any) -> list[str]:
        workspace = Workspace(LocalWorkspaces("work"), capabilities=capabilities)
        return [spec.name.removeprefix("workspace_") for spec in _agent(workspace).tool_specs]

    assert seen("fs") == seen("fs", "snapshot") == FILES
    assert seen("shell") == ["run"]
    assert seen("fs", "shell") == [*FILES, "run"]


def test_what_a_repeat_costs_and_who_is_asked() -> None:
    workspace = Workspace(LocalWorkspaces("work"), capabilities=["fs", "shell"])
    tools = {each.name.removeprefix("workspace_"): each for each in workspace.tools}
    assert [name for name, each in tools.items() if each.effect == "once"] == ["edit", "run"]
    assert [name for name, each in tools.items() if each.require_approval] == ["run"]
    options: dict[str, Any] = {"approve_commands": False, "command_effect": "repeatable"}
    [run] = Workspace(LocalWorkspaces("work"), capabilities=["shell"], **options).tools
    assert (run.effect, run.require_approval) == ("repeatable", False)


def untyped(value: object) -> Any:
    """What nobody looks at the type of."""
    return value


class Sync(InMemoryWorkspaces):
    def open(self, owner: Any) -> Any: ...


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Workspace(untyped("work")), "not a provider of workspaces"),
        (lambda: Workspace(untyped(InMemoryWorkspaces)), "not a provider of workspaces"),
        (lambda: Workspace(Sync()), "async def open"),
        (lambda: Workspace(InMemoryWorkspaces(), capabilities=untyped("fs")), "not a list of words"),
        (lambda: Workspace(InMemoryWorkspaces(), capabilities=untyped(["net"])), "is not one of"),
        (lambda: Workspace(InMemoryWorkspaces(), capabilities=["fs", "shell"]), "does not support 'shell'"),
        (lambda: Workspace(InMemoryWorkspaces(), capabilities=["snapshot"]), "nothing to do"),
        (lambda: Workspace(InMemoryWorkspaces(), command_seconds=0), "command_seconds=0"),
        (lambda: Workspace(InMemoryWorkspaces(), most_file_bytes=0), "most_file_bytes=0"),
        (lambda: Workspace(InMemoryWorkspaces(), most_shown=True), "most_shown=True"),
        (lambda: Workspace(InMemoryWorkspaces(), command_effect=untyped("twice")), "command_effect='twice'"),
        (lambda: Workspace(InMemoryWorkspaces(), approve_commands=untyped("no")), "approve_commands='no'"),
        (lambda: _agent(untyped(InMemoryWorkspaces())), "is not a Workspace"),
    ],
)  # fmt: skip
def test_a_workspace_that_could_not_work_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        make()


async def test_two_providers_of_one_name_are_refused_and_two_of_one_folder_are_the_same() -> None:
    one = _agent(Workspace(InMemoryWorkspaces()), "Hello.")
    other = Agent(name="other", model=ScriptedModel(["Hello."]), workspace=Workspace(InMemoryWorkspaces()))
    async with Executor.open("memory://", agents=[one]) as helix:
        with pytest.raises(DefinitionError, match="another provider of workspaces is also called 'memory'"):
            await helix.execute(other, "Hi", "s")
    assert LocalWorkspaces("work") == LocalWorkspaces("work") != LocalWorkspaces("other")


@pytest.mark.parametrize(
    ("begins", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\n\n\n\nWEBP", "image/webp"),
    ],
)
async def test_a_model_looks_at_an_image_by_reading_it(begins: bytes, kind: str) -> None:
    @tool
    async def paint(ctx: ToolContext[Any, Any]) -> str:
        """A tool of the user that works on the same files."""
        await (await ctx.workspace()).write("pictures/sea", begins + b"\0\xff")
        return "painted"

    script = (call("paint"), call("workspace_read_file", {"path": "pictures/sea"}), "Seen.")
    async with Executor.open("memory://") as helix:
        run = await helix.execute(_agent(Workspace(InMemoryWorkspaces()), *script, tools=[paint]), "Look", "s")
        assert isinstance(await run.result(), Completed)
        page = await helix.sessions.messages("s")
    _, seen = [each.message for each in reversed(page.items) if isinstance(each.message, ToolMessage)]
    assert seen.parts == (Image.of(begins + b"\0\xff", kind, "sea"),)


async def test_what_is_long_is_cut_with_a_sentence_and_what_is_no_text_is_told_as_such() -> None:
    lines = "".join(f"line {n}\n" for n in range(1, 101))
    script = (
        reply(calls=[call("workspace_write_file", {"path": "long", "content": lines}),
                     call("workspace_write_file", {"path": "wide", "content": "x" * 500}),
                     call("workspace_write_file", {"path": "empty", "content": ""}),
                     call("workspace_write_file", {"path": "huge", "content": "x" * 1_001}),
                     call("make_binary")]),
        reply(calls=[call("workspace_read_file", {"path": "long"}),
                     call("workspace_read_file", {"path": "long", "start_line": 99}),
                     call("workspace_read_file", {"path": "long", "start_line": 101}),
                     call("workspace_read_file", {"path": "wide"}),
                     call("workspace_read_file", {"path": "empty"}),
                     call("workspace_read_file", {"path": "binary"}),
                     call("workspace_edit", {"path": "binary", "old_text": "a", "new_text": "b"}),
                     call("workspace_search", {"text": "line"}),
                     call("workspace_search", {"text": "line 1", "path": "long", "pattern": "*.md"}),
                     call("workspace_glob", {"pattern": "*.py"})]),
        "Done.",
    )  # fmt: skip

    @tool
    async def make_binary(ctx: ToolContext[Any, Any]) -> str:
        """A tool of the user that works on the same files."""
        await (await ctx.workspace()).write("binary", b"a\0b")
        return "made"

    workspace = Workspace(InMemoryWorkspaces(), most_file_bytes=1_000, most_shown=100)
    async with Executor.open("memory://") as helix:
        run = await helix.execute(_agent(workspace, *script, tools=[make_binary]), "Go", "s")
        assert isinstance(await run.result(), Completed)
        told = await _told(helix)
    assert told[3] == "'huge' would have 1,001 bytes; at most 1,000 are allowed. Use several files."
    first = "".join(f"line {n}\n" for n in range(1, 14)).rstrip()
    assert told[5:12] == [
        f"{first}\n[These are lines 1 to 13 of 100; read on with start_line=14.]",
        "line 99\nline 100\n",
        "'long' has 100 lines; there is no line 101.",
        f"{'x' * 100}\n[Line 1 has 500 characters; these are the first 100.]",
        "['empty' is empty.]",
        "'binary' is not a text file: its 3 bytes are not UTF-8.",
        "'binary' is not a text file: its 3 bytes are not UTF-8.",
    ]
    assert told[12].splitlines()[0] == "long:1: line 1"
    assert told[12].splitlines()[-1].endswith("of 100; ask for less.]")
    assert told[13].splitlines()[:2] == ["long:1: line 1", "long:10: line 10"]
    assert told[14] == "No file name matches '*.py'."


async def test_a_stop_ends_a_command_with_what_it_started_and_its_files_count_as_changed(tmp_path: Path) -> None:
    command = "sleep 300 & echo $! > pid.new; mv pid.new pid; wait"
    workspace = Workspace(LocalWorkspaces(tmp_path), capabilities=["shell"], approve_commands=False)
    async with Executor.open("memory://", options=EngineOptions(cancel_grace_seconds=0.05)) as helix:
        agent = _agent(workspace, call("workspace_run", {"command": command}))
        run = await helix.execute(agent, "Go", "s")
        pid = await until_there(tmp_path, "*/files/pid")
        await run.abort()
        assert not isinstance(await run.result(), Completed)
        ref = (await helix.sessions.get("s")).workspace_ref
    assert ref is not None
    assert ref.at is not None
    await until_gone(pid)


async def test_a_time_limit_and_a_long_output_are_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"approve_commands": False, "command_seconds": 5, "most_shown": 100}
    workspace = Workspace(LocalWorkspaces(tmp_path), capabilities=["shell"], **options)
    commands = [
        call("workspace_run", {"command": "echo begun; sleep 60", "timeout_seconds": 0.2}),
        call("workspace_run", {"command": "seq 1 1000"}),
    ]
    async with Executor.open("memory://") as helix:
        run = await helix.execute(_agent(workspace, reply(calls=commands), "Done."), "Go", "s")
        assert isinstance(await run.result(), Completed)
        late, long = await _told(helix)
    assert late == "Stopped after 0.2 seconds, because its time was up.\nbegun"
    assert long.startswith("Exit code 0.\n1\n2\n3\n")
    assert long.endswith("999\n1000")
    assert "\n[The output was long; this part was left out.]\n" in long
    assert len(long) < 200


class Forgetful(InMemoryWorkspaces):
    """No snapshot of it is ever made."""

    @property
    def snapshots(self) -> Any:
        return self

    async def create(self, ref: WorkspaceRef, name: str) -> None:
        raise OSError("the disk is full")

    async def list(self, ref: WorkspaceRef) -> list[str]:
        return []

    async def restore(self, ref: WorkspaceRef, name: str | None, *, source: WorkspaceRef | None = None) -> None:
        assert name is None


async def test_a_snapshot_that_fails_holds_up_nothing_and_a_rewind_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workspace = Workspace(Forgetful(), capabilities=["fs", "snapshot"])
    write = call("workspace_write_file", {"path": "a", "content": "x"})
    agent = _agent(workspace, write, write, "Done.")
    async with Executor.open("memory://") as helix:
        with caplog.at_level(logging.WARNING):
            assert isinstance(await (await helix.execute(agent, "Go", "s")).result(), Completed)
        assert caplog.text.count("workspace.not_kept") == 2
        assert "the disk is full" in caplog.text
        [_, _, first] = (await helix.sessions.checkpoints("s")).items
        await helix.rewind("s", first.checkpoint_id)
        assert isinstance(await (await helix.execute(agent, "Again", "s")).result(), Completed)
        assert isinstance(agent.model, ScriptedModel)
        assert files_message(TAKEN_BACK) in agent.model.requests[-1].messages


class Stuck(InMemoryWorkspaces):
    """A disk of another machine that does not answer when something is to be deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        self.asked.set()
        await self.answers.wait()


async def test_a_provider_that_deletes_nothing_holds_up_only_sessions_that_expired() -> None:
    stuck = Stuck()
    asks = call("ask_human", {"question": "Which file?"})
    agent = _agent(Workspace(stuck), asks, asks, tools=[ask_human(deadline=0.05)])
    async with asyncio.timeout(20), Executor.open("memory://", agents=[agent], janitor_seconds=0.01) as helix:
        await (await helix.execute(agent, "Go", "s-1", expires_in=0.001)).result()
        await stuck.asked.wait()
        await (await helix.execute(agent, "Go", "s-2")).result()

        async def is_late() -> bool:
            found = await helix.list_pending(PendingFilter(session_id="s-2", states=("expired", "consumed", "dropped")))
            return found.total > 0

        await until(is_late)
        assert (await helix.sessions.get("s-1")).status == "active"
        stuck.answers.set()

        async def is_expired() -> bool:
            return (await helix.sessions.get("s-1")).failure_reason == "session_expired"

        await until(is_expired)


async def test_an_agent_whose_provider_was_exchanged_is_told_which_one_its_session_knows() -> None:
    write = call("workspace_write_file", {"path": "a", "content": "x"})
    async with Executor.open("memory://") as helix:
        before = _agent(Workspace(InMemoryWorkspaces("old")), write, "Done.")
        assert isinstance(await (await helix.execute(before, "Go", "s")).result(), Completed)
        after = _agent(Workspace(InMemoryWorkspaces("new")), "", "", write, "Done.")
        assert isinstance(await (await helix.execute(after, "Go on", "s")).result(), Completed)
        assert "it belongs to provider 'old', but agent 'clerk' has 'new' now" in (await _told(helix))[-1]


async def test_a_workspace_whose_provider_nobody_here_has_is_left_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'helix.db'}"
    write = call("workspace_write_file", {"path": "a", "content": "x"})
    async with Executor.open(url) as helix:
        agent = _agent(Workspace(LocalWorkspaces(tmp_path / "work")), write, "Done.")
        assert isinstance(await (await helix.execute(agent, "Go", "s")).result(), Completed)
    async with Executor.open(url) as helix:
        with pytest.raises(WorkspaceFailedError, match="no agent here has the workspace provider 'local'"):
            await helix.sessions.workspace("s")
        with caplog.at_level(logging.WARNING):
            await helix.sessions.delete("s")
    [left] = (tmp_path / "work").iterdir()
    assert "workspace.left" in caplog.text
    assert left.name in caplog.text


@pytest.mark.parametrize(
    ("path", "pattern", "meant"),
    [
        ("a.py", "*.py", True),
        ("d/a.py", "*.py", False),
        ("d/e/a.py", "**/*.py", True),
        ("a.py", "**/*.py", True),
        ("d/a.py", "d/**", True),
        ("d/a.py", "**/d/*", True),
        ("d/a.py", "?/a.*", True),
        pytest.param("x" * 200, "*x" * 50 + "y", False, id="many stars"),
        pytest.param("/".join("a" * 40), "/".join(["**", "a"] * 15) + "/b", False, id="many folders"),
    ],
)
def test_which_paths_a_pattern_means(path: str, pattern: str, meant: bool) -> None:
    assert matches(path, pattern) is meant


def test_places_of_a_conversation() -> None:
    told = [ToolMessage(tool_call_id=str(n), tool_name="t", content=n) for n in range(4)]
    places = [place_of(n, told[n - 1] if n else None) for n in range(5)]
    assert all(stands(each, told) for each in places)
    other = [*told[:2], ToolMessage(tool_call_id="2", tool_name="t", content="other"), told[3]]
    assert [stands(each, other) for each in places] == [True, True, True, False, True]
    assert latest_standing(places[:4], other) == places[2]
    assert latest_standing((), other) is None
    assert not stands(places[3], told[:2])


def test_keys_are_file_names_and_those_of_no_other_session() -> None:
    keys = [key_of(name, at) for name in ("s-1", "S/1", "../..", "ä", "x" * 500) for at in (1, 2)]
    assert len({*keys}) == 10
    assert keys[0].startswith("s-1-")
    assert all(len(each) <= 65 and each.replace("-", "").isalnum() and each.isascii() for each in keys)

"""Scenarios of workspaces: one folder of files for a session, wherever it continues, and none for any other."""

from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.skills import Skill
from helix_agents.agent.tools import tool
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import ApprovalAnswer
from helix_agents.domain.sessions import BranchPoint, WorkspaceRef
from helix_agents.domain.workspaces import files_message
from helix_agents.engine.steps.workspaces import BRANCHED, TAKEN_BACK
from helix_agents.engine.workspace_in_hand import owner_of
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.workspaces import WorkspaceOwner
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    suspended,
    transcript,
    until,
)
from helix_agents.workspaces.local import LocalWorkspaces

TWICE = (
    "The text to replace is in 'b.txt' 2 times; nothing was changed. Give more of the text around the place that you "
    "mean, or set replace_all."
)


class _Folders(LocalWorkspaces):
    """Workspaces in folders, which record for whom they were opened and may be out of order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []
        self.is_away = False

    async def open(self, owner: WorkspaceOwner) -> WorkspaceRef:
        if self.is_away:
            raise ConnectionError("nobody at home")
        self.opened.append(owner.key)
        return await super().open(owner)

    @property
    def there(self) -> dict[str, dict[str, str]]:
        """What is in which workspace."""
        return {each.name: _texts(each / "files") for each in sorted(self.root.iterdir())}

    async def has_a_file(self) -> bool:
        """Whether something was written."""
        return self.root.exists() and any(self.there.values())

    @property
    def only(self) -> dict[str, str]:
        [files] = self.there.values()
        return files


def _texts(folder: Path) -> dict[str, str]:
    found = sorted(each for each in folder.rglob("*") if each.is_file())
    return {each.relative_to(folder).as_posix(): each.read_text() for each in found}


def _agent(folders: LocalWorkspaces, *script: Any, **fields: Any) -> tuple[AnyAgent, ScriptedModel]:
    model = ScriptedModel(script)
    options: dict[str, Any] = {"capabilities": ["fs", "shell", "snapshot"], **fields.pop("options", {})}
    return Agent(name="clerk", model=model, workspace=Workspace(folders, **options), **fields), model


def _write(path: str, content: str) -> Any:
    return call("workspace_write_file", {"path": path, "content": content})


async def _results(helix: Executor, session_id: str = SESSION) -> list[tuple[Any, bool]]:
    messages = await transcript(helix, session_id)
    return [(each.content, each.error) for each in messages if isinstance(each, ToolMessage)]


def _was_told(model: ScriptedModel, notice: str) -> list[bool]:
    return [files_message(notice) in asked.messages for asked in model.requests]


class WorkspacesContract(ScenarioContract):
    """Files belong to a session as its messages do."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> _Folders:
        return _Folders(tmp_path / "work")

    async def test_a_model_works_with_files_and_hears_clearly_what_does_not_go(
        self, helix: Executor, folders: _Folders
    ) -> None:
        agent, _ = _agent(
            folders,
            # All at once: whichever tool comes first opens the workspace, and there is only one.
            reply(calls=[_write("notes/a.txt", "one\ntwo\nthree\n"), _write("b.txt", "two two"), call("workspace_ls")]),
            reply(
                calls=[
                    call("workspace_read_file", {"path": "notes/a.txt", "start_line": 2, "end_line": 2}),
                    call("workspace_read_file", {"path": "../../etc/passwd"}),
                    call("workspace_edit", {"path": "b.txt", "old_text": "two", "new_text": "2"}),
                    call("workspace_edit", {"path": "b.txt", "old_text": "six", "new_text": "6"}),
                ]
            ),
            call("workspace_edit", {"path": "notes/a.txt", "old_text": "two", "new_text": "2"}),
            reply(
                calls=[
                    call("workspace_glob", {"pattern": "**/*.txt"}),
                    call("workspace_search", {"text": "TWO", "ignore_case": True}),
                ]
            ),
            reply(
                calls=[
                    call("workspace_move", {"path": "notes/a.txt", "target": "c/a.txt"}),
                    call("workspace_delete", {"path": "nothing"}),
                ]
            ),
            "Done.",
        )
        assert await completed(await helix.execute(agent, "Work", SESSION)) == "Done."
        told = await _results(helix)
        assert told[:2] == [("Wrote 14 bytes to 'notes/a.txt'.", False), ("Wrote 7 bytes to 'b.txt'.", False)]
        assert told[3:] == [
            ("two\n", False),
            (
                "'../../etc/passwd': a path may not go up with ..; nothing outside the workspace can be reached.",
                True,
            ),
            (TWICE, True),
            ("The text to replace is not in 'b.txt'; nothing was changed. Read the file again.", True),
            ("Replaced 1 place in 'notes/a.txt'.", False),
            ("b.txt (7 bytes)\nnotes/a.txt (12 bytes)", False),
            ("b.txt:1: two two", False),
            ("Moved 'notes/a.txt' to 'c/a.txt'.", False),
            ("There is nothing at 'nothing'.", False),
        ]
        assert folders.only == {"b.txt": "two two", "c/a.txt": "one\n2\nthree\n"}
        files = await helix.sessions.workspace(SESSION)
        assert files is not None
        assert await files.read("b.txt", most_bytes=100) == b"two two"
        await helix.sessions.delete(SESSION)
        assert folders.there == {}

    async def test_a_command_waits_for_a_person_and_finds_the_same_files_in_another_process(
        self, open_executor: OpenExecutor, folders: _Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
        script = (
            _write("a.txt", "one\n"),
            reply(calls=[_write("b.txt", "two\n"), call("workspace_run", {"command": "cat a.txt; env; exit 3"})]),
            "Done.",
        )
        agent, _ = _agent(folders, *script)
        async with open_executor() as helix:
            [pending] = (await suspended(await helix.execute(agent, "Run it", SESSION))).pending
            assert pending.approval_id is not None
        agent, _ = _agent(folders, *script)
        async with open_executor(agents=[agent]) as helix:
            answer = ApprovalAnswer(approved=True)
            await helix.submit_tool_result(SESSION, pending.tool_call_id, answer, approval_id=pending.approval_id)
            assert await completed(await helix.resume(agent, SESSION)) == "Done."
            [*_, (output, error)] = await _results(helix)
        assert (output.startswith("Exit code 3.\none\n"), "SECRET_OF_THE_HOST" in output, error) == (True, False, False)
        assert folders.only == {"a.txt": "one\n", "b.txt": "two\n"}

    async def test_a_script_of_a_skill_runs_once_it_was_copied_and_a_rewind_takes_the_copy_back(
        self, open_executor: OpenExecutor, folders: _Folders
    ) -> None:
        script = (
            call("load_skill", {"name": "tides"}),
            call("workspace_copy_skill", {"skill": "tides"}),
            call("workspace_run", {"command": "cd skills/tides && sh bin/high.sh"}),
            "High water is at 6:12.",
        )
        tides = Skill(
            name="tides",
            description="Reads tide tables.",
            body="Run bin/high.sh.",
            files={"bin/high.sh": "grep high brest.txt\n", "brest.txt": "high 6:12\nlow 12:30\n"},
        )
        agent, _ = _agent(folders, *script, skills=[tides])
        async with open_executor() as helix:
            await suspended(await helix.execute(agent, "When is high water?", SESSION))
        agent, _ = _agent(folders, *script, skills=[tides])
        async with open_executor(agents=[agent]) as helix:
            [pending] = (await helix.list_pending()).items
            answer = ApprovalAnswer(approved=True)
            await helix.submit_tool_result(SESSION, pending.tool_call_id, answer, approval_id=pending.approval_id)
            assert await completed(await helix.resume(agent, SESSION)) == "High water is at 6:12."
            told = (
                "Run bin/high.sh.\n\nFiles of this skill, for `read_skill_file`, or `workspace_copy_skill` if they are "
                "to be run:\n- bin/high.sh\n- brest.txt"
            )
            copied, ran = "Copied to skills/tides: bin/high.sh, brest.txt.", "Exit code 0.\nhigh 6:12"
            assert await _results(helix) == [(told, False), (copied, False), (ran, False)]
            assert folders.only == {f"skills/tides/{path}": text for path, text in tides.files.items()}
            loaded = (await helix.sessions.checkpoints(SESSION)).items[-1]
            await helix.rewind(SESSION, loaded.checkpoint_id)
            later, _ = _agent(folders, script[0], "Never mind.", skills=[tides])
            assert await completed(await helix.execute(later, "Never mind", SESSION)) == "Never mind."
            assert folders.only == {}

    async def test_a_process_that_dies_between_opening_a_workspace_and_its_commit_leaves_one_that_is_found_again(
        self, open_executor: OpenExecutor, folders: _Folders
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        script = (reply(calls=[_write("a.txt", "one"), call("work")]), call("workspace_ls"), "Done.")
        agent, _ = _agent(folders, *script, tools=[work])
        async with open_executor(grace=0) as dying:
            await dying.execute(agent, "Go", SESSION)
            await gate.until_reached()
            await until(folders.has_a_file)
            assert (await dying.sessions.get(SESSION)).workspace_ref is None
        gate.opened.set()
        agent, _ = _agent(folders, *script, tools=[work])
        async with open_executor(agents=[agent]) as other:
            await other.recover()
            handle = await other.get_handle(agent, SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."
            assert (await _results(other))[-1] == ("a.txt (3 bytes)", False)
            ref = (await other.sessions.get(SESSION)).workspace_ref
        assert ref is not None
        assert {*folders.opened} == {ref.owner} == {*folders.there}

    async def test_a_workspace_that_nobody_wrote_down_goes_with_its_session_when_it_expires(
        self, open_executor: OpenExecutor, folders: _Folders, clock: ManualClock
    ) -> None:
        agent, _ = _agent(folders, call("ask_human", {"question": "And?"}), tools=[ask_human()])
        async with open_executor(agents=[agent]) as helix:
            await suspended(await helix.execute(agent, "Go", SESSION, expires_in=3600))
            session = await helix.sessions.get(SESSION)
            # As by a process that dies before its commit; and another one, on another store.
            await folders.open(owner_of(session))
            await folders.open(WorkspaceOwner(key="elsewhere", session_id=SESSION))
            assert (session.workspace_ref, len(folders.there)) == (None, 2)
            clock.advance(3600 * 1000)
            assert (await helix.sweep()).expired_sessions == 1
        assert {*folders.there} == {"elsewhere"}

    async def test_a_rewind_brings_files_back_and_a_branch_has_a_copy_of_its_own(
        self, helix: Executor, folders: _Folders
    ) -> None:
        begun = (_write("a.txt", "one"), "First.")
        agent, _ = _agent(folders, *begun, _write("a.txt", "two"), _write("b.txt", "new"), "Second.")
        reading = (call("workspace_read_file", {"path": "a.txt"}), "Read.", _write("a.txt", "branched"), "Changed.")
        later, model = _agent(folders, *begun, call("workspace_ls"), "Looked.", "Only the branch goes on.", *reading)
        assert await completed(await helix.execute(agent, "One", SESSION)) == "First."
        [first, *_] = (await helix.sessions.checkpoints(SESSION)).items
        assert await completed(await helix.execute(agent, "Two", SESSION)) == "Second."
        [second, *_] = (await helix.sessions.checkpoints(SESSION)).items
        assert folders.only == {"a.txt": "two", "b.txt": "new"}
        branch = BranchPoint(from_session_id=SESSION, checkpoint_id=second.checkpoint_id)
        await helix.rewind(SESSION, first.checkpoint_id)
        assert await completed(await helix.execute(later, "Look", SESSION)) == "Looked."
        assert (await _results(helix))[-1] == ("a.txt (3 bytes)", False)
        assert folders.only == {"a.txt": "one"}
        # A branch of the conversation as it was before it was rewound has the files of that time.
        assert await completed(await helix.execute(later, "Read", "branch", branch=branch)) == "Read."
        assert (await _results(helix, "branch"))[-1] == ("two", False)
        assert await completed(await helix.execute(later, "Change", "branch")) == "Changed."
        assert sorted(folders.there.values(), key=len) == [{"a.txt": "one"}, {"a.txt": "branched", "b.txt": "new"}]
        assert not any((*_was_told(model, TAKEN_BACK), *_was_told(model, BRANCHED)))
        await helix.sessions.delete("branch")
        assert folders.only == {"a.txt": "one"}

    async def test_without_snapshots_the_model_is_told_that_files_are_not_what_it_knows(
        self, helix: Executor, folders: _Folders
    ) -> None:
        plain: dict[str, Any] = {"options": {"capabilities": ["fs"]}}
        agent, _ = _agent(folders, _write("a.txt", "one"), _write("a.txt", "two"), "First.", **plain)
        later, model = _agent(folders, _write("a.txt", "one"), "Again.", "Once more.", "Branch.", "On.", **plain)
        assert await completed(await helix.execute(agent, "One", SESSION)) == "First."
        [_, _, begun] = (await helix.sessions.checkpoints(SESSION)).items
        await helix.sessions.branch(SESSION, "branch")
        await helix.rewind(SESSION, begun.checkpoint_id)
        assert await completed(await helix.execute(later, "Again", SESSION)) == "Again."
        assert await completed(await helix.execute(later, "Once more", SESSION)) == "Once more."
        assert _was_told(model, TAKEN_BACK) == [True, True]
        assert (await transcript(helix)).count(files_message(TAKEN_BACK)) == 1
        assert await completed(await helix.execute(later, "Branch", "branch")) == "Branch."
        assert await completed(await helix.execute(later, "On", "branch")) == "On."
        assert _was_told(model, BRANCHED) == [False, False, True, True]
        assert sorted(folders.there.values(), key=len) == [{}, {"a.txt": "two"}]

    async def test_a_provider_that_is_out_of_order_is_told_to_the_model_and_fails_a_branch_that_needs_it(
        self, helix: Executor, folders: _Folders
    ) -> None:
        agent, model = _agent(folders, _write("a.txt", "one"), "A pity.", _write("a.txt", "one"), "Good.", "Better.")
        folders.is_away = True
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "A pity."
        assert await _results(helix) == [("ConnectionError: nobody at home", True)]
        folders.is_away = False
        assert await completed(await helix.execute(agent, "Again", SESSION)) == "Good."
        await helix.sessions.branch(SESSION, "branch")
        folders.is_away = True
        result = await failed(await helix.execute(agent, "Go on", "branch"))
        assert (result.code, result.retryable, model.asked) == ("workspace_failed", True, 4)
        folders.is_away = False
        assert await completed(await helix.retry(agent, "branch")) == "Better."
        assert [*folders.there.values()] == [{"a.txt": "one"}] * 2

    async def test_a_sub_agent_has_a_workspace_only_if_it_says_so_and_then_its_own(
        self, helix: Executor, folders: _Folders
    ) -> None:
        workspace = Workspace(folders)
        helper = Agent(
            name="helper", model=ScriptedModel([_write("a.txt", "child"), "Written."]), description="Helps.",
            workspace=workspace,
        )  # fmt: skip
        plain = Agent(name="plain", model=ScriptedModel(["Nothing."]), description="Does nothing.")
        calls = [_write("a.txt", "parent"), call("subagent__helper", {"message": "Go"})]
        boss, _ = _agent(folders, reply(calls=calls), "Done.", tools=[helper.as_tool(), plain.as_tool()])
        assert plain.all_tools == ()
        assert await completed(await helix.execute(boss, "Go", SESSION)) == "Done."
        assert sorted(each["a.txt"] for each in folders.there.values()) == ["child", "parent"]
        await helix.sessions.delete(SESSION)
        assert folders.there == {}

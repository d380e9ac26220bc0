"""An agent with its own files: a person approves its command, and a branch continues with a copy of the files."""

import asyncio
from pathlib import Path

from helix_agents import Agent, ApprovalAnswer, Executor, LocalWorkspaces, ScriptedModel, Suspended, Workspace
from helix_agents.testing import call

STORE = "sqlite:///helix.db"
workspace = Workspace(LocalWorkspaces(Path.cwd() / "work"), capabilities=["fs", "shell", "snapshot"])
script = ScriptedModel(
    [
        call("workspace_write_file", {"path": "sum.py", "content": "print(2 + 2)\n"}),
        call("workspace_run", {"command": "grep -c print sum.py"}),
        "One line, and it prints.",
        call("workspace_edit", {"path": "sum.py", "old_text": "2 + 2", "new_text": "3 + 3"}),
        "Changed.",
    ]
)
agent = Agent(name="coder", model=script, instructions="Write small programs.", workspace=workspace)


async def main() -> None:
    async with Executor.open(STORE, agents=[agent]) as helix:
        for session_id in ("code-1", "code-2"):  # so that you can run this again
            await helix.sessions.delete(session_id)
        result = await (await helix.execute(agent, "Write a sum", "code-1")).result()
        assert isinstance(result, Suspended)
        [waiting] = result.pending
        print(f"may I run {waiting.input['command']!r}?")
        await helix.submit_tool_result("code-1", waiting.tool_call_id, ApprovalAnswer(approved=True))
        print(await (await helix.resume(agent, "code-1")).output())

        await helix.sessions.branch("code-1", "code-2")
        print(await (await helix.execute(agent, "Another one", "code-2")).output())
        for session_id in ("code-1", "code-2"):
            files = await helix.sessions.workspace(session_id)
            assert files is not None
            print(session_id, (await files.read("sum.py", most_bytes=1_000)).decode().strip())


if __name__ == "__main__":
    asyncio.run(main())

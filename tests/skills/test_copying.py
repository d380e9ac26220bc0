"""Files of a skill in a workspace: what is copied byte for byte, and what is left out with a reason."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helix_agents import (
    Agent,
    DefinitionError,
    Executor,
    InMemoryWorkspaces,
    ScriptedModel,
    Skill,
    SkillFolder,
    Workspace,
    tool,
)
from helix_agents.domain.messages import ToolMessage
from helix_agents.ports.skills import LineRange, LoadedSkill, SkillInfo
from helix_agents.testing import call

pytestmark = pytest.mark.anyio

COPY = "workspace_copy_skill"


class Wiki:
    """A provider that has texts only, and lists a path that leads out of its skill."""

    files = {"a.sh": "echo a\n"}

    async def list_skills(self) -> Sequence[SkillInfo]:
        return [SkillInfo(name="wiki", description="How we do it.")]

    async def get_skill(self, name: str) -> LoadedSkill | None:
        return LoadedSkill(name=name, description="How.", body="Run.", files=("a.sh", "../../b.sh", "gone.sh"))

    async def read_resource(self, name: str, path: str, range: LineRange | None = None) -> str | None:
        return "echo b\n" if path.endswith("b.sh") else self.files.get(path)


async def results(agent: Agent[Any, Any, Any]) -> tuple[list[Any], dict[str, bytes]]:
    """The results of an agent's calls, and the files it has then."""
    async with Executor.open("memory://", agents=[agent]) as helix:
        await helix.run(agent, "Go", "s")
        page = await helix.sessions.messages("s")
        told = [each.message for each in reversed(page.items)]
        files = await helix.sessions.workspace("s")
        listed = [] if files is None else [each.path for each in await files.list(deep=True) if each.kind == "file"]
        found = {path: await files.read(path, most_bytes=100_000) for path in listed} if files is not None else {}
    return [each.content for each in told if isinstance(each, ToolMessage)], found


def clerk(skills: Any, *script: Any, **options: Any) -> Agent[Any, Any, Any]:
    return Agent(
        name="clerk",
        model=ScriptedModel([*script, "Done."]),
        skills=skills,
        workspace=Workspace(InMemoryWorkspaces(), **options),
    )


def copying(skill: str) -> Any:
    return call(COPY, {"skill": skill})


def test_only_an_agent_with_skills_and_a_workspace_copies() -> None:
    skill = Skill(name="tides", description="Reads.", body="Look.")
    plain = Agent(name="clerk", model=ScriptedModel([]), skills=[skill])
    assert COPY not in {each.name for each in plain.all_tools}
    assert COPY not in {each.name for each in clerk(None).all_tools}
    assert COPY in {each.name for each in clerk([skill]).all_tools}
    with pytest.raises(DefinitionError, match="belong to built-in tools"):
        tool(name=COPY, description="Mine.")(lambda: None)


async def test_files_of_a_folder_are_copied_byte_for_byte_and_again_when_asked_to(tmp_path: Path) -> None:
    tides = tmp_path / "tides"
    (tides / "bin").mkdir(parents=True)
    (tides / "SKILL.md").write_text("---\nname: tides\ndescription: Reads tides.\n---\nRun bin/high.sh.\n")
    (tides / "bin" / "high.sh").write_bytes(b"\xef\xbb\xbfecho high\r\n")
    (tides / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (tides / "large.csv").write_bytes(b"x" * 2_000)
    script = (
        copying("tides"),
        call("workspace_write_file", {"path": "skills/tides/bin/high.sh", "content": "mine"}),
        copying("tides"),
    )
    told, files = await results(clerk(SkillFolder(tmp_path), *script, most_file_bytes=1_000))
    copied = (
        "Copied to skills/tides: bin/high.sh, picture.png. "
        "Left out: large.csv (2,000 bytes; at most 1,000 are allowed)."
    )
    assert told == [copied, "Wrote 4 bytes to 'skills/tides/bin/high.sh'.", copied]
    assert files == {
        "skills/tides/bin/high.sh": b"\xef\xbb\xbfecho high\r\n",
        "skills/tides/picture.png": b"\x89PNG\r\n\x1a\n\0",
    }


async def test_texts_of_any_provider_are_copied_and_no_path_leaves_the_folder_of_its_skill() -> None:
    told, files = await results(clerk(Wiki(), copying("wiki")))
    assert told == [
        "Copied to skills/wiki: a.sh. Left out: ../../b.sh (not a path inside the skill), gone.sh (not there any more)."
    ]
    assert files == {"skills/wiki/a.sh": b"echo a\n"}


async def test_what_cannot_be_copied_is_told() -> None:
    bare = Skill(name="bare", description="Has none.", body="Look.")
    big = Skill(name="big", description="Has one.", body="Look.", files={"a.txt": "x" * 20})
    blocked = Skill(name="blocked", description="Has one.", body="Look.", files={"a/b.txt": "x"})
    script = (
        copying("bare"),
        copying("none"),
        copying("big"),
        call("workspace_write_file", {"path": "skills/blocked/a", "content": "a file"}),
        copying("blocked"),
    )
    told, files = await results(clerk([bare, big, blocked], *script, most_file_bytes=10))
    assert told[:3] == [
        "The skill 'bare' has no files; its text is all there is.",
        "There is no skill 'none'. There are: bare, big, blocked.",
        "No file of the skill 'big' could be copied: a.txt (20 bytes; at most 10 are allowed).",
    ]
    assert "'skills/blocked/a" in told[4]
    assert files == {"skills/blocked/a": b"a file"}

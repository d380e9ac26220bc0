"""The tool with which a model copies the files of a skill into its workspace, where its scripts can run."""

from typing import Any

from helix_agents.agent.built_in_tools import built_in_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.names import COPY_SKILL
from helix_agents.agent.skills import MOST_FILES_TOLD, found_skill, inside
from helix_agents.agent.tools import Tool
from helix_agents.agent.workspace import Workspace
from helix_agents.agent.workspace_tools import tells_model
from helix_agents.ports.skills import PATIENCE_SECONDS, SkillFiles, SkillProvider

FOLDER = "skills"
"""The folder of a workspace that has a folder for each copied skill."""

_LONGEST_SECONDS = 5 * PATIENCE_SECONDS
"""How long a provider may take for all files of a skill, which it is asked for one after another."""


def copy_skill_tool(provider: SkillProvider, workspace: Workspace) -> Tool[..., Any]:
    """The tool, for an agent that has both skills and a workspace."""
    most_bytes = workspace.most_file_bytes

    @tells_model
    async def copy_skill(ctx: ToolContext[Any, Any], skill: str) -> str:
        """Copy the files of a skill into your workspace, to run its scripts there or to change the copies. Copying a
        skill again replaces the copies.

        Args:
            skill: The name of the skill, as in <available_skills>.
        """
        paths = (await found_skill(provider, skill)).files
        if not paths:
            raise ToolFailed(f"The skill {skill!r} has no files; its text is all there is.")
        files = await ctx.link.open_files(changes=True)
        copied: list[str] = []
        left: list[str] = []
        for path in paths:
            content, problem = await _content_of(provider, skill, path)
            if content is None:
                left.append(f"{path} ({problem})")
            elif len(content) > most_bytes:
                left.append(f"{path} ({len(content):,} bytes; at most {most_bytes:,} are allowed)")
            else:
                await files.write(f"{FOLDER}/{skill}/{path}", content)
                copied.append(path)
        if not copied:
            raise ToolFailed(f"No file of the skill {skill!r} could be copied: {_list_of(left)}.")
        said = f"Copied to {FOLDER}/{skill}: {_list_of(copied)}."
        return f"{said} Left out: {_list_of(left)}." if left else said

    return built_in_tool(COPY_SKILL, copy_skill, timeout_ms=round(_LONGEST_SECONDS * 1000))


async def _content_of(provider: SkillProvider, skill: str, path: str) -> tuple[bytes | None, str]:
    """The content of a file, or None and why there is none."""
    # The provider may be anyone's, and the path goes into another folder.
    if inside(path) is None:
        return None, "not a path inside the skill"
    try:
        if isinstance(provider, SkillFiles):
            found: Any = await provider.read_bytes(skill, path)
            return (found, "") if isinstance(found, bytes) else (None, "not there any more")
        text: Any = await provider.read_resource(skill, path)
        return (text.encode(), "") if isinstance(text, str) else (None, "not there any more")
    except ToolFailed as problem:
        return None, str(problem).rstrip(".")


def _list_of(lines: list[str]) -> str:
    more = f", and {len(lines) - MOST_FILES_TOLD} more" if len(lines) > MOST_FILES_TOLD else ""
    return ", ".join(lines[:MOST_FILES_TOLD]) + more

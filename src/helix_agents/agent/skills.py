"""Skills: texts that tell a model how to do something. The model sees their names and reads the ones it needs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isclass
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeAlias, cast

from pydantic import Field

from helix_agents.agent.built_in_tools import built_in_tool
from helix_agents.agent.calling import is_async
from helix_agents.agent.choices import check_text
from helix_agents.agent.context import ToolContext
from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.names import COPY_SKILL, LOAD_SKILL, READ_SKILL_FILE
from helix_agents.agent.tools import Tool
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.summaries import not_summarised
from helix_agents.ports.skills import PATIENCE_SECONDS, LineRange, LoadedSkill, SkillInfo, SkillProvider

SKILL_LOADED = "skill_loaded"
"""The name of the stream event that says which skill a model has read."""

LONGEST_DESCRIPTION = 1_024
MOST_FILES_TOLD = 100

_NAME = re.compile(r"[a-z0-9-]{1,64}")
_METHODS = ("list_skills", "get_skill", "read_resource")

_ABOUT = """\
## Skills

A skill is a text that tells you how to do one kind of task. Below are the names of those you have, and when each is \
of use. When a task fits a description, first read the skill with `load_skill`, then do as it says. A skill is NOT a \
tool: it cannot be called by its name. Files that a skill speaks of are read with `read_skill_file`."""

_ACTIVE = """\
### Active Skills

These skills are loaded already; do as they say, and do not load them again."""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A skill in code: `Agent(skills=[Skill(name=…, description=…, body=…)])`.

    Args:
        name: The name the model uses; made of the characters a-z, 0-9 and -.
        description: What the skill is for and when it helps, in up to 1,024 characters; included in every request.
        body: The text itself, which the model reads when it needs it.
        files: Texts that come with the skill, by path, which the body refers to: `{"references/forms.md": "…"}`.

    Raises:
        DefinitionError: the skill could not work; the message says why.
    """

    name: str
    description: str
    body: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        subject = f"Skill {self.name!r}"
        problem = problem_with_skill(self.name, self.description)
        if problem is not None:
            raise DefinitionError(subject, f"{problem}.")
        check_text(subject, "body", self.body)
        if not isinstance(self.files, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(subject, f"files={self.files!r} is not a mapping of paths to texts.")
        for path, text in cast("Mapping[object, object]", self.files).items():
            if not isinstance(path, str) or inside(path) != path:
                raise DefinitionError(
                    subject, f"files[{path!r}] is not a path inside the skill; write it like references/forms.md."
                )
            if not isinstance(text, str):
                raise DefinitionError(subject, f"files[{path!r}] is not a string.")


GivenSkills: TypeAlias = SkillProvider | Sequence[Skill]


def problem_with_skill(name: object, description: object) -> str | None:
    """Why a skill like this is not allowed; None if it is fine."""
    if not isinstance(name, str):
        return "it has no name" if name is None else f"its name is of type {type(name).__name__}, not text"
    if not _NAME.fullmatch(name):
        return f"its name is {name[:80]!r}; it has to be 1 to 64 of the characters a-z, 0-9 and -"
    if not isinstance(description, str) or not description.strip():
        return "it has no description, which a model needs to decide when to read it"
    if len(description) > LONGEST_DESCRIPTION:
        return (
            f"its description has {len(description)} characters, but it is part of every request: "
            f"at most {LONGEST_DESCRIPTION} are allowed; put the rest into the body"
        )
    return None


async def skill_of(provider: SkillProvider, name: str) -> LoadedSkill | None:
    """The text of a skill; None if there is no such skill.

    Raises:
        TypeError: the provider returned something else.
    """
    found: Any = await provider.get_skill(name)
    if found is None or (
        isinstance(found, LoadedSkill) and found.name == name and isinstance(cast("object", found.body), str)
    ):
        return found
    raise TypeError(f"get_skill({name!r}) has to return a LoadedSkill of this name with a text, or None")


def inside(path: str) -> str | None:
    """The normalised path of a file inside a skill; None if it is not a valid path or leads out of the skill."""
    plain = PurePosixPath(path)
    if plain.is_absolute() or ".." in plain.parts or not plain.parts or "\\" in path or "\0" in path:
        return None
    return str(plain)


class SkillList:
    """Skills defined in code; they are wherever the agent is."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = {skill.name: skill for skill in skills}

    async def list_skills(self) -> Sequence[SkillInfo]:
        return [SkillInfo(name=each.name, description=each.description) for each in self._skills.values()]

    async def get_skill(self, name: str) -> LoadedSkill | None:
        found = self._skills.get(name)
        if found is None:
            return None
        about = {"name": found.name, "description": found.description}
        return LoadedSkill(**about, body=found.body, files=tuple(sorted(found.files)))

    async def read_resource(self, name: str, path: str, range: LineRange | None = None) -> str | None:
        found, plain = self._skills.get(name), inside(path)
        if found is None or plain is None or plain not in found.files:
            return None
        text = found.files[plain]
        return text if range is None else range.of(text)

    async def read_bytes(self, name: str, path: str) -> bytes | None:
        text = await self.read_resource(name, path)
        return None if text is None else text.encode()


_: type[SkillProvider] = SkillList


def check_skills(given: object, preload: object, subject: str) -> None:
    """Reject anything that is neither a provider nor a list of skills, and names that could not be preloaded.

    Raises:
        DefinitionError: says why and what to do.
    """
    if isinstance(preload, str) or not isinstance(preload, Sequence):
        raise DefinitionError(subject, f"preload_skills={preload!r} is not a list of names; write preload_skills=[…].")
    for name in cast("Sequence[object]", preload):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DefinitionError(subject, f"{name!r} in preload_skills is not the name of a skill.")
    if given is None:
        if preload:
            raise DefinitionError(subject, "preload_skills names skills, but it has none; give it skills=….")
    elif isinstance(given, Sequence) and not isinstance(given, str):
        _check_list(cast("Sequence[object]", given), subject)
    elif isclass(given) or not all(callable(getattr(given, name, None)) for name in _METHODS):
        raise DefinitionError(
            subject, f"skills={given!r} is neither a list of Skill(…) nor a provider such as SkillFolder(…)."
        )
    else:
        for name in _METHODS:
            if not is_async(getattr(given, name)):
                raise DefinitionError(subject, f"{name} of skills={given!r} is not async; write async def {name}.")


def _check_list(given: Sequence[object], subject: str) -> None:
    seen: set[str] = set()
    for each in given:
        if not isinstance(each, Skill):
            raise DefinitionError(
                subject, f"{each!r} in skills is not a Skill(…); for a folder of them, see SkillFolder."
            )
        if each.name in seen:
            raise DefinitionError(subject, f"two skills are called {each.name!r}; rename one.")
        seen.add(each.name)


def provider_of(given: GivenSkills | None) -> SkillProvider | None:
    """The provider of the skills; None if the agent has none and never will."""
    if not isinstance(given, Sequence):
        return given
    return SkillList(given) if given else None


def skills_fragment(skills: Sequence[SkillInfo], active: Sequence[LoadedSkill] = (), *, can_copy: bool = False) -> str:
    """What the instructions say about skills: the same bytes for the same skills, in whichever order they come; empty
    if there are none. It does not depend on which skills the model has read: that is part of the conversation."""
    if not skills:
        return ""
    loaded = {each.name for each in active}
    listed = [
        f'<skill name="{each.name}"{_LOADED if each.name in loaded else ""}>{_line(each.description)}</skill>'
        for each in sorted(skills, key=lambda each: each.name)
    ]
    parts = [_ABOUT, "\n".join(("<available_skills>", *listed, "</available_skills>"))]
    if active:
        parts.append(_ACTIVE)
        parts += [
            f'<skill name="{each.name}"{_LOADED}>\n{skill_text(each, can_copy=can_copy)}\n</skill>'
            for each in sorted(active, key=lambda each: each.name)
        ]
    return "\n\n".join(parts)


_LOADED = ' loaded="true"'


def _line(text: str) -> str:
    """A description on one line that can only be read as text."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def skill_text(skill: LoadedSkill, *, can_copy: bool = False) -> str:
    """What a model reads of a skill: its text, and the list of files that come with it, which a model that has a
    workspace can also copy."""
    body = skill.body.strip()
    if not skill.files:
        return body
    files = [f"- {path}" for path in skill.files[:MOST_FILES_TOLD]]
    if len(skill.files) > MOST_FILES_TOLD:
        files.append(f"- and {len(skill.files) - MOST_FILES_TOLD} more")
    use = f"`{READ_SKILL_FILE}`" + (f", or `{COPY_SKILL}` if they are to be run" if can_copy else "")
    return "\n".join((body, "", f"Files of this skill, for {use}:", *files))


def loaded_skills(messages: Sequence[Message]) -> frozenset[str]:
    """The names of the skills that a model has read in a conversation with `load_skill`."""
    read = {each.tool_call_id for each in _loads_in(messages)}
    calls = (call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls)
    given = (call.arguments for call in calls if call.id in read)
    names = (each.get("name") for each in given if isinstance(each, dict))
    return frozenset(name for name in names if isinstance(name, str))


def skill_tools(provider: SkillProvider, workspace: Workspace | None = None) -> tuple[Tool[..., Any], ...]:
    """The tools with which a model reads skills and their files, and copies these into its workspace if it has one."""

    async def load_skill(ctx: ToolContext[Any, Any], name: str) -> str:
        """Read a skill: the text that tells you how to do a kind of task.

        Args:
            name: The name of the skill, as in <available_skills>.
        """
        text = skill_text(await found_skill(provider, name), can_copy=workspace is not None)
        if any(each.content == text for each in _loads_in(not_summarised(ctx.transcript))):
            return f"The skill {name!r} is already loaded: you have its text above, and it has not changed."
        ctx.emit(SKILL_LOADED, {"name": name})
        return text

    async def read_skill_file(
        skill: str,
        path: str,
        start_line: Annotated[int, Field(ge=1)] | None = None,
        end_line: Annotated[int, Field(ge=1)] | None = None,
    ) -> str:
        """Read a file that comes with a skill, or some lines of it. It is read, and never run.

        Args:
            skill: The name of the skill.
            path: The file's path inside the skill, such as references/forms.md.
            start_line: The first line to read, counted from 1; the file's first if left out.
            end_line: The last line to read; the file's last if left out.
        """
        first = 1 if start_line is None else start_line
        if end_line is not None and end_line < first:
            raise ToolFailed(f"Line {end_line} is before line {first}.")
        is_part = start_line is not None or end_line is not None
        text: Any = await provider.read_resource(
            skill, path, LineRange(first=first, last=end_line) if is_part else None
        )
        if not isinstance(text, str | None):
            raise TypeError(f"read_resource has to return a text or None, but returned a {type(text).__name__}")
        if text is None:
            found = await found_skill(provider, skill)
            raise ToolFailed(f"The skill {skill!r} has no file {path!r}. {_there_are('It has', found.files)}")
        if not text and first > 1:
            raise ToolFailed(f"The file {path!r} has no line {first}.")
        return text

    patience = round(PATIENCE_SECONDS * 1000)
    reading = (
        built_in_tool(LOAD_SKILL, load_skill, timeout_ms=patience),
        built_in_tool(READ_SKILL_FILE, read_skill_file, timeout_ms=patience),
    )
    if workspace is None:
        return reading
    from helix_agents.agent.skill_copies import copy_skill_tool

    return *reading, copy_skill_tool(provider, workspace)


def _loads_in(messages: Sequence[Message]) -> Iterator[ToolMessage]:
    for each in messages:
        if isinstance(each, ToolMessage) and each.tool_name == LOAD_SKILL and not each.error:
            yield each


async def found_skill(provider: SkillProvider, name: str) -> LoadedSkill:
    """The text of a skill that a model named.

    Raises:
        ToolFailed: there is no such skill; says which there are.
    """
    found = await skill_of(provider, name)
    if found is None:
        known = sorted(each.name for each in await provider.list_skills())
        raise ToolFailed(f"There is no skill {name!r}. {_there_are('There are', known)}")
    return found


def _there_are(verb: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_FILES_TOLD]) or "none"
    more = f", and {len(names) - MOST_FILES_TOLD} more" if len(names) > MOST_FILES_TOLD else ""
    return f"{verb}: {shown}{more}."

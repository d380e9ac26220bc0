"""What the engine needs from a provider of skills: the list, the text of one, and the files that come with it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from helix_agents.domain.records import Record

PATIENCE_SECONDS = 60.0
"""How long a provider may take for the list of a run, or for one call of a tool. A provider that hangs must not hold up
a run forever."""


class SkillInfo(Record):
    """A skill as every request lists it: its name, and when it helps."""

    name: str
    description: str


class LoadedSkill(Record):
    """A skill with its text, and the paths of the files that come with it."""

    name: str
    description: str
    body: str
    files: tuple[str, ...] = ()


class LineRange(Record):
    """Some lines of a file, counted from 1, both ends included; without `last`, all from `first` on."""

    first: int = 1
    last: int | None = None

    def of(self, text: str) -> str:
        """These lines of a text; empty if the text is shorter."""
        return "".join(text.splitlines(keepends=True)[self.first - 1 : self.last])


class SkillProvider(Protocol):
    """Where an agent's skills come from. Any process that works on a run may call it, at any time.

    `list_skills` is called once per run, and its result is recorded with the run's first reply, so it may change
    between two runs. If that call raises, the run fails as `skills_unavailable`; if a tool's call raises, the tool
    tells the model. Raise `ToolFailed` to choose the words. A provider that does not answer within `PATIENCE_SECONDS`
    counts as one that raised.
    """

    async def list_skills(self) -> Sequence[SkillInfo]:
        """Every skill, in any order."""
        ...

    async def get_skill(self, name: str) -> LoadedSkill | None:
        """The text of a skill; None if there is no such skill."""
        ...

    async def read_resource(self, name: str, path: str, range: LineRange | None = None) -> str | None:
        """A file of a skill, or some lines of it; None if the path is not a file inside this skill.

        Models choose the path, and may be influenced by what they read: nothing outside the skill may be reachable.
        """
        ...


@runtime_checkable
class SkillFiles(Protocol):
    """What a provider of skills may have besides: the files as they are. Without it, a workspace gets copies of their
    texts, and no other files."""

    async def read_bytes(self, name: str, path: str) -> bytes | None:
        """A whole file of a skill, byte for byte; None if the path is not a file inside this skill."""
        ...

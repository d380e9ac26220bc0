"""What the engine asks of whoever has skills: which there are, the text of one, and the files that come with it."""

from collections.abc import Sequence
from typing import Protocol

from helix_agents.domain.records import Record


class SkillInfo(Record):
    """A skill as every request tells of it: its name, and when it is of use."""

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
        """These lines of a text; none are left of one that is shorter."""
        return "".join(text.splitlines(keepends=True)[self.first - 1 : self.last])


class SkillProvider(Protocol):
    """Where an agent's skills come from. It is asked by whichever process works on a run, at any time.

    What `list_skills` answers is asked for once in a run and recorded with the run's first reply, so it may change
    between two runs. What a method raises fails that run as `skills_unavailable`, or is told to the model by the tool
    that asked; `ToolFailed` says it in words of your own.
    """

    async def list_skills(self) -> Sequence[SkillInfo]:
        """Every skill there is, in any order."""
        ...

    async def get_skill(self, name: str) -> LoadedSkill | None:
        """The text of a skill; None if there is no such skill."""
        ...

    async def read_resource(self, name: str, path: str, range: LineRange | None = None) -> str | None:
        """A file of a skill, or some lines of it; None for whatever is no file inside this skill.

        Models choose the path, and what they read chooses for them: nothing outside the skill may be reached by it.
        """
        ...

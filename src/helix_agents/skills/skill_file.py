"""Reads a `SKILL.md`: front matter in YAML that names and describes a skill, and its text in Markdown."""

from typing import Any, NamedTuple, cast

from helix_agents.agent.skills import problem_with_skill

SKILL_FILE = "SKILL.md"
MOST_BYTES = 1_000_000
"""More than a model would read of a skill."""
MOST_FRONT_MATTER = 20_000
"""In characters; parsing YAML takes time."""

_FENCE = "---"


class SkillFileError(ValueError):
    """A file is not a skill; says why."""


class SkillFile(NamedTuple):
    """The content of a `SKILL.md`."""

    name: str
    description: str
    body: str


def parse_skill_file(raw: bytes) -> SkillFile:
    """The skill in a file. Front matter may contain more than name and description; the rest is ignored. All values are
    text, whatever else YAML would make of them, so that nothing in a file from elsewhere is ever evaluated.

    Raises:
        SkillFileError: it is not a skill.
    """
    if len(raw) > MOST_BYTES:
        raise SkillFileError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise SkillFileError(f"it is not UTF-8: {problem.reason} at byte {problem.start}") from problem
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != _FENCE:
        raise SkillFileError("it does not begin with front matter: a line ---, name and description, a line ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise SkillFileError("its front matter does not end: there is no second line ---")
    given = _front_matter("\n".join(lines[1:end]))
    name, description = given.get("name"), given.get("description")
    problem = problem_with_skill(name, description)
    if problem is not None:
        raise SkillFileError(problem)
    body = "\n".join(lines[end + 1 :]).strip()
    if not body:
        raise SkillFileError("there is no text after its front matter")
    return SkillFile(cast("str", name), cast("str", description).strip(), body)


def _front_matter(text: str) -> dict[str, Any]:
    # Loaded with the first file: agents whose skills are code do not need it.
    import yaml

    if len(text) > MOST_FRONT_MATTER:
        raise SkillFileError(f"its front matter has more than {MOST_FRONT_MATTER:,} characters")
    try:
        given: object = yaml.load(text, Loader=yaml.BaseLoader)  # which knows texts, lists and mappings
    except (yaml.YAMLError, RecursionError) as problem:
        raise SkillFileError(f"its front matter is not YAML: {' '.join(str(problem).split())}") from problem
    if not isinstance(given, dict):
        raise SkillFileError("its front matter is not a mapping with name and description")
    return cast("dict[str, Any]", given)

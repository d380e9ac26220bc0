"""Which names agents and tools may have."""

import re

from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.transcript import HANDOFF
from helix_agents.ports.llm import FINISH_TOOL

ASK_HUMAN = "ask_human"

LOAD_SKILL = "load_skill"
"""The tool with which a model reads a skill."""

READ_SKILL_FILE = "read_skill_file"
"""The tool with which a model reads a file of a skill."""

COPY_SKILL = "workspace_copy_skill"
"""The tool with which a model copies the files of a skill into its workspace."""

SUBAGENT = "subagent__"
"""Prefix of the tools that delegate a call to another agent."""

COMPANION = "companion__"
"""Prefix of the tools with which an agent works with its companions."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

RESERVED_NAMES = frozenset(
    {FINISH_TOOL, ASK_HUMAN, LOAD_SKILL, READ_SKILL_FILE, "search_memory", "save_memory"},
)
RESERVED_PREFIXES = (SUBAGENT, COMPANION, HANDOFF, "workspace_", "state__")


def check_name(kind: str, name: str) -> str:
    """The name itself, if every provider and store accepts it.

    Raises:
        DefinitionError: it is empty, too long, or contains other characters.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"{kind} {name!r}",
            "a name has 1 to 64 of the characters a-z, A-Z, 0-9, _ and -; model providers accept no others.",
        )
    return name


def check_tool_name(name: str) -> str:
    """The name itself, if a user's tool may have it.

    Raises:
        DefinitionError: it is malformed, or reserved for the library's own tools.
    """
    check_name("Tool", name)
    prefix = next((prefix for prefix in RESERVED_PREFIXES if name.startswith(prefix)), None)
    if prefix is not None:
        raise DefinitionError(
            f"Tool {name!r}", f"names that start with {prefix!r} belong to built-in tools; rename it with name=…."
        )
    if name in RESERVED_NAMES:
        raise DefinitionError(f"Tool {name!r}", "this name belongs to a built-in tool; rename it with name=….")
    return name

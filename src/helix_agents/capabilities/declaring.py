"""How a capability is declared: once, as data, from which its schema, tools, commands, pages and errors are made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from helix_agents.domain.capability_errors import Recovery
from helix_agents.domain.records import JSON

Tier: TypeAlias = Literal["autonomous", "notify", "approval_required", "blocked"]
Kind: TypeAlias = Literal["String", "Integer", "Boolean", "Number", "Object", "Array", "DateTime"]

TIERS: tuple[Tier, ...] = ("autonomous", "notify", "approval_required", "blocked")


@dataclass(frozen=True)
class Field:
    """One input or output. `added` marks what we offer beyond what the capability has always had."""

    name: str
    kind: Kind
    description: str
    required: bool = True
    default: JSON = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    added: bool = False


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What to do about an error. `inputs` are filled from the call and the error: `"{key}"` is the key in question.

    `command` is what an operator types if no capability helps.
    """

    action: str
    description: str
    capability: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str | None = None

    def filled(self, known: Mapping[str, Any]) -> Recovery:
        """The hint for one error; an input about which nothing is known is left out."""
        if self.capability is None:
            return Recovery(action=self.action, description=self.description)
        filled: dict[str, JSON] = {}
        for name, template in self.inputs.items():
            value = known.get(template[1:-1]) if template.startswith("{") and template.endswith("}") else template
            if value is not None:
                filled[name] = value
        return Recovery(action=self.action, description=self.description, capability=self.capability, inputs=filled)


@dataclass(frozen=True, kw_only=True)
class ErrorCase:
    """One error that a capability may return, and what to do about it."""

    error: str
    description: str
    recovery: tuple[Hint, ...]


@dataclass(frozen=True)
class SideEffect:
    """Something that a call changes besides its result."""

    description: str
    reversible: bool = False


@dataclass(frozen=True)
class Pattern:
    """A typical use of the capability."""

    description: str
    steps: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Capability:
    """One capability. `detail` adds to the purpose what only the long description says."""

    name: str
    purpose: str
    detail: str = ""
    when_to_use: str
    tier: Tier = "autonomous"
    version: str = "1.0"
    inputs: tuple[Field, ...] = ()
    outputs: tuple[Field, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    errors: tuple[ErrorCase, ...] = ()
    tags: tuple[str, ...] = ()
    idempotent: bool = False

    @property
    def tool_name(self) -> str:
        """The name that models and MCP hosts see: many of them do not accept dots."""
        return self.name.replace(".", "__")

    @property
    def reads_only(self) -> bool:
        """Whether a call changes nothing."""
        return "safe" in self.tags

    @property
    def destructive(self) -> bool:
        """Whether a call may remove something."""
        return self.name.rpartition(".")[2] in ("delete", "clear", "restore", "end")

    @property
    def in_session(self) -> bool:
        """Whether a call concerns the caller's session."""
        return self.name.startswith("state.session.") or self.name in ("session.end", "state.shared.watch")

    @property
    def description(self) -> str:
        """What a caller reads before deciding to use it."""
        return " ".join(part for part in (self.purpose, self.detail, self.when_to_use) if part)

    def error_case(self, name: str) -> ErrorCase | None:
        """The declaration of an error."""
        return next((case for case in self.errors if case.error == name), None)


def capabilities_by_name(*groups: Iterable[Capability]) -> dict[str, Capability]:
    """All capabilities by name, in the order in which they are declared."""
    return {capability.name: capability for group in groups for capability in group}

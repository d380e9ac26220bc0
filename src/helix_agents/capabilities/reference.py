"""The reference page of all capabilities, and the table of their errors, generated from the declarations."""

import sys
from collections.abc import Sequence
from pathlib import Path

from helix_agents.capabilities.catalogue import COMPANIONS, STATE
from helix_agents.capabilities.declaring import Capability, Field

_TIERS = {
    "autonomous": "Autonomous",
    "notify": "Notify",
    "approval_required": "Approval Required",
    "blocked": "Blocked",
}

_INTRODUCTION = (
    "Generated from the declarations in `helix_agents.capabilities.catalogue`; fields in *italics* go beyond what the"
    " capability has always had."
)


def render() -> str:
    """The page as Markdown."""
    parts = [
        "# State capabilities",
        "",
        _INTRODUCTION,
        "",
        "| capability | permission | purpose |",
        "|---|---|---|",
        *(f"| `{each.name}` | {_TIERS[each.tier]} | {each.purpose} |" for each in (*STATE, *COMPANIONS)),
        "",
        "## Errors",
        "",
        "| error | of | what to do |",
        "|---|---|---|",
        *_error_rows(),
    ]
    for each in (*STATE, *COMPANIONS):
        parts += ["", *_page(each)]
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page to the given file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m helix_agents.capabilities.reference FILE\n")
        return 2
    path = Path(arguments[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")
    return 0


def _error_rows() -> list[str]:
    rows: list[str] = []
    for each in STATE:
        for case in each.errors:
            hints = "; ".join(f"`{hint.action}`: {hint.description}" for hint in case.recovery)
            rows.append(f"| `{case.error}` | `{each.name}` | {hints} |")
    return sorted(rows)


def _page(each: Capability) -> list[str]:
    parts = [
        f"## {each.name}",
        "",
        f"Permission: {_TIERS[each.tier]}. Version {each.version}. Tool `{each.tool_name}`.",
        "",
        " ".join(part for part in (each.purpose, each.detail) if part),
        "",
        each.when_to_use,
        "",
        "Inputs:" if each.inputs else "No inputs.",
        "",
        *_fields(each.inputs, inputs=True),
        "Outputs:",
        "",
        *_fields(each.outputs, inputs=False),
    ]
    if each.side_effects:
        parts += ["Side effects:", ""]
        parts += [
            f"- {effect.description} ({'reversible' if effect.reversible else 'not reversible'})"
            for effect in each.side_effects
        ]
        parts.append("")
    for pattern in each.patterns:
        parts += [f"{pattern.description}:", "", *(f"{n}. `{step}`" for n, step in enumerate(pattern.steps, 1)), ""]
    for case in each.errors:
        hints = "; ".join(f"`{hint.action}`: {hint.description}" for hint in case.recovery)
        parts += [f"`{case.error}`: {case.description} {hints}", ""]
    return [*parts, f"Tags: {', '.join(each.tags)}"]


def _fields(fields: Sequence[Field], *, inputs: bool) -> list[str]:
    if not fields:
        return []
    head = ["| field | type | required | default | |", "|---|---|---|---|---|"]
    rows = [
        f"| {_name(each)} | {each.kind} | {('yes' if each.required else 'no') if inputs else ''} |"
        f" {'' if each.default is None else each.default} | {each.description} |"
        for each in fields
    ]
    return [*head, *rows, ""]


def _name(field: Field) -> str:
    return f"*{field.name}*" if field.added else f"`{field.name}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

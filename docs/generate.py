"""Writes the pages of the reference that are tables of the code: `uv run python docs/generate.py`.

A test fails when a page is not what this program would write.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

REFERENCE = Path(__file__).parent / "reference"


def errors_page() -> str:
    """Every error by code, grouped by who has to act."""
    from helix_agents.domain import errors

    lines = [
        "# Errors by code",
        "",
        "Every error derives from `HelixError` and has a stable `code`, which logs and HTTP answers carry, and says",
        "whether the same call may be tried again. They are grouped by who has to act, and live in",
        "`helix_agents.domain.errors`. Those of the state capabilities are on [their page](state-capabilities.md).",
    ]
    groups = [group for group in errors.HelixError.__subclasses__() if group.__module__ == errors.__name__]
    for group in groups:
        lines += ["", f"## {group.__name__}", "", first_paragraph(group), ""]
        lines += ["| code | error | means | try again |", "|---|---|---|---|"]
        for error in sorted({*descendants(group)} or {group}, key=lambda each: (each.code, each.__name__)):
            again = "yes" if error.retryable else "no"
            lines.append(f"| `{error.code}` | `{error.__name__}` | {first_paragraph(error)} | {again} |")
    return "\n".join([*lines, ""])


def chunks_page() -> str:
    """Every chunk of a stream with its fields."""
    from helix_agents.domain import chunks

    shared = chunks.ChunkHeader.__struct_fields__
    lines = [
        "# Chunks",
        "",
        "What a stream is made of. Every chunk also has: " + ", ".join(f"`{name}`" for name in shared) + ".",
        "",
        "| type | class | says | fields |",
        "|---|---|---|---|",
    ]
    for chunk in get_args(chunks.StreamChunk):
        fields = ", ".join(f"`{name}`" for name in chunk.__struct_fields__ if name not in shared)
        tag = chunk.__struct_config__.tag
        lines.append(f"| `{tag}` | `{chunk.__name__}` | {first_paragraph(chunk)} | {fields} |")
    return "\n".join([*lines, ""])


def api_page() -> str:
    """The names of the front door; what they are is read from the source when the site is built."""
    import helix_agents

    homes = helix_agents._HOME
    lines = [
        "# API",
        "",
        "Everything you import from `helix_agents`. Besides, there are [chunks](chunks.md) in",
        "`helix_agents.domain.chunks`, [errors](errors.md) in `helix_agents.domain.errors`, what",
        "[tests of agents](../guides/test-an-agent.md) need in `helix_agents.testing`, and what",
        "[a backend](../guides/write-a-backend.md) or a model adapter implements in `helix_agents.ports`.",
        "The rest of the package is internal.",
        "",
    ]
    for name in sorted(homes, key=lambda each: (each.lower(), each)):
        lines += [f"::: {homes[name]}.{name}", ""]
    return "\n".join(lines)


def descendants(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        if below.__module__ == kind.__module__:
            yield below
            yield from descendants(below)


def first_paragraph(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("|", "\\|")


PAGES = {"errors.md": errors_page, "chunks.md": chunks_page, "api.md": api_page}


def main() -> None:
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"{REFERENCE.name}/{name}\n")


if __name__ == "__main__":
    main()

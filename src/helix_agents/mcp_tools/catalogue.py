"""A catalogue: what an MCP server offered at one time, as a file that is read, reviewed and committed."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.records import JSON

FORMAT = "helix-mcp-catalogue/1"

# The parts of an offer that decide how a tool is called; icons, titles of servers and the like would only add noise.
_KEPT = ("title", "description", "inputSchema", "annotations")


class Offer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One tool as its server described it. `annotations` are hints: what a stranger says about itself."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, JSON]
    annotations: dict[str, JSON] = {}

    def hint(self, name: str) -> bool | None:
        """What the server says about itself, if anything."""
        given = self.annotations.get(name)
        return given if isinstance(given, bool) else None


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a server offered, by name."""

    format: str = FORMAT
    tools: tuple[Offer, ...]

    def changes_to(self, other: "Catalogue") -> list[str]:
        """The differences in another catalogue, one sentence for each tool."""
        before = {offer.name: offer for offer in self.tools}
        after = {offer.name: offer for offer in other.tools}
        found: list[str] = []
        for name in sorted({*before, *after}):
            if name not in after:
                found.append(f"{name} is gone")
            elif name not in before:
                found.append(f"{name} is new")
            elif before[name] != after[name]:
                old, new = msgspec.to_builtins(before[name]), msgspec.to_builtins(after[name])
                fields = (field for field in _KEPT if old.get(field) != new.get(field))
                found.append(f"{name} has a different {', '.join(fields)}")
        return found


def catalogue_of(offers: Sequence[Mapping[str, Any]]) -> Catalogue:
    """A catalogue of what a server listed, in a fixed order, because servers list in any order.

    Raises:
        msgspec.ValidationError: it is not a list of tools.
    """
    kept = [{"name": each["name"], **{key: each[key] for key in _KEPT if each.get(key) is not None}} for each in offers]
    tools = msgspec.convert(sorted(kept, key=lambda each: each["name"]), tuple[Offer, ...])
    return Catalogue(tools=tools)


def read_catalogue(subject: str, path: Path) -> Catalogue | None:
    """The catalogue in a file; None if there is no file.

    Raises:
        DefinitionError: the file is not a catalogue, or belongs to a later release.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise DefinitionError(subject, f"its catalogue {path} cannot be read: {problem.strerror}.") from problem
    try:
        read: Any = msgspec.json.decode(raw)
        given = cast("dict[str, Any]", read).get("format") if isinstance(read, dict) else None
        if given != FORMAT:
            raise DefinitionError(
                subject, f"{path} has format {given!r}, not {FORMAT!r}; take it again with `helix tools sync`."
            )
        catalogue = msgspec.convert(read, Catalogue)
    except msgspec.MsgspecError as problem:
        raise DefinitionError(
            subject, f"{path} is not a catalogue: {problem}. Take it again with `helix tools sync`."
        ) from problem
    names = [offer.name for offer in catalogue.tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DefinitionError(subject, f"{path} has {twice!r} twice; take it again with `helix tools sync`.")
    return catalogue


def write_catalogue(catalogue: Catalogue, path: Path) -> None:
    """Write a catalogue to a file, completely or not at all; the same catalogue always gives the same bytes."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(_text(catalogue))
        # A temporary file is private to its owner; this one is code.
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _text(catalogue: Catalogue) -> str:
    written = json.dumps(msgspec.to_builtins(catalogue), indent=2, ensure_ascii=False)
    # A reviewer must see everything that a model will see: unprintable characters are escaped.
    return "".join(each if each.isprintable() or each == "\n" else _spelt(each) for each in written) + "\n"


def _spelt(character: str) -> str:
    return json.dumps(character)[1:-1]

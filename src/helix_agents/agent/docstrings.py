"""Reads a docstring: what a tool does, and what its parameters mean, in Google, NumPy or Sphinx style."""

import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple

_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "other parameters"}
# What a function returns or raises does not help a model decide whether to call it.
_FOR_PROGRAMMERS = {"returns", "return", "raises", "yields"}
_TITLE = re.compile(r"(?P<title>[A-Za-z][A-Za-z ]*?):?\s*")
_FIELD = re.compile(r":(?P<field>\w+)(?:\s+(?P<subject>[^:]*))?:\s*(?P<text>.*)")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?::.*)?")


class Docstring(NamedTuple):
    """The part a model should read."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """The description without its sections about parameters, results and errors, and the text of each parameter."""
    lines = inspect.cleandoc(text or "").splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        title, numpy = _section_title(lines, at)
        field = _FIELD.fullmatch(lines[at])
        if title is not None:
            at += 2 if numpy else 1
            end = _numpy_section_end(lines, at) if numpy else _indented_end(lines, at)
            if title in _PARAMETERS:
                parameters |= _entries(lines[at:end], _NUMPY_ENTRY if numpy else _GOOGLE_ENTRY)
            at = end
        elif field is not None:
            end = _indented_end(lines, at + 1)
            subject = (field["subject"] or "").split()
            if field["field"] in ("param", "parameter", "arg", "argument") and subject:
                parameters[subject[-1].lstrip("*")] = _joined([field["text"], *lines[at + 1 : end]])
            at = end
        else:
            description.append(lines[at])
            at += 1
    return Docstring("\n".join(description).strip(), parameters)


def _section_title(lines: list[str], at: int) -> tuple[str | None, bool]:
    """The lower-case title of the section that starts here, if any, and whether it is underlined as NumPy does."""
    match = _TITLE.fullmatch(lines[at])
    title = match["title"].lower() if match else ""
    if title not in _PARAMETERS | _FOR_PROGRAMMERS:
        return None, False
    following = lines[at + 1] if at + 1 < len(lines) else ""
    if re.fullmatch(r"-{3,}\s*", following):
        return title, True
    if lines[at].rstrip().endswith(":") and following[:1].isspace():
        return title, False
    return None, False


def _numpy_section_end(lines: list[str], at: int) -> int:
    while at < len(lines):
        underlined = at + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[at + 1])
        if underlined and not lines[at][:1].isspace():
            break
        at += 1
    return at


def _indented_end(lines: list[str], at: int) -> int:
    """Where the lines end that are indented, or blank between indented ones."""
    end = at
    while at < len(lines) and (not lines[at].strip() or lines[at][:1].isspace()):
        at += 1
        if lines[at - 1].strip():
            end = at
    return end


def _entries(body: list[str], entry: re.Pattern[str]) -> dict[str, str]:
    body = inspect.cleandoc("\n".join(["", *body])).splitlines()
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in body:
        match = None if line[:1].isspace() else entry.fullmatch(line)
        if match is not None:
            current = found[match["name"]] = [match.groupdict().get("text") or ""]
        else:
            current.append(line)
    return {name: _joined(lines) for name, lines in found.items()}


def _joined(lines: Iterable[str]) -> str:
    return " ".join(stripped for line in lines if (stripped := line.strip()))

"""How commands write: sentences for people on the terminal, or one JSON document for scripts."""

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from helix_agents.domain.errors import HelixError

# All control characters but tabs and line ends. Those that change the direction of the text around them are included,
# because a person would approve something else than is shown.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


@dataclass(kw_only=True)
class Output:
    """The output of one command. With `--json`, standard output carries exactly one JSON document and nothing else."""

    as_json: bool = False
    store_was_named: bool = True
    _stdout: TextIO | None = None

    def spell_out(self) -> None:
        """Show characters that the terminal cannot display by their numbers, so that none costs an answer."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def reserve(self) -> None:
        """Reserve standard output for the answer: what agents and their modules print goes to standard error."""
        if self._stdout is None:
            self._stdout, sys.stdout = sys.stdout, sys.stderr

    def release(self) -> None:
        """Give standard output back."""
        if self._stdout is not None:
            self._stdout, sys.stdout = None, self._stdout

    def say(self, sentence: str = "", *, end: bool = True) -> None:
        """Tell a person something; silent for scripts, which get the whole answer from `answer`."""
        if not self.as_json:
            click.echo(_harmless(sentence, sys.stdout), nl=end)

    def note(self, sentence: str, *, end: bool = True) -> None:
        """Tell a person about progress: on standard error, so that the answer can be piped."""
        if not self.as_json:
            told = _harmless(sentence, sys.stderr)
            click.echo(click.style(told, dim=True) if _may_style() else told, err=True, nl=end)

    def confirm(self, question: str, *, default: bool = False) -> bool:
        """Ask the person at the terminal for a yes or a no; if they leave instead, start a new line first."""
        try:
            return click.confirm(_harmless(question, sys.stdout), default=default)
        except click.Abort:
            click.echo(err=True)
            raise

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show rows under headings, as wide as needed; the last column is cut where the terminal ends."""
        if self.as_json:
            return
        if not rows:
            click.echo("None.")
            return
        lines = [[heading.upper() for heading in columns], *([_one_line(cell) for cell in row] for row in rows)]
        widths = [max(_width(line[at]) for line in lines) for at in range(len(columns) - 1)]
        for line in lines:
            *cells, last = line
            padded = [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)]
            shown = "  ".join([*padded, last])
            click.echo(_cut(_harmless(shown.rstrip(), sys.stdout)))

    def answer(self, document: Mapping[str, Any]) -> None:
        """Give a script the whole answer; silent for people, who were told along the way."""
        if self.as_json:
            text = json.dumps(document, ensure_ascii=False, default=str)
            stream = self._stdout or sys.stdout
            if not _can_show(stream, text) or _harmless(text, stream) != text:
                text = json.dumps(document, default=str)
            click.echo(text, file=self._stdout)

    def fail(self, error: "HelixError") -> None:
        """Say what went wrong: a sentence on standard error, or `{"error": …}` where a script expects its answer."""
        as_data = getattr(error, "as_data", None)
        if self.as_json and as_data is not None:
            self.answer(as_data())
        else:
            self.fail_with(error.code, str(error))

    def fail_with(self, code: str, message: str) -> None:
        """The same for a problem that is not an error of this library."""
        if self.as_json:
            self.answer({"error": {"code": code, "message": message}})
        else:
            click.echo(f"Error: {_harmless(message, sys.stderr)}", err=True)


def _harmless(text: str, stream: TextIO) -> str:
    """The text with control characters escaped: a terminal must not interpret what models, tools and people wrote."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text) if stream.isatty() else text


def _may_style() -> bool:
    """Whether the terminal can show styles and the person wants them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(line: str) -> str:
    """The line, cut at the terminal's width; whole if it is piped."""
    if not sys.stdout.isatty():
        return line
    room = shutil.get_terminal_size().columns
    if _width(line) <= room:
        return line
    # One column is for the ellipsis.
    ends = accumulate(map(_width, line))
    return f"{line[: sum(1 for _ in takewhile(lambda end: end < room, ends))]}…"


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: ideographs take two, and marks above a letter none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in text)

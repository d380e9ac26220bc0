"""The programs in the pages: found, and run the way a reader would."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"^(?P<said><!-- (?P<why>[^\n]*) -->\n\n?)?```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    title: str | None
    code: str
    not_run: str | None


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order. A comment `<!-- not run: reason -->` right above one excuses it."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', found["info"])
        why = found["why"] or ""
        yield Block(
            language=found["language"],
            title=title and title[1],
            code=found["code"],
            not_run=why.removeprefix("not run:").strip() if why.startswith("not run:") else None,
        )


def written_pages() -> list[Path]:
    """Every page with prose of its own: generated tables and the decisions show no programs."""
    return sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "decisions")

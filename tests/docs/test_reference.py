"""Pages that are tables of the code say what the code says."""

import re
import runpy
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

GENERATOR = runpy.run_path(str(DOCS / "generate.py"))
GENERATED = GENERATOR["PAGES"]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    """If this fails: uv run python docs/generate.py"""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == GENERATED[name]()


def test_every_name_in_the_glossary_is_one_of_ours() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(ROOT, "src").rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \|", (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    ours = {
        word for row in rows for name in re.findall(r"`([^`]+)`", row) for word in re.findall(r"[A-Za-z_]{3,}", name)
    }
    assert sorted(ours - words) == []


def test_every_variable_of_the_environment_is_on_the_page_of_configuration() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(ROOT, "src").rglob("*.py"))
    # Completion of the shell is click's, and in the help of `helix`.
    read = set(re.findall(r"\bHELIX_[A-Z_]+\b", source)) - {"HELIX_COMPLETE"}
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert sorted(name for name in read if f"`{name}`" not in page) == []


def test_pages_and_examples_import_only_what_is_public() -> None:
    public = tuple(GENERATOR["PUBLIC_MODULES"])
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *Path(ROOT, "examples").rglob("*.py")]
    internal = {
        f"{page.relative_to(ROOT)}: {module}"
        for page in pages
        for module in re.findall(
            r"^ *from (helix_agents\.[\w.]+) import", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        if module not in public and not module.startswith(tuple(f"{each}." for each in public))
    }
    assert sorted(internal) == []

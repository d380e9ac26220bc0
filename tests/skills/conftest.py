"""Skills that somebody serves, and a folder to fetch them into."""

from pathlib import Path

import pytest

from tests.skills.repository import Repository, skill


@pytest.fixture
def served(tmp_path: Path) -> Repository:
    (tmp_path / "elsewhere").mkdir()
    repository = Repository(tmp_path / "elsewhere")
    repository.commit(
        {
            "skills/tides/SKILL.md": skill("tides"),
            "skills/tides/references/brest.md": "High 6:12",
            "skills/tides/.hidden": "x",
            "skills/boats/SKILL.md": skill("boats"),
            "README.md": "Read me.",
        },
        tag="v1",
    )
    return repository


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"

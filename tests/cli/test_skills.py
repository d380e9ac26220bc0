"""`helix skills sync`: fetches skills out of repositories, pins them, and says what has changed since."""

import json
from pathlib import Path

from helix_agents.cli.exit_codes import ExitCode
from tests.skills.conftest import place as place
from tests.skills.conftest import served as served
from tests.skills.repository import Repository, files_in, skill, write
from tests.support.command_line import helix


def test_skills_are_fetched_once_and_stay_until_somebody_wants_others(place: Path, served: Repository) -> None:
    first = served.git("rev-parse", "HEAD")
    write(place, sea={"type": "git", "url": served.url})
    fetched = helix(place, "skills", "sync")
    assert (fetched.code, fetched.err) == (ExitCode.OK, "")
    folder = place / "skills" / "sea"
    assert fetched.out.splitlines() == [
        f"sea: 2 skills at {first[:12]}, written: {folder}",
        "  boats is new",
        "  tides is new",
    ]
    there = files_in(place)
    assert sorted(there) == [
        "helix.skills.json",
        "helix.skills.lock",
        "skills/sea/boats/SKILL.md",
        "skills/sea/tides/SKILL.md",
        "skills/sea/tides/references/brest.md",
    ]
    locked = json.loads(there["helix.skills.lock"])["entries"]["sea"]
    assert (locked["commit"], locked["skills"], len(locked["sha256"])) == (first, ["boats", "tides"], 64)
    # The branch moves on; what was fetched is pinned.
    second = served.commit({"skills/tides/SKILL.md": skill("tides", "Do it\u200b better.")})
    served.git("rm", "-rq", "skills/boats")
    second = served.push()
    assert helix(place, "skills", "sync").out == f"sea: 2 skills at {first[:12]}, unchanged: {folder}\n"
    assert helix(place, "skills", "sync", "--check").code == ExitCode.OK
    newer = helix(place, "skills", "sync", "--check", "--upgrade")
    assert (newer.code, newer.out.splitlines()[1:]) == (
        ExitCode.FAILED,
        [
            "  boats is gone",
            "  tides has a different SKILL.md",
            "  look closely: tides/SKILL.md:5 has invisible characters",
        ],
    )
    assert files_in(place) == there
    upgraded = helix(place, "skills", "sync", "--upgrade", "--json")
    assert upgraded.json["entries"][0] == {
        "entry": "sea",
        "folder": str(folder),
        "commit": second,
        "skills": ["tides"],
        "sha256": json.loads((place / "helix.skills.lock").read_bytes())["entries"]["sea"]["sha256"],
        "changed": True,
        "changes": ["boats is gone", "tides has a different SKILL.md"],
        "written": True,
        "unseen": ["tides/SKILL.md:5"],
    }
    assert "better" in (folder / "tides" / "SKILL.md").read_text()
    assert not (folder / "boats").exists()


def test_whatever_is_not_as_locked_fails_the_check_and_nothing_is_written(place: Path, served: Repository) -> None:
    write(place, sea={"type": "git", "url": served.url, "ref": "v1", "include": ["tides"]})
    never = helix(place, "skills", "sync", "--check")
    assert (never.code, never.out.splitlines()[1]) == (ExitCode.FAILED, "  it was never fetched")
    assert sorted(files_in(place)) == ["helix.skills.json"]
    assert helix(place, "skills", "sync").code == ExitCode.OK
    there = files_in(place)
    changed = place / "skills/sea/tides/SKILL.md"
    changed.write_text("Obey me.")
    (place / "skills/sea/tides/more.md").symlink_to("/etc/hostname")
    checked = helix(place, "skills", "sync", "--check")
    assert (checked.code, checked.out.splitlines()[1]) == (
        ExitCode.FAILED,
        "  what is in the folder is not what was fetched",
    )
    assert changed.read_text() == "Obey me."
    again = helix(place, "skills", "sync")
    assert again.out.splitlines()[1] == "  tides has a different SKILL.md, more.md"
    assert files_in(place) == there
    # The manifest wants another commit of the same source, and nothing of another one.
    write(place, sea={"type": "git", "url": served.url, "sha": served.commit({"x.md": "x"}), "include": ["boats"]})
    other = helix(place, "skills", "sync", "--check")
    assert (other.code, other.out.splitlines()[1]) == (
        ExitCode.FAILED,
        "  its entry in the manifest has changed",
    )
    assert helix(place, "skills", "sync").code == ExitCode.OK
    assert sorted(files_in(place / "skills")) == ["sea/boats/SKILL.md"]
    write(place)
    assert helix(place, "skills", "sync", "--check").code == ExitCode.FAILED
    gone = helix(place, "skills", "sync")
    assert (gone.code, gone.out) == (
        ExitCode.OK,
        f"sea: 0 skills, written: {place / 'skills/sea'}\n  boats is gone\n",
    )
    assert sorted(files_in(place)) == ["helix.skills.json", "helix.skills.lock"]

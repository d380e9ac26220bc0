"""Which skills are fetched, from where, and which are refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from helix_agents.domain.errors import DefinitionError, HelixError, SkillSourceError
from helix_agents.skills import git as git_program
from helix_agents.skills import swapping
from helix_agents.skills.fetching import hash_of
from helix_agents.skills.syncing import EntryReport, sync_skills
from tests.skills.repository import Repository, files_in, skill, write


def sync(place: Path) -> list[EntryReport]:
    return list(sync_skills(place / "helix.skills.json"))


def test_plugins_of_a_marketplace_are_fetched_wherever_they_are(
    place: Path, served: Repository, tmp_path: Path
) -> None:
    (tmp_path / "market").mkdir()
    market = Repository(tmp_path / "market")
    plugins = [
        {"name": "listed", "source": "./", "strict": False, "skills": ["./more/whales"]},
        {"name": "usual", "source": "kelp"},
        {"name": "apart", "source": {"source": "url", "url": served.url, "ref": "v1"}},
        {"name": "package", "source": {"source": "npm", "package": "x"}},
        {"name": "odd", "source": {"source": "url", "url": "ext::sh -c true"}},
        {"name": "out", "source": "../out"},
    ]
    market.commit(
        {
            ".claude-plugin/marketplace.json": json.dumps({"metadata": {"pluginRoot": "./own"}, "plugins": plugins}),
            "more/whales/SKILL.md": skill("whales"),
            "skills/not-listed/SKILL.md": skill("not-listed"),
            "own/kelp/skills/kelp/SKILL.md": skill("kelp"),
            "own/kelp/.claude-plugin/plugin.json": json.dumps({"skills": "./extra"}),
            "own/kelp/extra/algae/SKILL.md": skill("algae"),
        }
    )
    entry = {"type": "marketplace", "url": str(market.bare)}
    write(place, **{name: {**entry, "plugin": name} for name in ("listed", "usual", "apart")})
    sync(place)
    assert [path for path in files_in(place / "skills") if path.endswith("SKILL.md")] == [
        "apart/boats/SKILL.md",
        "apart/tides/SKILL.md",
        "listed/whales/SKILL.md",
        "usual/algae/SKILL.md",
        "usual/kelp/SKILL.md",
    ]
    locked = json.loads((place / "helix.skills.lock").read_bytes())["entries"]
    assert locked["apart"]["plugin_commit"] == served.git("rev-parse", "v1")
    for plugin, reason in (
        ("package", "is not in a git repository"),
        ("odd", "is not the address of a git repository"),
        ("out", "leads out of the repository"),
        ("whale", "it lists no plugin 'whale'; there are: apart, listed, odd, out, package, usual"),
    ):
        write(place, it={**entry, "plugin": plugin})
        (place / "helix.skills.lock").unlink(missing_ok=True)
        with pytest.raises(SkillSourceError, match=f"^Skills 'it' cannot be fetched: .*{re.escape(reason)}"):
            sync(place)


def test_what_would_leave_its_folder_is_not_fetched(place: Path, served: Repository) -> None:
    (served.clone / "skills/tides/secrets").symlink_to("/etc")
    served.push()
    write(place, sea={"type": "git", "url": served.url})
    with pytest.raises(SkillSourceError, match=r"skills/tides/secrets is a link.*neither is fetched"):
        sync(place)
    assert sorted(files_in(place)) == ["helix.skills.json"]
    # Of a skill that is not wanted, nothing matters.
    write(place, sea={"type": "git", "url": served.url, "include": ["boats"]})
    sync(place)
    lock = place / "helix.skills.lock"
    locked = json.loads(lock.read_bytes())["entries"]["sea"]
    leads_out = json.dumps({"format": "helix-skills-lock/1", "entries": {"../../here": locked}})
    # Behind an address git would take it for an option, and run it.
    runs = {**locked, "commit": f"--upload-pack=touch {place / 'ran'}; git-upload-pack"}
    shutil.rmtree(place / "skills")
    is_option = json.dumps({"format": "helix-skills-lock/1", "entries": {"sea": runs}})
    also = json.dumps(
        {"format": "helix-skills-lock/1", "entries": {"sea": {**runs, "commit": "0" * 40, "plugin_commit": "-x"}}}
    )
    for text in (
        leads_out,
        is_option,
        also,
        '{"format": "helix-skills-lock/1", "entries": 7}',
        "{}",
        "[",
        '{"format": "x/9"}',
    ):
        lock.write_text(text)
        with pytest.raises(DefinitionError, match=r"[Dd]elete it and sync again"):
            sync(place)
    assert sorted(files_in(place)) == ["helix.skills.json", "helix.skills.lock"]


def test_what_nobody_would_see_or_read_is_not_fetched(place: Path, served: Repository) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for path, text, teaches in (
        ("skills/boats/big.bin", pointer, "skills/boats/big.bin is in Git LFS"),
        ("skills/boats/a\nb.md", "x", "not a path inside its folder, made of visible characters"),
        (
            "skills/boats/SKILL.md",
            "---\nname: [&a x]\n---\nx",
            "skills/boats/SKILL.md is not a skill: its name is of type",
        ),
    ):
        served.commit({path: text})
        write(place, sea={"type": "git", "url": served.url})
        with pytest.raises(SkillSourceError, match=teaches):
            sync(place)
        # Of a skill that is not wanted, nothing matters.
        write(place, sea={"type": "git", "url": served.url, "include": ["tides"]})
        assert sync(place)[0].skills == ("tides",)
        (served.clone / path).unlink()
    assert hash_of({"a": {"b": b"1", "c": b"2"}}) != hash_of({"a": {f"b\n{sha256(b'2').hexdigest()}  a/c": b"1"}})


DIES = """
import os, sys
from pathlib import Path
from helix_agents.skills import syncing

place = Path(sys.argv[1])
changes = {"os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
swaps = "ctypes.dlopen"

def files():
    there = (place / "skills" / "sea").rglob("*")
    return {str(each): each.read_bytes() for each in there if each.is_file()}

before, seen, died = files(), [], 0
for n in range(1, 100):
    child = os.fork()
    if child == 0:
        left = n
        def hook(event, args):
            global left
            left -= event == swaps or (event in changes and str(place) in str(args[0]))
            if left == 0:
                os._exit(9)
        sys.addaudithook(hook)
        list(syncing.sync_skills(place / "helix.skills.json", upgrade=True))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), code
    if files() not in seen:
        seen.append(files())
    if code == 0:
        break
    died += 1
print(died, len(seen), all(seen), before in seen)
"""


def test_a_sync_that_is_killed_leaves_the_old_skills_or_the_new_ones(place: Path, served: Repository) -> None:
    """It is killed before each step that changes something in the folder."""
    write(place, sea={"type": "git", "url": served.url})
    sync(place)
    served.commit({"skills/tides/SKILL.md": skill("tides", "Do it better."), "skills/whales/SKILL.md": skill("whales")})
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(place)], capture_output=True, text=True, check=False, timeout=60
    )
    died, kinds, always_there, begins = done.stdout.split()
    assert (int(died) >= 3, kinds, always_there, begins) == (True, "2", "True", "True"), done
    # What the dead left behind goes with the next that is written.
    assert list((place / "skills").glob(".helix-*"))
    for left in (place / "skills").glob(".helix-*"):
        os.utime(left, (0, 0))
    served.commit({"skills/tides/SKILL.md": skill("tides", "Do it best.")})
    assert [report.written for report in sync_skills(place / "helix.skills.json", upgrade=True)] == [True]
    assert os.listdir(place / "skills") == ["sea"]


def test_where_folders_cannot_be_exchanged_they_are_moved(
    place: Path, served: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "_exchange", lambda *_: False)
    write(place, sea={"type": "git", "url": served.url})
    sync(place)
    write(place, sea={"type": "git", "url": served.url, "include": ["boats"]})
    sync(place)
    assert sorted(files_in(place / "skills")) == ["sea/boats/SKILL.md"]
    shutil.rmtree(place / "skills")
    (place / "skills").write_text("in the way")
    with pytest.raises(DefinitionError, match="it cannot be written: "):
        sync(place)


def test_what_a_list_from_elsewhere_names_is_not_looked_for_on_this_machine(
    served: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a hook of some repository.
    for name in ("GIT_DIR", "GIT_COMMON_DIR", "GIT_SHALLOW_FILE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    git = git_program.Repository(tmp_path / "git", tmp_path)
    assert len(git.fetch(served.url, ref=None, sha=None, protocols=git_program.ANYWHERE)) == 40
    for url in (served.url, str(served.bare)):
        with pytest.raises(git_program.SourceTrouble, match="transport 'file' not allowed"):
            git.fetch(url, ref=None, sha=None, protocols=git_program.ELSEWHERE)
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "https:ext")
    with pytest.raises(git_program.SourceTrouble, match="transport 'file' not allowed"):
        git.fetch(served.url, ref=None, sha=None, protocols=git_program.ANYWHERE)


def test_what_cannot_be_fetched_is_told(place: Path, served: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kind: type[HelixError], **entries: dict[str, Any]) -> str:
        write(place, **entries)
        with pytest.raises(kind) as caught:
            sync(place)
        return str(caught.value)

    with pytest.raises(DefinitionError, match="there is no such file; write one"):
        sync(place)
    sea: dict[str, Any] = {"type": "git", "url": served.url}
    for wrong, teaches in (
        ({"reff": "v1"}, "Object contains unknown field `reff`"),
        ({"type": "svn"}, "Invalid value 'svn'"),
        ({"skills_dir": "../x"}, "not a path inside the repository"),
        ({"sha": "abc123"}, "not a full id of a commit"),
        ({"ref": "+main:main"}, "not the name of a branch or a tag"),
        ({"ref": "-x"}, "not the name of a branch or a tag"),
        ({"ref": "main@{1}"}, "not the name of a branch or a tag"),
        ({"url": "--upload-pack=x"}, "not the address of a git repository"),
        ({"include": ["Tides"]}, "'Tides' in include is not the name of a skill"),
    ):
        assert teaches in refused(DefinitionError, sea={**sea, **wrong})
    assert "characters a-z, 0-9 and -" in refused(DefinitionError, Sea=sea)
    secret = refused(DefinitionError, sea={**sea, "url": "https://ann:hunter2@example.com/x.git"})
    assert ("credential helper" in secret, "hunter2" in secret) == (True, False)
    for wrong, teaches in (
        ({"ref": "@sea/skills@9.0+1"}, "couldn't find remote ref @sea/skills@9.0+1"),
        ({"sha": "0" * 40}, f"it has no commit {'0' * 40}"),
        ({"include": ["whales"]}, "it has no skill 'whales'; it has: boats, tides"),
        ({"skills_dir": "docs"}, "it has no skills there"),
    ):
        assert teaches in refused(SkillSourceError, sea={**sea, **wrong})
    market = {"type": "marketplace", "url": served.url, "plugin": "x"}
    assert "it has no .claude-plugin/marketplace.json" in refused(SkillSourceError, sea=market)
    (place / "skills/sea").mkdir(parents=True)
    (place / "skills/sea/SKILL.md").write_text(skill("sea"))
    assert "something is there that was not fetched" in refused(DefinitionError, sea=sea)
    assert "'lake' also has a skill 'boats'" in refused(SkillSourceError, lake=sea, pond=sea)
    monkeypatch.setenv("PATH", str(place))
    assert (
        refused(DefinitionError, ocean=sea)
        == "git: the program is not installed, but it is needed to fetch skills; install it."
    )

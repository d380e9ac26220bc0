"""Skills in folders: what is found, what is left out, and that nothing outside of a skill is ever read."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, Completed, Executor, Failed, ScriptedModel, SkillFolder, ToolFailed
from helix_agents.ports.skills import LineRange
from helix_agents.testing import call

TEXT = """---
name: {name}
description: >
  Does {name}
  well.
license: MIT
allowed-tools: [Read, Grep]
---

# {name}

Do it.
"""


def write(folder: Path, name: str, text: str = TEXT) -> Path:
    skill = folder / name
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(text.format(name=name), encoding="utf-8")
    return skill


async def names(folder: SkillFolder) -> list[str]:
    return sorted(each.name for each in await folder.list_skills())


async def test_skills_are_found_in_folders_and_in_folders_of_those(tmp_path: Path) -> None:
    write(tmp_path / "mine", "tides")
    write(tmp_path / "mine" / "fetched", "boats")
    write(tmp_path / "mine" / ".git", "hidden")
    write(tmp_path / "mine" / "too" / "deep", "whales")
    boats = write(tmp_path / "theirs", "boats", TEXT.replace("well", "better"))
    (boats / "references").mkdir()
    (boats / "references" / "forms.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (boats / ".DS_Store").write_text("x")
    folder = SkillFolder(tmp_path / "mine", str(tmp_path / "theirs"))
    assert await names(folder) == ["boats", "tides"]
    found = await folder.get_skill("boats")
    assert found is not None
    assert (found.description, found.body) == ("Does boats better.", "# boats\n\nDo it.")
    assert found.files == ("references/forms.md",)
    assert await folder.read_resource("boats", "references/forms.md") == "one\ntwo\n"
    assert await folder.read_resource("boats", "references/forms.md", LineRange(first=2)) == "two\n"
    assert await folder.get_skill("whales") is None
    assert SkillFolder("near").roots == (Path(__file__).parent / "near",)


async def test_what_changes_in_a_folder_is_seen_by_the_next_who_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, "tides") / "SKILL.md"
    folder = SkillFolder(tmp_path)
    assert [each.description for each in await folder.list_skills()] == ["Does tides well."]
    file.write_text(file.read_text().replace("well", "very well"))
    assert [each.description for each in await folder.list_skills()] == ["Does tides very well."]
    write(tmp_path, "boats")
    file.write_text("No skill any more.")
    with caplog.at_level(logging.WARNING, "helix_agents"):
        assert await names(folder) == await names(folder) == ["boats"]
    assert len(caplog.records) == 1
    assert "does not begin with front matter" in caplog.text
    file.unlink()
    assert await names(folder) == ["boats"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT.replace("name: {name}", "name: other"), "its name is 'other', but its folder is 'bad'"),
        (TEXT.replace("name: {name}", "name: [7]"), "its name is of type list, not text"),
        (TEXT.replace("name: {name}", "nome: {name}"), "it has no name"),
        ("---\nname: {name}\ndescription: Use: always\n---\nDo.", "its front matter is not YAML"),
        ("---\nname: {name}\ndescription: " + "[" * 500 + "\n---\nDo.", "its front matter is not YAML"),
        ("---\nname: {name}\ndescription: Fine.\nx: " + "x" * 20_000 + "\n---\nDo.", "more than 20,000 characters"),
        ("---\n- name\n---\nDo.", "is not a mapping"),
        ("---\nname: {name}\ndescription: Fine.\n---\n \n", "there is no text"),
        ("---\nname: {name}\ndescription: Fine.\n", "does not end"),
        ("---\nname: {name}\ndescription: Fine.\n---\n" + "x" * 1_000_001, "more than 1,000,000 bytes"),
    ],
)
async def test_a_bad_skill_is_left_out_and_told_and_the_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    write(tmp_path, "good")
    write(tmp_path, "bad", text)
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "SKILL.md").write_bytes(b"---\nname: worse\ndescription: \xff\n---\nDo.")
    with caplog.at_level(logging.WARNING, "helix_agents"):
        assert await names(SkillFolder(tmp_path)) == ["good"]
    assert reason in caplog.text
    assert "it is not UTF-8" in caplog.text


async def test_nothing_outside_of_a_skill_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "secret.md").write_text("secret")
    skill = write(tmp_path / "skills", "tides")
    write(tmp_path / "skills", "boats")
    (skill / "out.md").symlink_to(tmp_path / "secret.md")
    (skill / "away").symlink_to(tmp_path)
    (skill / "near.md").symlink_to(skill / "SKILL.md")
    (skill / "none.md").symlink_to(skill / "nowhere")
    (skill / "picture.png").write_bytes(b"\x89PNG\xff")
    (skill / "long.txt").write_bytes(b"x" * 10_000_001)
    liar = tmp_path / "skills" / "liar"
    liar.mkdir()
    (tmp_path / "liar.md").write_text(TEXT.format(name="liar"))
    (liar / "SKILL.md").symlink_to(tmp_path / "liar.md")
    folder = SkillFolder(tmp_path / "skills")
    with caplog.at_level(logging.WARNING, "helix_agents"):
        assert await names(folder) == ["boats", "tides"]
    assert "leads elsewhere" in caplog.text
    found = await folder.get_skill("tides")
    assert found is not None
    assert found.files == ("long.txt", "near.md", "picture.png")
    assert (await folder.read_resource("tides", "near.md") or "").startswith("---")
    for path in (
        "out.md", "away/secret.md", "none.md", "../boats/SKILL.md", "references/../../boats/SKILL.md", "", ".", "/",
        str(tmp_path / "secret.md"), "..\\boats\\SKILL.md", "near.md\0", "nothing.md",
    ):  # fmt: skip
        assert await folder.read_resource("tides", path) is None, path
    for path, teaches in (("picture.png", "not UTF-8"), ("long.txt", "more than 10,000,000 bytes")):
        with pytest.raises(ToolFailed, match=teaches):
            await folder.read_resource("tides", path)


async def test_an_agent_reads_from_a_folder_and_one_that_is_not_there_fails_its_run(tmp_path: Path) -> None:
    script = ScriptedModel([call("load_skill", {"name": "tides"}), "Done."])
    agent = Agent(name="skipper", model=script, skills=SkillFolder(tmp_path / "skills"), preload_skills=["tides"])
    async with Executor.open("memory://", agents=[agent]) as helix:
        result = await (await helix.execute(agent, "When?", "s-1")).result()
        assert isinstance(result, Failed)
        assert (result.code, str(tmp_path / "skills") in result.error) == ("skills_unavailable", True)
        write(tmp_path / "skills", "tides")
        assert isinstance(await (await helix.retry(agent, "s-1")).result(), Completed)
    assert '<skill name="tides" loaded="true">\n# tides' in script.requests[0].instructions


async def test_a_folder_that_may_not_be_looked_into_is_no_reason_to_leave_out_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "tides"):
        write(tmp_path, name)
    look = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if "closed" in str(path) and "SKILL.md" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return look(path, **options)

    monkeypatch.setattr("os.stat", stat)
    assert await names(SkillFolder(tmp_path)) == ["tides"]

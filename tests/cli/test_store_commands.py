"""The commands that touch a store, run as a user runs them: in a process, on real files."""

import subprocess
from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite.migrations import known_version
from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import HELIX, environment, helix

SAMPLE = """
from helix_agents import Agent, ScriptedModel
agent = Agent(name="sample", model=ScriptedModel(["hi"]), instructions="Talk.")
"""


def test_migrating_makes_the_store_and_may_be_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        done = helix(tmp_path, "migrate", "--store", "sqlite:///helix.db", "--json")
        assert (done.code, done.json["schema_version"]) == (ExitCode.OK, known_version()), done.err


def test_the_doctor_looks_and_changes_nothing(tmp_path: Path) -> None:
    missing = helix(tmp_path, "doctor", "--store", "sqlite:///mine.db")
    assert missing.code == ExitCode.SERVICE
    assert list(tmp_path.iterdir()) == []
    helix(tmp_path, "migrate", "--store", "sqlite:///mine.db")
    well = helix(tmp_path, "doctor", "--store", "sqlite:///mine.db")
    assert (well.code, f"schema version {known_version()}" in well.out) == (ExitCode.OK, True)


@pytest.mark.parametrize("command", ["doctor", "migrate"])
def test_a_store_that_cannot_be_used_gets_a_sentence_and_no_traceback(tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.db").write_text("no database at all " * 500)
    damaged = helix(tmp_path, command, "--store", "sqlite:///bad.db")
    assert damaged.code == ExitCode.SERVICE
    helix(tmp_path, "migrate", "--store", "sqlite:///newer.db")
    newer = apsw.Connection(str(tmp_path / "newer.db"))
    newer.execute("INSERT INTO __agents_migrations VALUES (99, 'from_the_future', 0)")
    newer.close()
    future = helix(tmp_path, command, "--store", "sqlite:///newer.db")
    assert future.code == ExitCode.SETUP
    for done, sentence in ((damaged, "cannot be read"), (future, "upgrade helix-agents")):
        assert sentence in done.out + done.err


@pytest.mark.parametrize("command", [["migrate"], ["doctor"], ["sessions", "list"], ["run", "sample:agent", "hello"]])
def test_the_database_of_another_application_is_no_store(tmp_path: Path, command: list[str]) -> None:
    shop = tmp_path / "shop.db"
    other = apsw.Connection(str(shop))
    other.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    other.close()
    (tmp_path / "sample.py").write_text(SAMPLE)
    before = shop.read_bytes()
    done = helix(tmp_path, *command, "--store", "sqlite:///shop.db")
    assert (done.code, shop.read_bytes()) == (ExitCode.SETUP, before), done.err
    assert "belongs to another application" in done.out + done.err
    shared = helix(tmp_path, "migrate", "--store", "sqlite:///shop.db?shared=true")
    assert shared.code == ExitCode.OK, shared.err


@pytest.mark.parametrize(
    "command", [["sessions", "list"], ["pending", "list"], ["usage"], ["janitor"], ["interrupt", "x"], ["abort", "x"]]
)
def test_where_there_is_no_store_one_is_told_how_to_name_it(tmp_path: Path, command: list[str]) -> None:
    done = helix(tmp_path, *command)
    assert (done.code, list(tmp_path.iterdir())) == (ExitCode.SETUP, [])
    assert "--store URL or HELIX_STORE" in done.err


def test_a_store_that_is_named_and_not_there_says_what_is_missing(tmp_path: Path) -> None:
    for url, missing in (("sqlite:///mine.db", "there is no such file"), ("sqlite:///a/b.db", "Create the folder")):
        done = helix(tmp_path, "sessions", "list", "--store", url)
        assert (done.code, missing in done.err) == (ExitCode.SERVICE, True), done.err


def test_a_session_that_is_not_in_the_default_store_may_be_in_another_one(office: Path) -> None:
    where = "--store or HELIX_STORE names another store"
    for command in (["sessions", "show", "far"], ["resume", "agents:clerk", "far"], ["interrupt", "far"]):
        missing = helix(office, *command)
        assert (missing.code, "There is no session 'far'." in missing.err, where in missing.err) == (1, True, True)
        named = helix(office, *command, "--store", "sqlite:///helix.db")
        assert (named.code, where in named.err) == (1, False)
    assert helix(office, "interrupt", "far", "--json").json["error"]["code"] == "session_not_found"
    assert where not in helix(office, "interrupt", "far", settings={"HELIX_STORE": "sqlite:///helix.db"}).err


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder somebody is in, deleted by somebody else."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("doctor", ExitCode.SERVICE),
        ("sessions list", ExitCode.SETUP),
        ("sessions list --store sqlite:///mine.db", ExitCode.SERVICE),
        ("migrate", ExitCode.SERVICE),
        ("run agents:clerk hello", ExitCode.SETUP),
        ("run agents.py:clerk hello", ExitCode.SETUP),
        ("vault status --store memory:// --vault mine.json", ExitCode.SETUP),
    ],
)
def test_a_folder_that_was_deleted_is_told_and_not_called_a_bug(gone: Path, command: str, code: ExitCode) -> None:
    done = subprocess.run([HELIX, *command.split()], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stdout + done.stderr


def test_what_is_named_by_its_whole_path_needs_no_folder(gone: Path, folder: Path) -> None:
    store, agents = f"sqlite:///{folder}/helix.db", f"{folder}/agents.py:clerk"
    command = [HELIX, "run", agents, "Write to Ann", "--store", store]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.WAITING, done

"""The providers that come with the library keep the contract, each in its own way."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helix_agents import InMemoryWorkspaces, LocalWorkspaces
from helix_agents.domain.errors import DefinitionError, WorkspaceFailedError, WorkspaceFileError
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.ports.workspaces import WorkspaceFiles
from helix_agents.testing.contracts.workspaces import ANN, BOB, OpenProvider, WorkspaceProviderContract
from helix_agents.workspaces import guarded_folder
from helix_agents.workspaces.guarded_folder import GuardedFolder
from tests.workspaces.processes import until_gone, until_there


class TestInMemoryWorkspaces(WorkspaceProviderContract):
    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        only = InMemoryWorkspaces()
        return lambda: only


class TestLocalWorkspaces(WorkspaceProviderContract):
    @pytest.fixture
    def open_provider(self, tmp_path: Path) -> OpenProvider:
        return lambda: LocalWorkspaces(tmp_path / "work")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("of the host")
    return tmp_path / "work"


@pytest.fixture
def provider(root: Path) -> LocalWorkspaces:
    return LocalWorkspaces(root, env={"GIVEN": "yes"})


@pytest.fixture
async def files(provider: LocalWorkspaces) -> WorkspaceFiles:
    return await provider.resolve(await provider.open(ANN))


@pytest.fixture
def folder(root: Path) -> Path:
    return root / ANN.key / "files"


pytestmark = pytest.mark.anyio


async def test_memory_of_another_process_says_what_it_is() -> None:
    ref = await InMemoryWorkspaces().open(ANN)
    with pytest.raises(WorkspaceFailedError, match=r"memory of the process that opened it.*LocalWorkspaces"):
        await InMemoryWorkspaces().resolve(ref)


async def test_a_folder_of_another_machine_says_what_it_is(provider: LocalWorkspaces) -> None:
    with pytest.raises(WorkspaceFailedError, match="a root that all of them see"):
        await provider.resolve(WorkspaceRef(provider_id="local", ref=BOB.key))
    for odd in ("../outside", "a/b", "", "."):
        with pytest.raises(WorkspaceFailedError, match="not the name of a workspace"):
            await provider.resolve(WorkspaceRef(provider_id="local", ref=odd))


async def test_links_are_shown_and_never_followed(files: WorkspaceFiles, folder: Path, root: Path) -> None:
    outside = root.parent / "outside"
    await files.write("real", b"inside")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "out").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    assert [(each.path, each.kind) for each in await files.list(deep=True)] == [
        ("link", "link"),
        ("out", "link"),
        ("pipe", "other"),
        ("real", "file"),
    ]
    for attempt in (
        files.read("link", most_bytes=100),
        files.read("out/secret", most_bytes=100),
        files.read("pipe", most_bytes=100),
        files.write("link", b"x"),
        files.write("out/new", b"x"),
        files.list("out/"),
        files.delete("out/secret"),
        files.move("real", "out/real"),
        files.move("out/secret", "mine"),
    ):
        found: object = None
        try:
            found = await attempt
        except WorkspaceFileError:
            continue
        # Of a link that is listed, only the link is told.
        assert [each.kind for each in found] == ["link"]  # type: ignore[attr-defined]
    # Deleting a link deletes the link.
    assert await files.delete("out", with_contents=True)
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (outside / "secret").read_text() == "of the host"


class Exchanging:
    """The system's calls as the guard makes them; right before the n-th of them, a folder becomes a link."""

    def __init__(self, exchange: Callable[[], object], at: int) -> None:
        self._exchange = exchange
        self._left = at
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in ("open", "stat", "mkdir", "rename", "unlink", "rmdir", "scandir"):
            return found

        def called(*given: Any, **about: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.happened = True
                self._exchange()
            return found(*given, **about)

        return called


OF_THE_HOST = ["host", "secret", "sub", "sub/secret"]


OPERATIONS: dict[str, Callable[[GuardedFolder], Any]] = {
    "read": lambda folder: folder.read("inner/sub/secret", 100),
    "write": lambda folder: folder.write("inner/sub/secret", b"x", None),
    "list": lambda folder: [each.path for each in folder.list("inner", True, 100)],
    "delete": lambda folder: folder.delete("inner/secret", False),
    "delete_all": lambda folder: folder.delete("inner/sub", True),
    "move_out": lambda folder: folder.move("mine", "inner/mine"),
    "move_in": lambda folder: folder.move("inner/secret", "taken"),
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_a_folder_that_is_exchanged_for_a_link_at_any_moment_leads_nowhere(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    for place in (outside / "secret", outside / "sub" / "secret"):
        place.write_text("of the host")
    (outside / "host").touch()
    moments = 0
    while True:
        folder = GuardedFolder(tmp_path / "work", f"w-{moments}")
        folder.make()
        files = tmp_path / "work" / folder.name / "files"
        (files / "inner" / "sub").mkdir(parents=True)
        for name in ("secret", "sub/secret"):
            (files / "inner" / name).write_text("inside")
        (files / "mine").write_text("inside")

        def exchange(inner: Path = files / "inner") -> None:
            inner.rename(tmp_path / f"aside-{inner.parts[-3]}")
            inner.symlink_to(outside)

        calls = Exchanging(exchange, at=moments + 1)
        monkeypatch.setattr(guarded_folder, "os", calls)
        found: Any = None
        with suppress(WorkspaceFileError):
            found = OPERATIONS[what](folder)
        monkeypatch.undo()
        told = found if what in ("read", "list") else None
        assert told in (None, b"inside", ["inner"], ["inner/secret", "inner/sub", "inner/sub/secret"]), moments
        assert not (files / "taken").exists() or (files / "taken").read_text() == "inside"
        assert sorted(str(each.relative_to(outside)) for each in outside.rglob("*")) == OF_THE_HOST
        assert {each.read_text() for each in outside.rglob("secret")} == {"of the host"}
        if not calls.happened:
            break
        moments += 1
    assert moments > 4


async def test_a_workspace_whose_own_folder_became_a_link_is_not_entered(
    files: WorkspaceFiles, provider: LocalWorkspaces, folder: Path, root: Path
) -> None:
    outside = root.parent / "outside"
    folder.rmdir()
    folder.symlink_to(outside)
    with pytest.raises(WorkspaceFileError):
        await files.read("secret", most_bytes=100)
    with pytest.raises(WorkspaceFileError):
        await files.write("secret", b"x")
    ref = WorkspaceRef(provider_id="local", ref=ANN.key)
    with pytest.raises(WorkspaceFailedError):
        await provider.resolve(ref)
    await provider.delete(ANN, ref)
    assert (outside / "secret").read_text() == "of the host"


async def test_a_command_sees_nothing_of_our_environment_and_leaves_nothing_running(
    files: WorkspaceFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the host")
    command = "echo $SECRET/$GIVEN/$HOME; sleep 300 & echo $! > pid"
    ended = await files.run(command, timeout_seconds=20, most_bytes=1_000)
    assert (ended.exit_code, ended.output.decode()) == (0, f"/yes/{folder}\n")
    await until_gone(folder / "pid")


async def test_a_command_that_is_cancelled_is_killed_with_all_it_started(files: WorkspaceFiles, folder: Path) -> None:
    running = asyncio.create_task(
        files.run("sh -c 'echo $$ > pid.new; mv pid.new pid; sleep 300'; true", timeout_seconds=300, most_bytes=10)
    )
    await until_there(folder, "pid")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_gone(folder / "pid")


async def test_a_snapshot_keeps_what_the_shell_made_and_stores_contents_once(
    provider: LocalWorkspaces, files: WorkspaceFiles, root: Path
) -> None:
    ref = WorkspaceRef(provider_id="local", ref=ANN.key)
    made = "printf '#!/bin/sh\\necho ran' > run.sh; chmod 755 run.sh; ln -s run.sh link; mkdir empty; cp run.sh twin"
    await files.run(made, timeout_seconds=20, most_bytes=100)
    await provider.snapshots.create(ref, "1-a")
    await provider.snapshots.create(ref, "2-b")
    assert len([*(root / ANN.key / "objects").iterdir()]) == 1
    await files.run("rm -rf *", timeout_seconds=20, most_bytes=100)
    await provider.snapshots.restore(ref, "2-b")
    ended = await files.run("./link; ls -F", timeout_seconds=20, most_bytes=100)
    assert ended.output.split() == [b"ran", b"empty/", b"link@", b"run.sh*", b"twin*"]


async def test_a_snapshot_of_too_much_is_refused(root: Path) -> None:
    provider = LocalWorkspaces(root, snapshot_bytes=10)
    ref = await provider.open(ANN)
    await (await provider.resolve(ref)).write("a", b"12345678901")
    with pytest.raises(WorkspaceFailedError, match="more than 10 bytes"):
        await provider.snapshots.create(ref, "1-a")
    assert await provider.snapshots.list(ref) == []


async def test_a_tree_of_any_depth_is_deleted_and_folders_may_be_read_only(
    provider: LocalWorkspaces, files: WorkspaceFiles, folder: Path
) -> None:
    ref = WorkspaceRef(provider_id="local", ref=ANN.key)

    def keep_out() -> None:
        (folder / "deep" / "read" / "only").mkdir(parents=True, exist_ok=True)
        (folder / "deep" / "link").symlink_to("read")
        for each in ("deep/read", "deep"):
            os.chmod(folder / each, 0o555)

    at = os.open(folder, os.O_RDONLY)
    for _ in range(1_050):
        os.mkdir("deep", dir_fd=at)
        above, at = at, os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(above)
    os.close(at)
    keep_out()
    # Left by a process that died.
    (folder.parent / "aside" / "gone-1" / "deep").mkdir(parents=True)
    assert await files.delete("deep", with_contents=True)
    assert os.listdir(folder) == []
    assert os.listdir(folder.parent / "aside") == ["gone-1"]
    keep_out()
    await provider.snapshots.restore(ref, None)
    assert os.listdir(folder) == []
    keep_out()
    await provider.delete(ANN, ref)
    assert os.listdir(provider.root) == []


async def test_a_written_file_keeps_its_rights_and_folders_are_found_from_the_module(
    files: WorkspaceFiles, folder: Path
) -> None:
    await files.write("run.sh", b"one")
    os.chmod(folder / "run.sh", 0o750)
    await files.write("run.sh", b"two")
    assert os.stat(folder / "run.sh").st_mode & 0o777 == 0o750
    assert LocalWorkspaces("work").root == Path(__file__).parent / "work"


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"root": ""}, "is not a folder"), ({"root": "x", "env": {"A": 1}}, "is not a string"),
     ({"root": "x", "snapshot_bytes": 0}, "snapshot_bytes=0")],
)  # fmt: skip
def test_folders_that_could_not_work_are_refused(options: dict, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        LocalWorkspaces(**options)

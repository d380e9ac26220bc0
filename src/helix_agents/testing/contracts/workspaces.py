"""The contract of a workspace provider: one workspace per owner, files as they were written, and no way out."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import pytest

from helix_agents.domain.errors import WorkspaceFailedError, WorkspaceFileError
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.ports.workspaces import WorkspaceFiles, WorkspaceOwner, WorkspaceProvider
from helix_agents.testing.contracts.contract import Contract

OpenProvider: TypeAlias = Callable[[], WorkspaceProvider]
"""One more handle onto the same workspaces, as another process would have; within one process, the same again."""

ANN = WorkspaceOwner(key="ann-1", session_id="ann")
BOB = WorkspaceOwner(key="bob-1", session_id="bob")


async def _read(files: WorkspaceFiles, path: str) -> bytes:
    return await files.read(path, most_bytes=1_000)


async def _paths(files: WorkspaceFiles, path: str = "", *, deep: bool = True) -> list[tuple[str, str]]:
    return [(each.path, each.kind) for each in await files.list(path, deep=deep)]


class WorkspaceProviderContract(Contract):
    """Inherit it in a class named `Test…` and provide the fixture `open_provider`."""

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        """For you to implement."""
        raise NotImplementedError("a concrete class gives the fixture open_provider")

    @pytest.fixture
    def provider(self, open_provider: OpenProvider) -> WorkspaceProvider:
        """The usual handle."""
        return open_provider()

    @pytest.fixture
    async def files(self, provider: WorkspaceProvider) -> WorkspaceFiles:
        """The workspace of the usual owner."""
        return await provider.resolve(await provider.open(ANN))

    async def test_an_owner_has_one_workspace_however_often_and_by_whomever_it_is_opened(
        self, open_provider: OpenProvider
    ) -> None:
        one, other = open_provider(), open_provider()
        refs = await asyncio.gather(*(provider.open(ANN) for provider in (one, other) * 4))
        assert all(ref == refs[0] for ref in refs)
        assert refs[0].provider_id == one.provider_id
        await (await one.resolve(refs[0])).write("a.txt", b"of ann")
        assert await _read(await other.resolve(refs[0]), "a.txt") == b"of ann"
        assert (await other.open(ANN), await _read(await other.resolve(refs[0]), "a.txt")) == (refs[0], b"of ann")
        assert await _paths(await other.resolve(await other.open(BOB))) == []

    async def test_a_workspace_that_is_not_there_is_never_made_anew(self, provider: WorkspaceProvider) -> None:
        ref = await provider.open(ANN)
        await provider.delete(ANN, ref)
        await provider.delete(ANN, ref)
        with pytest.raises(WorkspaceFailedError):
            await provider.resolve(ref)
        await provider.open(BOB)
        # A process died before the ref was recorded.
        await provider.delete(BOB, None)
        with pytest.raises(WorkspaceFailedError):
            await provider.resolve(WorkspaceRef(provider_id=provider.provider_id, ref=BOB.key))
        assert await _paths(await provider.resolve(await provider.open(ANN))) == []

    async def test_files_are_what_was_written(self, files: WorkspaceFiles) -> None:
        assert await files.write("a/b/c.bin", b"\0\xff\n")
        assert await files.write("a/b/c.bin", b"two")
        assert await files.write("z.txt", b"")
        assert await _read(files, "./a//b/c.bin") == b"two"
        assert [(each.path, each.size) for each in await files.list("a/b")] == [("a/b/c.bin", 3)]
        assert await _paths(files, deep=False) == [("a", "folder"), ("z.txt", "file")]
        assert await _paths(files) == [("a", "folder"), ("a/b", "folder"), ("a/b/c.bin", "file"), ("z.txt", "file")]
        assert await _paths(files, "z.txt") == [("z.txt", "file")]
        assert len(await files.list(deep=True, most=2)) == 2
        await files.move("a/b", "d/e")
        assert await _read(files, "d/e/c.bin") == b"two"
        assert await files.delete("d/e/c.bin")
        assert not await files.delete("d/e/c.bin")
        await files.write("d/f/g.txt", b"x")
        assert await files.delete("d", with_contents=True)
        assert [each for each in await _paths(files) if each[1] == "file"] == [("z.txt", "file")]

    async def test_of_many_who_change_a_file_at_once_nobody_changes_what_he_did_not_see(
        self, open_provider: OpenProvider
    ) -> None:
        ref = await open_provider().open(ANN)
        await (await open_provider().resolve(ref)).write("n", b"0")

        async def count() -> None:
            files = await open_provider().resolve(ref)
            while True:
                seen = await _read(files, "n")
                if await files.write("n", str(int(seen) + 1).encode(), instead_of=seen):
                    return

        await asyncio.wait_for(asyncio.gather(*(count() for _ in range(8))), 20)
        files = await open_provider().resolve(ref)
        assert await _read(files, "n") == b"8"
        assert not await files.write("new", b"x", instead_of=b"")

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "a/../../x", "a\0b", "x" * 5_000, "/".join("x" * 60)], ids=lambda path: path[:9]
    )
    async def test_no_path_leads_out(self, files: WorkspaceFiles, path: str) -> None:
        await files.write("a", b"inside")
        for attempt in (
            files.read(path, most_bytes=10),
            files.write(path, b"x"),
            files.list(path),
            files.delete(path, with_contents=True),
            files.move("a", path),
            files.move(path, "b"),
        ):
            with pytest.raises(WorkspaceFileError):
                await attempt
        assert await _paths(files) == [("a", "file")]

    async def test_what_cannot_be_done_is_refused_and_changes_nothing(self, files: WorkspaceFiles) -> None:
        await files.write("folder/file", b"12345")
        await files.write("other", b"o")
        for attempt in (
            files.read("nothing", most_bytes=10),
            files.read("folder", most_bytes=10),
            files.read("folder/file", most_bytes=4),
            files.write("folder", b"x"),
            files.write("", b"x"),
            files.write("other/file", b"x"),
            files.list("nothing"),
            files.delete("folder"),
            files.delete("", with_contents=True),
            files.move("nothing", "new"),
            files.move("other", "folder/file"),
            files.move("folder", "folder/inside"),
        ):
            with pytest.raises(WorkspaceFileError):
                await attempt
        assert [each for each in await _paths(files) if each[1] == "file"] == [
            ("folder/file", "file"),
            ("other", "file"),
        ]

    async def test_a_workspace_is_brought_back_to_what_it_was_and_another_one_made_the_same(
        self, provider: WorkspaceProvider
    ) -> None:
        if "snapshot" not in provider.capabilities:
            return
        kept, ref = provider.snapshots, await provider.open(ANN)
        files = await provider.resolve(ref)
        assert await kept.list(ref) == ()
        await files.write("a/one", b"1")
        await kept.create(ref, "1-first")
        await files.write("a/one", b"changed")
        await files.write("two", b"2")
        await kept.create(ref, "2-second")
        await files.write("two", b"22")
        await kept.create(ref, "2-second")
        await files.delete("a", with_contents=True)
        other = await provider.open(BOB)
        await kept.restore(other, "2-second", source=ref)
        await kept.restore(ref, "1-first")
        await kept.restore(ref, "1-first")
        theirs = await provider.resolve(other)
        assert (await _read(theirs, "a/one"), await _read(theirs, "two")) == (b"changed", b"22")
        assert [each for each in await _paths(files) if each[1] == "file"] == [("a/one", "file")]
        assert await _read(files, "a/one") == b"1"
        # A copy belongs to no one else.
        await theirs.write("a/one", b"theirs")
        await kept.restore(ref, "2-second")
        assert (await _read(files, "a/one"), await kept.list(other)) == (b"changed", ())
        await kept.restore(ref, None)
        assert await _paths(files) == []
        await kept.delete(ref, "1-first")
        await kept.delete(ref, "1-first")
        assert [*await kept.list(ref)] == ["2-second"]
        await provider.delete(ANN, ref)
        assert [*await kept.list(ref)] == []

    async def test_a_command_runs_among_the_files_and_ends_when_its_time_is_over(
        self, provider: WorkspaceProvider, files: WorkspaceFiles
    ) -> None:
        if "shell" not in provider.capabilities:
            with pytest.raises(WorkspaceFileError):
                await files.run("true", timeout_seconds=5, most_bytes=100)
            return
        await files.write("a.txt", b"hello\n")
        ended = await files.run("cat a.txt; echo oops >&2; exit 3", timeout_seconds=20, most_bytes=1_000)
        assert (ended.exit_code, ended.output + ended.output_end, ended.left_out) == (3, b"hello\noops\n", 0)
        ended = await files.run("echo begun; sleep 60", timeout_seconds=0.3, most_bytes=1_000)
        assert (ended.exit_code, ended.output) == (None, b"begun\n")
        ended = await files.run("yes | head -c 100000; echo the end", timeout_seconds=20, most_bytes=1_000)
        assert ended.output_end.endswith(b"the end\n")
        assert (len(ended.output) + len(ended.output_end), ended.left_out) == (1_000, 100_008 - 1_000)

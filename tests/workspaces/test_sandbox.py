"""Commands in a sandbox reach their workspace and the programs of the system, and nothing else of the machine."""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, DefinitionError, Executor, LocalWorkspaces, Sandbox, ScriptedModel, Workspace
from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.domain.messages import ToolMessage
from helix_agents.ports.workspaces import WorkspaceFiles
from helix_agents.testing import call
from helix_agents.testing.contracts.executor.stage import until
from helix_agents.testing.contracts.workspaces import ANN, BOB, OpenProvider, WorkspaceProviderContract
from helix_agents.workspaces.sandbox import NoSandboxError, _can_forbid_namespaces  # pyright: ignore[reportPrivateUsage]
from tests.workspaces.processes import until_there


def _problem() -> str | None:
    """Why no sandbox can be had here."""
    try:
        line = Sandbox().around(("/bin/true",), Path(__file__).parent)
    except NoSandboxError as problem:
        return f"{problem}: install bubblewrap to test sandboxes"
    tried = subprocess.run(line, capture_output=True, text=True, check=False)
    return f"bubblewrap cannot start: {tried.stderr.strip()}" if tried.returncode else None


needs_bubblewrap = pytest.mark.skipif((problem := _problem()) is not None, reason=str(problem))

pytestmark = pytest.mark.anyio


def untyped(value: object) -> Any:
    """What nobody looks at the type of."""
    return value


@needs_bubblewrap
class TestLocalWorkspacesInASandbox(WorkspaceProviderContract):
    @pytest.fixture
    def open_provider(self, tmp_path: Path) -> OpenProvider:
        return lambda: LocalWorkspaces(tmp_path / "work", sandbox=Sandbox())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work"


async def opened(root: Path, sandbox: Sandbox | None = None, **env: str) -> WorkspaceFiles:
    provider = LocalWorkspaces(root, sandbox=sandbox or Sandbox(), env=env)
    return await provider.resolve(await provider.open(ANN))


async def said(files: WorkspaceFiles, command: str) -> tuple[int | None, str]:
    ended = await files.run(command, timeout_seconds=20, most_bytes=10_000)
    return ended.exit_code, ended.output.decode()


@needs_bubblewrap
async def test_a_command_works_on_the_files_of_its_workspace(root: Path) -> None:
    files = await opened(root, GIVEN="yes")
    await files.write("notes/a.txt", b"b\na\n")
    assert await said(files, "sort notes/a.txt > sorted.txt; pwd; echo $HOME $GIVEN; cat ~/sorted.txt; exit 3") == (
        3,
        "/workspace\n/workspace yes\na\nb\n",
    )
    assert await files.read("sorted.txt", most_bytes=100) == b"a\nb\n"


@needs_bubblewrap
async def test_no_other_file_is_seen_and_nothing_of_the_system_is_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    provider = LocalWorkspaces(root, sandbox=Sandbox())
    await (await provider.resolve(await provider.open(BOB))).write("secret.txt", b"Bob's")
    files = await opened(root)
    # A command may leave a link, but it leads nowhere, neither for the next command nor for a tool.
    for path in (
        root,
        root / BOB.key / "files" / "secret.txt",
        Path("/etc/shadow"),
        Path.home(),
        Path("/sys"),
        Path("/run"),
    ):
        assert (await said(files, f"ln -sfn {path} link; ls {path} || cat {path} || cat link || ls link/"))[0] != 0, (
            path
        )
    # Root may write to these without any privilege, and the program for core dumps would run outside.
    for path in ("/usr/mine", "/bin/sh", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname"):
        assert (await said(files, f"echo mine > {path}"))[0] != 0, path
    for path in ("/proc/keys", "/proc/timer_list", "/proc/kcore", "/proc/sysrq-trigger"):
        if await asyncio.to_thread(Path(path).is_file):
            code, output = await said(files, f"cat {path} 2> /dev/null")
            assert code != 0 or not output, path
    await said(files, "echo mine > /etc/mine; echo mine > /mine; echo mine > /workspace/../mine")
    assert not await asyncio.to_thread(lambda: Path("/etc/mine").exists() or Path("/mine").exists())
    assert "SECRET_OF_THE_HOST" not in (await said(files, "env"))[1]
    assert await said(files, "touch /tmp/mine && ls /tmp") == (0, "mine\n")
    assert await said(files, "ls /tmp") == (0, "")


@needs_bubblewrap
async def test_a_command_has_no_privileges_and_sees_no_process_of_the_machine(root: Path) -> None:
    files = await opened(root)
    assert "CapEff:\t0000000000000000" in (await said(files, "cat /proc/self/status"))[1]
    seen = (await said(files, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))[1]
    assert "/bin/sh -c cat" in seen
    assert sys.executable not in seen
    assert (await said(files, f"kill -9 {os.getppid()}"))[0] != 0


@needs_bubblewrap
async def test_a_command_makes_no_namespace_in_which_it_would_have_privileges(root: Path) -> None:
    if not _can_forbid_namespaces(shutil.which("bwrap") or ""):
        pytest.skip("this bubblewrap cannot forbid namespaces")
    files = await opened(root)
    # Mapped to no user, so that nothing but the namespace itself can be refused.
    code, output = await said(files, "unshare --user true")
    assert code != 0
    assert "unshare failed" in output


@needs_bubblewrap
async def test_only_a_sandbox_with_a_network_reaches_one(root: Path) -> None:
    served: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readline())
        writer.write(b"welcome\n")
        await writer.drain()
        writer.close()

    program = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); "
        "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline())"
    )
    # A Python outside /usr is seen because it is named.
    python = {os.path.realpath(each) for each in (sys.base_prefix, sys.prefix)}
    interpreter = os.path.realpath(sys.executable)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for network, told in ((False, "refused"), (True, "welcome")):
            files = await opened(root / told, Sandbox(network=network, readable=sorted(python)))
            await files.write("connect.py", program.encode())
            assert told in (await said(files, f"{interpreter} -I connect.py {port} {told}"))[1]
        assert served == [b"welcome\n"]


@needs_bubblewrap
async def test_whatever_a_command_started_ends_with_it(root: Path) -> None:
    files = await opened(root)
    folder = root / ANN.key / "files"
    # In a session of its own, where a group of processes does not hold it.
    stays = "setsid sh -c 'sleep 98765 & touch there; wait' > /dev/null 2>&1 & until test -e there; do :; done"
    assert (await said(files, stays))[0] == 0
    await until_gone_from_the_machine("98765")
    waiting = asyncio.create_task(said(files, "setsid sleep 87654 & touch begun; sleep 76543"))
    await until_there(folder, "begun")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ended = await files.run("setsid sleep 65432 & sleep 54321", timeout_seconds=0.3, most_bytes=100)
    assert ended.exit_code is None
    for each in ("87654", "76543", "65432", "54321"):
        await until_gone_from_the_machine(each)


def _runs(argument: str) -> bool:
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (
                argument in each.joinpath("cmdline").read_text().split("\0")
                and "\nState:\tZ" not in each.joinpath("status").read_text()
            ):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


async def until_gone_from_the_machine(argument: str) -> None:
    async def is_gone() -> bool:
        return not await asyncio.to_thread(_runs, argument)

    await until(is_gone)


@needs_bubblewrap
async def test_a_link_makes_no_other_workspace_readable(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    files = await opened(root, Sandbox(readable=[tmp_path / "link"]))
    with pytest.raises(WorkspaceFailedError, match="links make what commands read"):
        await said(files, "true")


@pytest.mark.parametrize("broken", ["missing", "refusing"])
async def test_without_the_sandbox_it_should_have_no_command_runs_and_the_operator_is_told(
    root: Path, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bin").mkdir()
    if broken == "refusing":
        # As where a container does not allow user namespaces.
        program = tmp_path / "bin" / "bwrap"
        program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    provider = LocalWorkspaces(root, sandbox=Sandbox())
    workspace = Workspace(provider, capabilities=["shell"], approve_commands=False)
    script = [call("workspace_run", {"command": "touch ran"}), "It cannot be done."]
    agent = Agent(name="clerk", model=ScriptedModel(script), workspace=workspace)
    with caplog.at_level(logging.ERROR, "helix_agents"):
        async with Executor.open("memory://", agents=[agent]) as helix:
            assert await helix.run(agent, "Run it", "s") == "It cannot be done."
            [told] = [
                each.message.content
                for each in (await helix.sessions.messages("s")).items
                if isinstance(each.message, ToolMessage)
            ]
    reason = {"missing": "there is no program bwrap here", "refusing": "No permissions to create new namespace"}[broken]
    assert reason in told
    assert "Install bubblewrap" in told
    assert "workspace.no_sandbox" in caplog.text
    assert await asyncio.to_thread(lambda: [*root.rglob("ran")]) == []


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda root: Sandbox(readable="/opt"), "not a list of folders"),
        (lambda root: Sandbox(readable=["tools"]), "not the absolute path"),
        (lambda root: Sandbox(readable=["/tmp/"]), "a sandbox has its own of"),
        (lambda root: Sandbox(network=untyped("yes")), "network"),
        (lambda root: LocalWorkspaces(root, sandbox=untyped(True)), r"not a Sandbox\("),
        (
            lambda root: LocalWorkspaces(root, sandbox=Sandbox(readable=[root.parent])),
            "workspaces of all sessions",
        ),
        (lambda root: LocalWorkspaces("/usr/share/work", sandbox=Sandbox()), "workspaces of all sessions"),
        (
            lambda root: LocalWorkspaces(root, sandbox=Sandbox(readable=[root / "x"])),
            "workspaces of all sessions",
        ),
    ],
)
def test_a_sandbox_that_could_not_work_is_refused(root: Path, make: Callable[[Path], Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        make(root)

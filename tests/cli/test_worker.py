"""`helix worker`: runs that one process submits are driven by another, which leaves when it is told to."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from helix_agents import Agent, Completed, DBOSAgentExecutor, ScriptedModel, TemporalAgentExecutor
from helix_agents.cli.app import run
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.runtimes.temporal import find_temporal
from helix_agents.runtimes.temporal.service import knows_attributes
from helix_agents.testing.service_process import free_port
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.cli.sample_agents import counter
from tests.support.tls_front import make_certificates, tls_front

NO_TLS = {"api_key": "k", "tls": False}


async def test_a_worker_drives_what_another_process_submits_and_leaves_on_sigterm(folder: Path, temporal_address: str):
    store, queue = f"sqlite:///{folder / 'helix.db'}", f"worker-{os.getpid()}"
    place = ["agents:registry", "--address", temporal_address, "--task-queue", queue, "--prefix", queue]
    command = ["-c", "from helix_agents.cli import main; main()", "worker", "temporal", *place]
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        *(*command, "--store", store, "--register"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            assert worker.stdout is not None
            assert b"are searchable now" in await worker.stdout.readline()
            assert b"Working on queue" in await worker.stdout.readline()
            own = {"address": temporal_address, "task_queue": queue, "prefix": queue, "works": False}
            async with TemporalAgentExecutor.open(store, agents=[counter], **own) as helix:
                result = await (await helix.execute(counter, "Hello", "s-1")).result()
                assert isinstance(result, Completed)
            assert await knows_attributes(await Client.connect(temporal_address))
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == -signal.SIGTERM
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


async def test_a_worker_comes_in_where_a_server_asks_for_certificates(
    folder: Path, temporal_address: str, monkeypatch: pytest.MonkeyPatch
):
    certificates = await asyncio.to_thread(make_certificates, folder)
    store, queue = f"sqlite:///{folder / 'helix.db'}", f"tls-{os.getpid()}"
    async with tls_front(temporal_address, certificates, asks_for_client=True) as door, asyncio.timeout(60):
        options = ["--address", door, "--tls-ca-path", str(certificates.ca), "--tls-server-name", "temporal.test"]
        options += ["--tls-cert-path", str(certificates.client), "--tls-key-path", str(certificates.client_key)]
        command = [
            "-c",
            "from helix_agents.cli import main; main()",
            "worker",
            "temporal",
            "agents:registry",
            "--register",
        ]
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*command, *options, "--task-queue", queue, "--prefix", queue, "--store", store),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert worker.stdout is not None
            assert b"are searchable now" in await worker.stdout.readline()
            assert b"Working on queue" in await worker.stdout.readline()
            monkeypatch.setenv("TEMPORAL_ADDRESS", door)
            for name, file in (("SERVER_CA_CERT", "ca"), ("CLIENT_CERT", "client"), ("CLIENT_KEY", "client_key")):
                monkeypatch.setenv(f"TEMPORAL_TLS_{name}_PATH", str(getattr(certificates, file)))
            monkeypatch.setenv("TEMPORAL_TLS_SERVER_NAME", "temporal.test")
            own = {**await asyncio.to_thread(find_temporal), "task_queue": queue, "prefix": queue, "works": False}
            async with TemporalAgentExecutor.open(store, agents=[counter], **own) as helix:
                assert isinstance(await (await helix.execute(counter, "Hello", "s-1")).result(), Completed)
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == -signal.SIGTERM
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "it ended the connection; it may need TLS"),
        (("--tls",), "its certificate is not from a CA that this machine trusts"),
        (("--tls-ca-path", "ca.pem"), "its certificate is for another name"),
        (
            ("--tls-ca-path", "ca.pem", "--tls-server-name", "temporal.test"),
            "it may need TLS, or a client certificate",
        ),
        (("--tls-cert-path", "client.pem"), "a client certificate or its private key, but not both"),
        (("--tls-cert-path", "client.pem", "--tls-key-path", "agents.py"), "the private key .* cannot be read"),
        (
            ("--tls-cert-path", "agents.py", "--tls-key-path", "client.key"),
            "a certificate that was given cannot be read",
        ),
        (("--tls-cert-path", "missing.pem"), "No such file or directory: 'missing.pem'"),
        (("--config-file", "missing.toml"), "No such file or directory: 'missing.toml'"),
        (("--profile", "prod"), "Profile 'prod' not found"),
    ],
)
async def test_a_door_that_stays_shut_says_why(
    options: tuple[str, ...], reason: str, folder: Path, temporal_address: str
):
    certificates = await asyncio.to_thread(make_certificates, folder)
    command = ["-c", "from helix_agents.cli import main; main()", "worker", "temporal", "agents:registry"]
    async with tls_front(temporal_address, certificates, asks_for_client=True) as door, asyncio.timeout(60):
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--address", door, *options, cwd=folder, stderr=asyncio.subprocess.PIPE
        )
        _, told = await worker.communicate()
    assert re.search(reason, told.decode()), told.decode()
    assert "tonic" not in told.decode()
    assert worker.returncode in (ExitCode.SERVICE, ExitCode.SETUP)


PROFILES = """
[profile.default]
address = "file.test:7233"
namespace = "from-file"

[profile.cloud]
address = "acme.tmprl.cloud:7233"
namespace = "acme"
api_key = "from-file"
"""


@pytest.mark.parametrize(
    ("environment", "given", "address", "namespace", "settings"),
    [
        ({}, {}, "127.0.0.1:7233", "default", {}),
        ({"TEMPORAL_API_KEY": ""}, {}, "127.0.0.1:7233", "default", {}),
        (
            {"TEMPORAL_ADDRESS": "a.test:1", "TEMPORAL_API_KEY": "k"},
            {},
            "a.test:1",
            "default",
            {"api_key": "k", "tls": True},
        ),
        ({"TEMPORAL_CONFIG_FILE": "FILE"}, {}, "file.test:7233", "from-file", {}),
        ({"TEMPORAL_CONFIG_FILE": "FILE", "TEMPORAL_NAMESPACE": "mine"}, {}, "file.test:7233", "mine", {}),
        (
            {"TEMPORAL_CONFIG_FILE": "FILE", "TEMPORAL_ADDRESS": "a.test:1"},
            {"TEMPORAL_PROFILE": "cloud", "TEMPORAL_ADDRESS": "b.test:2"},
            "b.test:2",
            "acme",
            {"api_key": "from-file", "tls": True},
        ),
        (
            {"TEMPORAL_API_KEY": "k", "TEMPORAL_TLS": "true"},
            {"TEMPORAL_TLS": "false"},
            "127.0.0.1:7233",
            "default",
            NO_TLS,
        ),
    ],
)
def test_temporal_is_found_as_its_own_command_line_finds_it(
    environment: dict[str, str],
    given: dict[str, str],
    address: str,
    namespace: str,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "temporal.toml").write_text(PROFILES)
    for name in [each for each in os.environ if each.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    # Where the file is looked for that nobody named.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("FILE", str(tmp_path / "temporal.toml")))
    found = find_temporal(given)
    assert (found["address"], found["temporal_namespace"], found["client_settings"]) == (address, namespace, settings)


def test_an_api_key_has_no_option_as_everybody_on_a_machine_reads_command_lines(capsys: pytest.CaptureFixture[str]):
    assert run(["worker", "temporal", "agents:several", "--api-key", "k"]) == ExitCode.USAGE
    assert run(["worker", "temporal", "--help"]) == ExitCode.OK
    assert "TEMPORAL_API_KEY" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    address = f"127.0.0.1:{free_port()}"
    assert (
        run(["worker", "temporal", "agents:several", "--address", address, "--store", f"sqlite:///{folder}/helix.db"])
        == ExitCode.SERVICE
    )
    told = capsys.readouterr().err
    assert f"Temporal at {address} is not answering" in told
    assert "tonic" not in told


def test_a_namespace_that_is_not_there_is_named(
    folder: Path, temporal_address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    place = ("--address", temporal_address, "--namespace", "nowhere", "--store", f"sqlite:///{folder}/helix.db")
    assert run(["worker", "temporal", "agents:several", *place]) == ExitCode.SERVICE
    told = capsys.readouterr().err
    assert f"Temporal at {temporal_address}" in told
    assert "no namespace 'nowhere'" in told


@pytest.mark.parametrize("engine", ["temporal", "dbos"])
@pytest.mark.parametrize("grace", ["-1", "nan", "inf"])
def test_a_grace_that_is_no_time_is_refused(engine: str, grace: str, capsys: pytest.CaptureFixture[str]):
    assert run(["worker", engine, "agents:several", f"--grace={grace}"]) == ExitCode.USAGE
    assert "--grace" in capsys.readouterr().err


def test_a_system_database_that_is_not_there_is_named_without_its_password(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    address = f"127.0.0.1:{free_port()}"
    database = ("--system-database", f"postgresql://ann:secret@{address}/dbos")
    assert run(["worker", "dbos", "agents:several", "--store", f"sqlite:///{folder}/helix.db", *database]) == (
        ExitCode.SERVICE
    )
    told = capfd.readouterr().err
    assert f"DBOS at postgresql://ann:***@{address}/dbos is not answering" in told
    assert "Traceback" not in told
    assert "secret" not in told


GUESTS = '''
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helix_agents import Agent, AgentRegistry, ScriptedModel, ToolContext, tool
from helix_agents.testing import call


@asynccontextmanager
async def open_room(session_id, user_id):
    yield Path()


@tool
def meet(ctx: ToolContext[Any, Path]) -> int:
    """Wait for somebody else who waits."""
    (ctx.deps / f"{ctx.session_id}.here").touch()
    until = time.monotonic() + 30
    while len(list(ctx.deps.glob("*.here"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return len(list(ctx.deps.glob("*.here")))


guest = Agent(name="guest", model=ScriptedModel([call("meet"), "We met."]), tools=[meet])
registry = AgentRegistry([guest])
'''


@pytest.fixture
async def dbos_workers(folder: Path) -> AsyncGenerator[tuple[str, str]]:
    """Two workers on one queue, each with room for one run at a time; the store and the queue."""
    await asyncio.to_thread((folder / "guests.py").write_text, GUESTS)
    store, queue = f"sqlite:///{folder / 'helix.db'}", f"worker-{os.getpid()}"
    place = ["guests:registry", "--prefix", queue, "--max-running", "1", "--store", store, "--deps", "guests:open_room"]
    command = ["-c", "from helix_agents.cli import main; main()", "worker", "dbos", *place]
    workers: list[asyncio.subprocess.Process] = []
    try:
        for name in ("one", "two"):
            started = await asyncio.create_subprocess_exec(
                sys.executable, *command, "--executor-id", name, cwd=folder, stdout=asyncio.subprocess.PIPE
            )
            workers.append(started)
            assert started.stdout is not None
            async with asyncio.timeout(60):
                assert b"Working on queue" in await started.stdout.readline()
        yield store, queue
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert [await worker.wait() for worker in workers] == [-signal.SIGTERM] * 2
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()


async def test_workers_of_a_dbos_queue_share_what_a_process_submits_that_drives_nothing(
    dbos_workers: tuple[str, str],
):
    store, queue = dbos_workers
    guest = Agent(name="guest", model=ScriptedModel(["Never asked here."]))
    async with (
        DBOSAgentExecutor.open(store, agents=[guest], prefix=queue, placement="elsewhere") as helix,
        asyncio.timeout(60),
    ):
        handles = [await helix.execute(guest, "Go", session_id) for session_id in ("ann", "ben")]
        assert [await handle.output() for handle in handles] == ["We met.", "We met."]
        runs = [(await helix.sessions.runs(session_id)).items[0] for session_id in ("ann", "ben")]
    assert len({run.owner for run in runs}) == 2


async def test_what_goes_wrong_in_a_worker_is_told_where_it_runs(folder: Path):
    """A worker is a process of its own, so nobody else sets up its logging."""
    store = f"sqlite:///{folder / 'helix.db'}"
    stuck = Agent(name="nobody_knows_me", model=ScriptedModel(["Never asked here."]))
    async with DBOSAgentExecutor.open(store, agents=[stuck], prefix="told", placement="elsewhere") as helix:
        await helix.execute(stuck, "Hello")
        command = ["-c", "from helix_agents.cli import main; main()", "worker", "dbos", "agents:registry"]
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*command, "--prefix", "told", "--store", store),
            cwd=folder,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert worker.stderr is not None
            async with asyncio.timeout(60):
                said = b""
                while b"run.unknown_agent" not in said:
                    said = await worker.stderr.readline()
                    assert said, "it left without a word"
            assert b"nobody_knows_me" in said
        finally:
            worker.terminate()
            await worker.wait()

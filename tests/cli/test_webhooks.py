"""`helix webhooks`, and the commands that are given webhooks: what is owed is told, shown, and tried again."""

import asyncio
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.request import Request, urlopen

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from helix_agents import Agent, Executor, ScriptedModel, Webhook
from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import HELIX, environment, helix

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SIGNED = {"HELIX_WEBHOOK_SECRET": SECRET}


@pytest.fixture
def hook() -> Iterator[tuple[str, Queue[Any]]]:
    """The address of a receiver that verifies what it gets, and what it got."""
    got: Queue[Any] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.put(Verifier(SECRET).verify(body, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", got
        server.shutdown()


def _leave_untold(folder: Path, url: str) -> None:
    """A turn that ended while its webhook was away."""

    async def leave() -> None:
        agent = Agent(name="greeter", model=ScriptedModel(lambda _: "Hello."))
        # Nobody listens on this port.
        webhook = Webhook("http://127.0.0.1:9/hook", secret=SECRET, name=url.removeprefix("http://"))
        store = f"sqlite:///{folder / 'helix.db'}"
        async with Executor.open(store, agents=[agent], webhooks=[webhook], janitor_seconds=None) as helix:
            await (await helix.execute(agent, "Hi", "s-1")).result()
            await helix.sweep()

    asyncio.run(leave())


def test_what_is_owed_is_listed_tried_again_and_told_by_a_janitor(folder: Path, hook: tuple[str, Queue[Any]]) -> None:
    url, got = hook
    _leave_untold(folder, url)
    heading, row = helix(folder, "webhooks", "list").out.splitlines()
    assert heading.split() == ["DELIVERY", "WEBHOOK", "EVENT", "SESSION", "STATE", "TRIES", "NEXT", "LAST", "ERROR"]
    assert "turn.completed" in row
    assert "owed" in row
    [owed] = helix(folder, "webhooks", "list", "--state", "owed", "--json").json["items"]
    assert (owed["session_id"], owed["attempts"]) == ("s-1", 1)
    again = helix(folder, "webhooks", "retry", owed["delivery_id"])
    assert (again.code, again.out) == (ExitCode.OK, "1 to be tried again.\n")
    swept = helix(folder, "janitor", "--webhook", url, settings=SIGNED)
    assert (swept.code, swept.out) == (ExitCode.OK, "told: 1\n")
    assert got.get(timeout=30)["data"]["sessionId"] == "s-1"
    assert helix(folder, "webhooks", "list", "--state", "owed").out == "None.\n"
    assert helix(folder, "webhooks", "list", "--state", "delivered", "--json").json["total"] == 1


def test_a_janitor_goes_on_with_its_rounds_while_a_webhook_does_not_answer(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        _leave_untold(folder, url)
        [owed] = helix(folder, "webhooks", "list", "--json").json["items"]
        helix(folder, "webhooks", "retry", owed["delivery_id"])
        command = [HELIX, "janitor", "--every", "0.05", "--json", "--webhook", url]
        sweeping = subprocess.Popen(
            command, cwd=folder, env=environment() | SIGNED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert sweeping.stdout is not None
        try:
            connection, _ = silent.accept()
            rounds = [json.loads(sweeping.stdout.readline()) for _ in range(3)]
            assert [each["told"] for each in rounds] == [0, 0, 0]
            assert not _has_left(connection)
        finally:
            sweeping.kill()
            sweeping.communicate()
            connection.close()


def _has_left(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection, behind whatever it sent."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    return True


def test_a_server_tells_the_webhook_that_it_is_given(folder: Path, hook: tuple[str, Queue[Any]]) -> None:
    url, got = hook
    command = [HELIX, "serve", "agents:clerk", "--allow-unauthenticated", "--port", "0", "--json"]
    env = {**environment(), **SIGNED, "HELIX_WEBHOOK": url}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            at = json.loads(serving.stdout.readline())["url"]
            body = json.dumps({"agentType": "clerk", "message": "Hi", "sessionId": "s"}).encode()
            with urlopen(Request(f"{at}/start", body, {"content-type": "application/json"}), timeout=30):
                pass
            told = got.get(timeout=30)
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=30)
    assert told["data"]["sessionId"] == "s"


def test_a_secret_is_made_and_works(folder: Path) -> None:
    made = helix(folder, "webhooks", "secret").out.strip()
    assert Webhook("https://example.com", secret=made).keys != Webhook("https://example.com", secret=SECRET).keys
    assert helix(folder, "webhooks", "secret", "--json").json["secret"] != made


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (["janitor", "--webhook", "https://example.com"], {}, "set HELIX_WEBHOOK_SECRET"),
        (["janitor", "--webhook", "example.com"], SIGNED, "not an http or https address"),
        (["janitor", "--webhook", "https://a.b"], {"HELIX_WEBHOOK_SECRET": "hunter2"}, "`helix webhooks secret` makes"),
        (["webhooks", "retry"], {}, "ids of deliveries, or --given-up"),
        (["webhooks", "retry", "msg_1", "--given-up"], {}, "ids of deliveries, or --given-up"),
        (["webhooks", "retry", "msg_1"], {}, "There is no delivery 'msg_1'"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    office: Path, arguments: list[str], settings: dict[str, str], says: str
) -> None:
    refused = helix(office, *arguments, settings=settings)
    assert refused.code != ExitCode.OK
    assert says in refused.err
    assert "hunter2" not in refused.err
    assert helix(office, "webhooks", "retry", "--given-up").out == "0 to be tried again.\n"

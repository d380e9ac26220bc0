"""`helix serve` as scripts use it: one document that says where, once somebody would be answered there."""

import json
import signal
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import NEEDS_DEPS
from tests.support.command_line import HELIX, environment, helix


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_script_is_told_where_as_soon_as_somebody_is_answered_there(folder: Path, host: str) -> None:
    store = "sqlite:///helix.db"
    command = [HELIX, "serve", "agents:clerk", "--token", "t", "--port", "0", "--store", store, "--json"]
    command += ["--host", host]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            told = json.loads(serving.stdout.readline())
            assert (told["agents"], told["store"]) == (["clerk"], store)
            with urlopen(f"{told['url']}/healthz", timeout=30) as answer:
                assert answer.status == 200
        finally:
            serving.send_signal(signal.SIGTERM)
            out, err = serving.communicate(timeout=30)
    assert (out, err) == ("", "")


def test_tools_get_the_deps_that_are_named(folder: Path) -> None:
    (folder / "bank.py").write_text(NEEDS_DEPS, encoding="utf-8")
    command = [HELIX, "serve", "bank:teller", "--deps", "bank:open_bank", "--allow-unauthenticated", "--port", "0"]
    with subprocess.Popen(
        [*command, "--json"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            url = json.loads(serving.stdout.readline())["url"]
            body = json.dumps({"agentType": "teller", "message": "Hi", "sessionId": "s"}).encode()
            with urlopen(Request(f"{url}/start", body, {"content-type": "application/json"}), timeout=30):
                pass
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=30)
    assert helix(folder, "sessions", "show", "s", "--json").json["session"]["output"] == "5 left."


def test_a_site_that_gave_its_name_the_address_of_this_machine_is_not_let_in(folder: Path) -> None:
    """To the browser, the server is that site, so the page might read every conversation and approve every call."""
    command = [HELIX, "serve", "agents:clerk", "--allow-unauthenticated", "--port", "0", "--store", "memory://"]
    command += ["--json", "--cors-origin", "https://page.example"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            url = json.loads(serving.stdout.readline())["url"]

            def told(host: str) -> tuple[int, bool]:
                try:
                    with urlopen(Request(f"{url}/sessions", headers={"host": host}), timeout=30) as answer:
                        return answer.status, False
                except HTTPError as refused:
                    return refused.code, b"--cors-origin" in refused.read()

            for host in ("localhost:1", "127.0.0.1", "127.1.2.3:80", "[::1]:80", "me.localhost", "page.example:8700"):
                assert told(host) == (200, False), host
            for host in ("evil.example", "evil.example:8700", "127.0.0.1.evil.example", "localhost.evil", "[::"):
                assert told(host) == (403, True), host
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=30)


@pytest.mark.parametrize(
    "option", ["--lease=0", "--lease=-1", "--lease=0.0001", "--janitor=-1", "--grace=-1", "--lease=nan", "--lease=inf"]
)
def test_a_time_that_is_none_is_refused(folder: Path, option: str) -> None:
    command = [HELIX, "serve", "agents:clerk", "--allow-unauthenticated", "--port", "0", "--store", "memory://", option]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            out, err = serving.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            serving.kill()
            raise
    assert (out, serving.returncode in (2, 4)) == ("", True)
    assert "lease_ms" in err or option.partition("=")[0] in err
    assert "Traceback" not in err

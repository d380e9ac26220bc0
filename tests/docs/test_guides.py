"""The programs of guides that need a server beside them, run as the guide says, with a server of the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from helix_agents.testing.service_process import ServiceProcess, free_port, tied_to_us
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.docs.pages import DOCS, Block, blocks

MY_AGENTS = """
from helix_agents import Agent, Principal, ScriptedModel, bearer_tokens

agents = [Agent(name="guide", model=ScriptedModel(["Hello."]))]
authenticate = bearer_tokens({"let-me-in": Principal(user_id="ann")})
"""


def read(guide: str) -> tuple[Block, list[str]]:
    """The program of a guide, and what it prints."""
    found = list(blocks(DOCS / "guides" / f"{guide}.md"))
    [program] = [block for block in found if block.title == "app.py"]
    return program, [block.code for block in found if block.language == "text"]


def test_an_instance_behind_a_load_balancer(tmp_path: Path) -> None:
    instance = ServiceProcess("deployed")
    program, _ = read("deploy-behind-a-load-balancer")
    (tmp_path / "app.py").write_text(program.code, encoding="utf-8")
    (tmp_path / "my_agents.py").write_text(MY_AGENTS, encoding="utf-8")
    port = free_port()
    serve = f"cd {tmp_path} && HELIX_STORE=sqlite:///helix.db exec {sys.executable} -m uvicorn app:server --port {port}"
    instance.start(tied_to_us(["bash", "-c", serve]), lambda: "Uvicorn running" in instance.told())
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as ready:
            assert ready.status == 200
        listed = Request(f"http://127.0.0.1:{port}/sessions", headers={"authorization": "Bearer let-me-in"})
        with urlopen(listed, timeout=30) as answer:
            assert answer.status == 200
    finally:
        instance.end(signal.SIGTERM)
        instance.remove()


def test_the_program_with_an_mcp_server(tmp_path: Path) -> None:
    found = list(blocks(DOCS / "guides" / "use-mcp-servers.md"))
    for block in found:
        if block.title is not None:
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
    [commands] = [block.code for block in found if block.language == "sh"]
    [said] = [block.code for block in found if block.language == "text"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"\n{said}"), done.stdout


def test_the_program_on_temporal(tmp_path: Path, temporal_address: str) -> None:
    program, [said] = read("run-on-temporal")
    assert "127.0.0.1:7233" in program.code
    queue = f'address="{temporal_address}", task_queue="guide-{os.getpid()}", prefix="guide-{os.getpid()}"'
    (tmp_path / "app.py").write_text(program.code.replace('address="127.0.0.1:7233"', queue), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_the_program_that_calls_agents_over_http(tmp_path: Path) -> None:
    found = list(blocks(DOCS / "guides" / "call-agents-over-http.md"))
    programs = {block.title: block.code for block in found if block.title is not None}
    [said] = [block.code for block in found if block.language == "text"]
    serving, asking = [block.code for block in found if block.language == "sh"]
    port = free_port()
    for name, code in programs.items():
        (tmp_path / name).write_text(code.replace(":8700", f":{port}"), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}
    instance = ServiceProcess("called")
    serve = f"cd {tmp_path} && export PATH={path} && exec {serving.strip()} --port {port} --store sqlite:///helix.db"
    instance.start(tied_to_us(["bash", "-c", serve]), lambda: "Serving on" in instance.told())
    try:
        told = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (told.stdout, told.stderr) == (said, "")
        asked = subprocess.run(
            ["bash", "-ec", asking.replace(":8700", f":{port}")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert '"status":"completed","output":"Tides come twice a day."' in asked.stdout
    finally:
        instance.end(signal.SIGTERM)
        instance.remove()

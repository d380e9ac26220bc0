"""A session's workspace over HTTP: what is in it, for whoever may see the session."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

from helix_agents import Agent, AgentServer, Executor, LocalWorkspaces, Principal, ScriptedModel, Workspace
from helix_agents.server.auth import bearer_tokens
from helix_agents.testing import call, reply

TOKENS = {"a": Principal(user_id="ann"), "b": Principal(user_id="bob")}
WRITES = [call("workspace_write_file", {"path": path, "content": "x"}) for path in ("a.txt", "d/b.txt")]


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[TestClient]:
    workspace = Workspace(LocalWorkspaces(tmp_path / "work"), capabilities=["fs", "snapshot"])
    clerk = Agent(name="clerk", model=ScriptedModel(["Hello.", reply(calls=WRITES), "Done."]), workspace=workspace)
    server = AgentServer(Executor.open("memory://", agents=[clerk]), authenticate=bearer_tokens(TOKENS))
    with TestClient(server, headers={"authorization": "Bearer a"}) as client:
        yield client


def turn(client: TestClient, path: str, **body: object) -> None:
    assert client.post(path, json=body).status_code == 200
    assert client.get("/sse", params={"sessionId": "s"}).text.rstrip().endswith("}")


def look(client: TestClient, **query: str) -> httpx2.Response:
    return client.get("/workspace", params={"sessionId": "s", **query})  # pyright: ignore[reportReturnType]


def test_a_workspace_is_listed_for_whoever_may_see_the_session(ann: TestClient, tmp_path: Path) -> None:
    turn(ann, "/start", sessionId="s", agentType="clerk", message="Hi")
    about = {"sessionId": "s", "providerId": "local", "capabilities": ["fs", "snapshot"]}
    assert look(ann).json() == {**about, "opened": False, "path": "", "entries": [], "hasMore": False}
    turn(ann, "/chat", id="s", message={"role": "user", "id": "m-2", "parts": [{"type": "text", "text": "Write"}]})
    listed = look(ann).json()
    assert listed["opened"] is True
    assert listed["entries"] == [
        {"path": "a.txt", "kind": "file", "size": 1},
        {"path": "d", "kind": "folder", "size": 0},
    ]
    assert [each["path"] for each in look(ann, path="d").json()["entries"]] == ["d/b.txt"]
    for odd in ("nothing", "../..", "/etc"):
        refused = look(ann, path=odd)
        assert (refused.status_code, refused.json()["code"]) == (404, "workspace_file")
    bob = ann.get("/workspace", params={"sessionId": "s"}, headers={"authorization": "Bearer b"})
    assert (bob.status_code, bob.json()["code"]) == (404, "session_not_found")
    [folder] = (tmp_path / "work").iterdir()
    folder.rename(tmp_path / "elsewhere")
    gone = look(ann)
    assert (gone.status_code, gone.json()["code"], str(tmp_path) in gone.text) == (503, "workspace_failed", False)

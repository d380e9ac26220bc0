"""A folder with agents in it, and a store that somebody worked with."""

import asyncio
import shutil
from pathlib import Path

import pytest

from helix_agents import Executor
from helix_agents.domain.commits import StartRun
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import open_backend
from tests.cli.sample_agents import clerk, several

WAITS, TALKED = "waits", "talked"


# A module of agents whose tools take deps, with what opens them.
NEEDS_DEPS = """
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from helix_agents import Agent, ScriptedModel, ToolContext, ask_human, tool
from helix_agents.testing import call

@dataclass
class Bank:
    left: int

@asynccontextmanager
async def open_bank(session_id, user_id):
    yield Bank(left=5)

@tool(finish_with=True)
async def balance(ctx: ToolContext[Any, Bank]) -> str:
    \"\"\"What is left.\"\"\"
    return f"{ctx.deps.left} left."

@tool
async def free(ctx: ToolContext[Any, Any], more: int | None) -> int:
    \"\"\"What needs nothing.\"\"\"
    return 6

@tool
async def unsure(ctx: ToolContext[Any, Bank | None]) -> int:
    \"\"\"What does without.\"\"\"
    return 7

teller = Agent(name="teller", description="Counts.", model=ScriptedModel([call("balance")]), tools=[balance])
unsettled = Agent(
    name="unsettled", model=ScriptedModel([call("ask_human", {"question": "Sure?"}), "5"]), tools=[balance, ask_human()]
)
boss = Agent(name="boss", model=ScriptedModel(["5"]), tools=[teller.as_tool()])
content = Agent(name="content", model=ScriptedModel(["5"]), tools=[free, unsure])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user is: the module `agents` lies there."""
    shutil.copy(Path(__file__).with_name("sample_agents.py"), tmp_path / "agents.py")
    return tmp_path


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two sessions, made once: one waits for an approval, one has talked for two turns."""
    folder = tmp_path_factory.mktemp("office")

    async def work() -> None:
        url = f"sqlite:///{folder / 'helix.db'}"
        async with Executor.open(url, agents=several, janitor_seconds=None) as helix:
            await (await helix.execute(clerk, "Write to Ann", WAITS, user_id="ann", tags=["urgent"])).result()
            for message in ("Write to Ann", "Never mind"):
                await (await helix.execute(clerk, message, TALKED)).result()

    asyncio.run(work())
    return folder


@pytest.fixture
def office(folder: Path, furnished: Path) -> Path:
    """The folder with a copy of that store."""
    shutil.copytree(furnished, folder, dirs_exist_ok=True)
    return folder


def begin_elsewhere(folder: Path, lease_ms: int) -> None:
    """A run of a process that has said nothing since."""

    async def begin() -> None:
        async with await open_backend(f"sqlite:///{folder / 'helix.db'}") as backend:
            await backend.state.renew_lease("another process", lease_ms)
            create = CreateSession(agent_type="clerk")
            start = StartRun(session_id="s-1", run_id="r-1", create=create, owner="another process")
            await backend.state.start_run(start)

    asyncio.run(begin())

"""What a turn costs a store that has the streams, too: its start, and one write for each step."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, Budget, ScriptedModel, Webhook, tool
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import call
from helix_agents.testing.contracts.executor.stage import SESSION, completed
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.contracts.stream_handles import NEVER
from helix_agents.testing.scenes import commit, queued, said, start
from helix_agents.testing.seams import CountingSeam


@tool
async def look() -> str:
    """Look something up."""
    return "found"


def _script(request: Any) -> Any:
    return call("look", id=f"look-{request.run_id}") if request.step == 1 else "Done."


class Writes:
    """Writes as each backend names them; what others write from time to time is left out."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.seen: list[str] = []

    def __call__(self, statement: str, /) -> None:
        match self._backend:
            case "sqlite":
                is_write = statement == "COMMIT" and threading.current_thread().name.startswith("helix-write")
            case "postgres":
                is_write = (
                    re.match(r"\s*(INSERT|UPDATE|DELETE|SELECT (\* FROM )?__agents_\w+\()", statement) is not None
                )
            case "redis":
                # Where something lies, and what the index has to look at: neither is of the session.
                is_write = re.match(r"atomic (?!place$|mark$|read )", statement) is not None
            case _:
                is_write = True
        if is_write and "lease" not in statement:
            self.seen.append(statement)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    match request.param:
        case "memory":
            return "memory", "memory://"
        case "sqlite":
            return "sqlite", f"sqlite:///{tmp_path}/helix.db"
        case name:
            return name, request.getfixturevalue(f"{name}_service").new_url()


@pytest.mark.parametrize(
    "extra",
    [{}, {"budget": Budget(tokens=10_000)}, {"webhooks": [Webhook("http://127.0.0.1:9/hook", secret=SECRET)]}],
    ids=["without", "with-a-budget", "with-a-webhook"],
)
async def test_a_turn_writes_once_for_its_start_and_once_for_each_step(
    store: tuple[str, str], extra: dict[str, Any]
) -> None:
    backend, url = store
    writes = Writes(backend)
    agent = Agent(name="looker", model=ScriptedModel(_script), tools=[look], budget=extra.get("budget"))
    told = extra.get("webhooks", ())
    async with (
        await open_backend(url, seam=writes, flush=NEVER) as parts,
        Executor(
            state=parts.state, streams=parts.streams, usage=parts.usage, janitor_seconds=None, webhooks=told, grace=0.0
        ) as helix,
    ):
        await asyncio.sleep(0.05)
        for _ in range(2):
            writes.seen.clear()
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
            info = await parts.streams.get_stream_info(SESSION)
            assert info is not None
            assert info.status == "ended"
            shown = [" ".join(each.split())[:40] for each in writes.seen]
            assert len(shown) == 3, shown


async def test_a_step_that_might_take_messages_in_and_finds_none_costs_no_statement_more(
    store: tuple[str, str],
) -> None:
    seam = CountingSeam()
    async with await open_backend(store[1], seam=seam) as backend:
        state = backend.state
        await start(state)
        # A turn that waits for the end of this one is not looked at either.
        await state.queue_turn(queued("r-2"))
        counts: list[int] = []
        for step in range(1, 7):
            seam.reset()
            await commit(state, step, messages=[said("Step")], takes_messages=step > 3)
            counts.append(seam.count)
        assert counts[1:3] == counts[3:5] == counts[4:6], counts
        await state.queue_turn(queued("r-3", steers=True))
        await commit(state, 7, takes_messages=True)
        assert [turn.run_id for turn in await state.list_queued(SESSION)] == ["r-2"]

"""An answer that comes after a child has suspended and before its ancestors have is used, whenever exactly it comes."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.pending import AnswerAccepted, ApprovalAnswer, PendingFilter
from helix_agents.domain.results import Completed, Suspended
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.contracts.executor.family import agent, delegate, worker
from helix_agents.testing.seams import HoldingSeam
from tests.recovery.test_crash_matrix import url_in

SESSION = "s-1"
PATIENCE = 20.0
# A statement may be held inside a transaction; then the answer waits for the file, and is let in by the release.
HELD_SECONDS = 0.02


class AfterTheChildSuspended(HoldingSeam):
    """Holds the n-th statement of a thread, counted from the commit that let a call wait."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after
        self._asked = False
        self.is_suspended = False
        self.statement = ""

    def __call__(self, statement: str, /) -> Awaitable[None] | None:
        if threading.current_thread() is threading.main_thread():
            # A look-up on the event loop itself: nobody else gets to do anything meanwhile.
            return None
        if not self.is_suspended:
            self._asked = self._asked or "INSERT INTO __agents_pending_calls" in statement
            self.is_suspended = self._asked and statement == "COMMIT"
            if not self.is_suspended:
                return None
            self.arm(after=self._after)
        if not self.has_held:
            self.statement = statement
        return super().__call__(statement)


def boss() -> AnyAgent:
    """Three levels: only the one at the bottom waits, and the other two with it."""
    middle = agent("middle", delegate("worker", id="call_0"), "Passed on.", tools=[worker().as_tool()])
    return agent("boss", delegate("middle", id="call_0"), "Fine.", tools=[middle.as_tool()])


def executor_on(backend: Backend) -> Executor:
    return Executor(state=backend.state, streams=backend.streams, usage=backend.usage, janitor_seconds=None)


async def answer(folder: Path) -> AnswerAccepted:
    """Answer whatever waits, as another process would."""
    async with await open_backend(url_in(folder)) as other, executor_on(other) as helix:
        (waiting,) = (await helix.list_pending(PendingFilter(root_session_id=SESSION))).items
        outcome = await helix.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
        assert isinstance(outcome, AnswerAccepted)
        return outcome


async def answered_after(folder: Path, statements: int) -> tuple[bool, int]:
    """Answer while the n-th statement after the child's suspension is held; the tree must come to its end.

    Says whether there was such a statement, and how many runs the root needed.
    """
    seam = AfterTheChildSuspended(statements)
    async with await open_backend(url_in(folder), seam=seam) as backend, executor_on(backend) as helix:
        handle = await helix.execute(boss(), "Go", SESSION)
        held = asyncio.create_task(seam.wait_until_held())
        ending = asyncio.create_task(handle.result())
        await asyncio.wait((held, ending), return_when=asyncio.FIRST_COMPLETED)
        answering = asyncio.create_task(answer(folder))
        await asyncio.wait((answering,), timeout=None if seam.statement == "COMMIT" else HELD_SECONDS)
        seam.release()
        await held
        accepted, result = await answering, await ending
        if isinstance(result, Suspended):
            # Whoever answered was told that somebody has to go on, and nobody has.
            assert accepted.next == "resume"
            result = await (await helix.resume(boss(), SESSION)).result()
        assert isinstance(result, Completed), result
        runs = (await helix.sessions.runs(SESSION)).items
        assert (await helix.list_pending(PendingFilter(root_session_id=SESSION))).items == ()
        return seam.has_held, len(runs)


async def test_an_answer_between_the_suspensions_of_child_and_root_is_never_lost(tmp_path: Path):
    needed: list[int] = []
    statements = 0
    while True:
        statements += 1
        folder = tmp_path / str(statements)
        folder.mkdir()
        async with asyncio.timeout(PATIENCE):
            held, runs = await answered_after(folder, statements)
        if not held:
            break
        needed.append(runs)
    # Right after the child's commit the answer is in before the root suspends, and its run goes on; once the root has
    # suspended, it needs a resume.
    assert statements > 10
    assert (needed[0], needed[-1]) == (1, 2)

"""What the processes of the family's proofs do: give one answer each, and die before they can leave."""

from helix_agents.domain.results import Completed, Suspended
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.contracts.executor.family import answer_to, lead
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, die

MODULE = __name__

ORDERS = [
    # Who waits for which tool: the planner for its client, its worker and its parent's worker for consent.
    ["planner locate", "worker of planner", "worker of lead"],
    ["worker of planner", "worker of lead", "planner locate"],
    ["worker of lead", "planner locate", "worker of planner"],
]


async def answer_one(job: Job, url: str, session_id: str, order: list[str], life: int) -> None:
    """Begin the conversation, or give the answer of this life and go on as far as that reaches; then die."""
    agent = lead()
    async with await open_backend(url, clock=LaterClock(life)) as backend:
        parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        async with Executor(**parts, agents=[agent], janitor_seconds=None) as helix:
            await helix.recover()
            handle = await helix.get_handle(agent, session_id) or await helix.execute(agent, "Go", session_id)
            result = await handle.result()
            if life > 0:
                assert isinstance(result, Suspended), result
                for waiting in result.pending:
                    owner = await backend.state.load_state(waiting.session_id)
                    above = await backend.state.load_state(owner.parent_session_id or session_id)
                    is_worker = owner.agent_type == "worker"
                    name = f"worker of {above.agent_type}" if is_worker else f"{owner.agent_type} {waiting.tool_name}"
                    if name == order[life - 1]:
                        await helix.submit_tool_result(session_id, waiting.tool_call_id, answer_to(waiting))
                result = await (await helix.resume(agent, session_id)).result()
            assert isinstance(result, Completed if life == len(order) else Suspended), result
            die()


async def run_smoothly(job: Job, url: str) -> None:
    """The same conversation without anybody who has to be asked."""
    agent = lead(pauses=False)
    async with await open_backend(url) as backend:
        parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        async with Executor(**parts, janitor_seconds=None) as helix:
            assert await (await helix.execute(agent, "Go", "smooth")).output() == "All done."

"""What processes do with webhooks: some die between a commit and the message about it, others tell."""

import asyncio
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.tools import tool
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor.webhook_posts import Posts
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, die

MODULE = __name__

SESSIONS = tuple(f"s-{number}" for number in range(12))


@tool(require_approval=True)
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


CLERK = Agent(
    name="clerk", model=ScriptedModel(lambda request: call("pay", {"amount": 5}) if request.step == 1 else "Paid."),
    tools=[pay],
)  # fmt: skip


async def wait_and_die(job: Job, url: str, hook: str) -> None:
    """Come to wait for a person, and die after the commit, before anybody was told."""
    async with await open_backend(url) as parts, _executor(parts, hook) as helix:
        handle = await helix.execute(CLERK, "Pay", "s-1")
        await handle.result()
        die()


async def send_and_die(job: Job, url: str, hook: str) -> None:
    """Tell the receiver what waits, and die before that is recorded."""
    send = Posts.send

    async def instead(self: Posts, *args: Any) -> Any:
        await send(self, *args)
        die()

    Posts.send = instead  # pyright: ignore[reportAttributeAccessIssue]
    async with await open_backend(url) as parts, _executor(parts, hook) as helix:
        await helix.sweep()


async def tell_and_die_before(job: Job, url: str, hook: str) -> None:
    """Claim what is owed, and die before it is sent."""

    async def instead(self: Posts, *args: Any) -> Any:
        die()

    Posts.send = instead  # pyright: ignore[reportAttributeAccessIssue]
    async with await open_backend(url) as parts, _executor(parts, hook) as helix:
        await helix.sweep()


async def tell_later(job: Job, url: str, hook: str) -> int:
    """Tell whatever is owed, when every lease of an earlier life has run out."""
    async with await open_backend(url, clock=LaterClock(1)) as parts, _executor(parts, hook) as helix:
        return (await helix.sweep()).told


async def wait_and_tell(job: Job, url: str, hook: str, first: int) -> None:
    """Start some of the sessions, and tell with others until nothing is owed."""
    async with (
        await open_backend(url) as parts,
        _executor(parts, hook, janitor_seconds=0.1) as helix,
        asyncio.timeout(60),
    ):
        for name in SESSIONS[first::2]:
            await (await helix.execute(CLERK, "Pay", name)).result()
        while (await helix.webhooks.list(states=["delivered"])).total < len(SESSIONS):  # noqa: ASYNC110  # what another process does sets no event here
            await asyncio.sleep(0.02)


def _executor(parts: Any, hook: str, janitor_seconds: float | None = None) -> Executor:
    return Executor(
        state=parts.state,
        streams=parts.streams,
        usage=parts.usage,
        agents=[CLERK],
        webhooks=[Webhook(hook, secret=SECRET, name="hook")],
        janitor_seconds=janitor_seconds,
    )

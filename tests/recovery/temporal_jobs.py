"""What the workers of the Temporal crash tests do: hold the reference conversation, and die at a given moment."""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.temporal.executor import TemporalAgentExecutor
from helix_agents.runtimes.temporal.options import TemporalOptions
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, conversation_of, die, webhooks_at
from tests.recovery.reference_conversation import Traces, dependencies

MODULE = __name__

QUICK = TemporalOptions(heartbeat_seconds=1.0, task_seconds=1.0, sticky_seconds=1.0)


class DyingEffects:
    """Does effects until the n-th of a kind has come, or is done; then the process is no more."""

    def __init__(self, effects: Any, kind: str | None, number: int | None, side: str) -> None:
        self._effects = effects
        self._death = (kind, number, side)
        self.seen: Counter[str] = Counter()

    async def perform(self, effect: str, *given: Any) -> Any:
        self.seen[effect] += 1
        number = self.seen[effect]
        if self._death == (effect, number, "before"):
            die()
        answer = await self._effects.perform(effect, *given)
        if self._death == (effect, number, "after"):
            die()
        return answer


async def converse(
    job: Job,
    url: str,
    traces: str,
    address: str,
    queue: str,
    life: int,
    kind: str | None = None,
    number: int | None = None,
    deed: int | None = None,
    side: Literal["before", "after"] = "before",
    story: str = "tests.recovery.reference_conversation",
    hook: str | None = None,
) -> Any:
    """Go on with a conversation as client and worker, or die before or after an effect or a deed. A `hook` is told of
    all ends."""
    told = conversation_of(story)
    deeds = 0

    def reached(number: int, at: str) -> None:
        nonlocal deeds
        deeds = max(deeds, number)
        if (number, at) == (deed, side):
            die()

    async with await open_backend(url, clock=LaterClock(life)) as backend:
        helix: Any = TemporalAgentExecutor(
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            agents=told.agents,
            deps=dependencies(Traces(Path(traces), reached=reached)),
            webhooks=webhooks_at(hook),
            janitor_seconds=None,
            address=address,
            task_queue=queue,
            prefix=queue,
            temporal=QUICK,
        )
        async with helix:
            bodies: Any = vars(helix._runtime)["_bodies"]
            bodies._effects = dying = DyingEffects(bodies._effects, kind, number, side)
            await told.go_on(helix)
            await helix.sweep() if hook is not None else None
        return {"effects": dict(dying.seen), "deeds": deeds}

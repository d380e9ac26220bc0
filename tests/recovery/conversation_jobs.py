"""What the processes of the crash matrix do: hold the reference conversation, and die at a given moment."""

import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from helix_agents.ports.backend import open_backend
from helix_agents.ports.clock import Clock
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.system import SystemClock
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.recording import EffectKind, Recorder, RecordingExecutor, StopAt
from helix_agents.testing.seams import CountingSeam, KillingSeam
from helix_agents.testing.workers import Job
from tests.recovery.lives import Conversation
from tests.recovery.reference_conversation import Traces, dependencies

MODULE = __name__

LONGER_THAN_ANY_LEASE_MS = 3_600_000


class LaterClock(Clock):
    """The machine's clock, some hours on: to whoever reads it, every lease of an earlier life has run out."""

    def __init__(self, lives: int) -> None:
        self._clock = SystemClock()
        self._ahead = lives * LONGER_THAN_ANY_LEASE_MS

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead


def freeze() -> None:
    """Stand still until somebody wakes this process. Not in the middle of a write, which its thread ends meanwhile: for
    the lock that it has on a file others could only wait."""
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def webhooks_at(hook: str | None) -> list[Webhook]:
    """What an executor is given that tells somebody at this address, if anybody is there."""
    return [] if hook is None else [Webhook(hook, secret=SECRET, name="hook")]


def conversation_of(story: str) -> Conversation:
    """A conversation by the module that tells it, and its name there if the module tells several."""
    module, _, name = story.partition(":")
    told = import_module(module)
    if name:
        return getattr(told, name)
    return Conversation(agents=told.AGENTS, go_on=told.go_on, check_end=told.check_end)


async def converse(
    job: Job,
    url: str,
    traces: str,
    life: int,
    effect: int | None = None,
    kind: EffectKind | None = None,
    deed: int | None = None,
    statement: int | None = None,
    side: Literal["before", "after"] = "before",
    story: str = "tests.recovery.reference_conversation",
    hook: str | None = None,
) -> Any:
    """Go on with a conversation, or die before or after an effect, one of a kind, a deed, or a statement. If there is a
    `hook`, it is told of all ends, and nothing is owed to it in the end.

    Answers what there was to die at: the kinds of the effects, how many deeds and how many statements.
    """
    told = conversation_of(story)
    deeds = 0

    def reached(number: int, at: Literal["before", "after"]) -> None:
        nonlocal deeds
        deeds = max(deeds, number)
        if (number, at) == (deed, side):
            die()

    counting = CountingSeam()
    killing = KillingSeam()

    def seam(text: str, /) -> None:
        counting(text)
        killing(text)

    recorder = Recorder(StopAt(effect=effect, side=side, kind=kind) if effect is not None else None, on_stop=die)
    async with await open_backend(url, seam=seam, clock=LaterClock(life)) as backend:
        helix = RecordingExecutor(
            recorder=recorder,
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            agents=told.agents,
            deps=dependencies(Traces(Path(traces), reached=reached)),
            webhooks=webhooks_at(hook),
            janitor_seconds=None,
        )
        counting.reset()
        if statement is not None:
            killing.arm(after=statement)
        async with helix:
            await told.go_on(helix)
            await helix.sweep() if hook is not None else None
        return {"effects": recorder.kinds, "deeds": deeds, "statements": counting.count}

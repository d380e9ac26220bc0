"""What an executor needs from a runtime: submit a run, inspect a run, and start and leave in good order."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Liveness, Services
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import Begun
from helix_agents.ports.llm import LLMAdapter

T = TypeVar("T")


class Runtime(Protocol):
    """Where runs are driven. The start of a run is committed before the run is submitted, so a crash between the two
    leaves a run that was never submitted; `inspect` reports it missing, and it is submitted again.

    The executor sets `services` before it calls anything else.
    """

    services: Services

    @property
    def owner(self) -> str | None:
        """Whose lease the runs started here carry; None if the engine itself watches over its workflows."""
        ...

    @property
    def leaving(self) -> bool:
        """Whether nothing new is started here any more."""
        ...

    @property
    def works(self) -> bool:
        """Whether runs are also driven in this process, which therefore needs their models."""
        ...

    @property
    def opens_deps(self) -> bool:
        """Whether tools of runs driven for this process get deps; if not, it takes up nothing that needs them."""
        ...

    def check_loop(self) -> None:
        """Reject a caller in whose event loop nothing can be started here.

        Raises:
            OtherEventLoopError: it is not the event loop of this runtime.
        """
        ...

    def name_workflow(self, agent_type: str, session_id: SessionId, turn: int) -> str | None:
        """The name by which the engine knows a turn; None if there is no engine."""
        ...

    def drives(self, run: RunRecord) -> bool:
        """Whether runs like this one are for this runtime to recover."""
        ...

    async def submit(
        self,
        run: RunRecord,
        *,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Have a run driven; idempotent. `hooks` and `model` belong to one call and live in this process, and so does
        `begun`, the state that was just committed, for a driver here that starts at once."""
        ...

    async def inspect(self, run: RunRecord) -> Liveness:
        """Whether a process or engine drives a running run."""
        ...

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        """The driver of a run, if it is driven here."""
        ...

    def drive_detached(self, run: RunRecord) -> None:
        """Have a detached companion driven; idempotent, and does not wait."""
        ...

    async def drive_child(
        self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal, /
    ) -> RunEnd:
        """Drive a child inside its parent's call."""
        ...

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do work beside the runs, until it is done or the process leaves."""
        ...

    async def tidy(self) -> int:
        """Remove what the engine still keeps of turns that ended long ago, and return how many. Works only once in a
        while, however often it is called."""
        ...

    async def start(self) -> None:
        """Get ready for runs."""
        ...

    async def idle(self) -> None:
        """Wait until nothing is driven here."""
        ...

    async def leave(self, grace: float) -> None:
        """Let running steps commit for `grace` seconds; runs stop at their next step."""
        ...

    async def let_go(self) -> None:
        """Drop whatever is still running; nothing that was committed is lost."""
        ...

"""What an executor needs from a runtime: submit a run, inspect a run, and come and go in good order."""

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
    """Where runs are driven. The start of a run is committed before it is submitted, so a crash between the two leaves
    a run that nobody was told of; `inspect` finds it missing, and it is submitted again.

    The executor sets `services` before anything is asked.
    """

    services: Services

    @property
    def owner(self) -> str | None:
        """Whose lease the runs begun here carry; None where the engine itself watches over its workflows."""
        ...

    @property
    def leaving(self) -> bool:
        """Whether nothing new is begun here any more."""
        ...

    @property
    def works(self) -> bool:
        """Whether runs are driven in this process too, which therefore needs their models."""
        ...

    @property
    def opens_deps(self) -> bool:
        """Whether tools of what is driven for this process may have deps; else it takes up nothing that needs them."""
        ...

    def check_loop(self) -> None:
        """Refuse a caller in whose event loop nothing can be begun here.

        Raises:
            OtherEventLoopError: it is another one than that of this runtime.
        """
        ...

    def name_workflow(self, agent_type: str, session_id: SessionId, turn: int) -> str | None:
        """Under which name the engine knows a turn; None where there is no engine."""
        ...

    def drives(self, run: RunRecord) -> bool:
        """Whether runs like this one are this runtime's to recover."""
        ...

    async def submit(
        self,
        run: RunRecord,
        *,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Have a run driven; idempotent. `hooks` and `model` are those of one call and live in this process, and so is
        what it has `begun`, for whoever drives it here at once."""
        ...

    async def inspect(self, run: RunRecord) -> Liveness:
        """Whether somebody is behind a run that is going."""
        ...

    def find(self, run_id: RunId) -> asyncio.Task[RunEnd] | None:
        """The driver of a run, if it is driven here."""
        ...

    def drive_detached(self, run: RunRecord) -> None:
        """Have a companion driven that stands on its own; idempotent, and does not wait."""
        ...

    async def drive_child(
        self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal, /
    ) -> RunEnd:
        """Drive a child inside its parent's call."""
        ...

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something beside the runs, until it is done or the process leaves."""
        ...

    async def tidy(self) -> int:
        """Let go of what the engine still keeps of turns that ended long ago; answers of how many. Once in a while,
        however often this is asked for."""
        ...

    async def start(self) -> None:
        """Be ready for runs."""
        ...

    async def idle(self) -> None:
        """Wait until nothing is driven here."""
        ...

    async def leave(self, grace: float) -> None:
        """Let running steps commit for `grace` seconds; runs stop at their next step."""
        ...

    async def let_go(self) -> None:
        """Drop whatever still runs; nothing that was committed is lost."""
        ...

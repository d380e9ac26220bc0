"""How a run ended, as its caller sees it: four records to match on."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from helix_agents.domain.ids import RunId, SessionId, StepId, ToolCallId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.runs import SuspensionKind
from helix_agents.domain.sessions import ChildWait

OutputT_co = TypeVar("OutputT_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed(Generic[OutputT_co]):
    """The agent is done, and this is its output.

    `reason` is `finished`; `length` or `content_filter` if the output is a text that the provider cut off; or else the
    reason that `stop_when` gave.
    """

    output: OutputT_co
    session_id: SessionId
    run_id: RunId
    reason: str = "finished"
    status: Literal["completed"] = "completed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspended:
    """The run ended because it waits for answers. Answer what is pending, then resume, in any process."""

    kind: SuspensionKind
    session_id: SessionId
    run_id: RunId
    step_id: StepId
    pending: tuple[PendingCall, ...] = ()
    children: tuple[ChildWait, ...] = ()

    @property
    def status(self) -> SuspensionKind:
        return self.kind

    @property
    def tool_call_ids(self) -> tuple[ToolCallId, ...]:
        return tuple(call.tool_call_id for call in self.pending)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted:
    """The run was stopped. What it did is kept, and `resume` continues from there."""

    session_id: SessionId
    run_id: RunId
    reason: str | None = None
    status: Literal["interrupted"] = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The run could not continue. `code` is stable; `retry` continues from the last commit where that makes sense."""

    session_id: SessionId
    run_id: RunId
    code: str
    error: str
    retryable: bool = False
    status: Literal["failed"] = "failed"


RunResult: TypeAlias = Completed[OutputT_co] | Suspended | Interrupted | Failed

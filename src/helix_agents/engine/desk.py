"""Where a reply and results rest between their effect and the step's commit."""

from typing import Protocol

from helix_agents.domain.entries import Change
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites
from helix_agents.engine.effects import PlannedCall


class RestingReply(Record):
    """A model's reply as planned: what the loop is told of it, and what only the bodies see."""

    message: AssistantMessage
    calls: tuple[PlannedCall, ...] = ()
    rejections: dict[ToolCallId, ToolMessage] = {}
    previews: dict[ToolCallId, JSON] = {}
    output: JSON = None
    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()


class RestingResult(Record):
    """What one call came to.

    `told` says whether `after_tool` is due, which it is not for a call that was denied or given up. `consumes` says
    that an answer of somebody went into it, `once` that the ledger knows it. A tool that finishes carries the run's
    `output`. `entries` and `audit` are what state capabilities leave for the commit.
    """

    message: ToolMessage
    writes: StepWrites = NO_WRITES
    entries: tuple[Change, ...] = ()
    audit: tuple[dict[str, JSON], ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    input: dict[str, JSON] = {}
    duration_ms: int = 0
    told: bool = True
    consumes: bool = False
    once: bool = False
    finishes: bool = False
    output: JSON = None
    fail_run: str | None = None
    child: SubSessionRefUpdate | None = None


class Desk(Protocol):
    """Holds the work of the step in hand. In one process a dictionary, on durable engines rows of the store."""

    async def put_reply(self, step: int, reply: RestingReply) -> None: ...

    async def find_reply(self, step: int) -> RestingReply | None: ...

    async def put_result(self, step: int, tool_call_id: ToolCallId, result: RestingResult) -> None: ...

    async def results(self, step: int) -> dict[ToolCallId, RestingResult]: ...

    def clear(self) -> None:
        """The step was committed."""
        ...


class MemoryDesk:
    """The desk of a process that keeps its run in hand from the reply to the commit."""

    def __init__(self) -> None:
        self._replies: dict[int, RestingReply] = {}
        self._results: dict[int, dict[ToolCallId, RestingResult]] = {}

    async def put_reply(self, step: int, reply: RestingReply) -> None:
        self._replies[step] = reply

    async def find_reply(self, step: int) -> RestingReply | None:
        return self._replies.get(step)

    async def put_result(self, step: int, tool_call_id: ToolCallId, result: RestingResult) -> None:
        self._results.setdefault(step, {})[tool_call_id] = result

    async def results(self, step: int) -> dict[ToolCallId, RestingResult]:
        return self._results.get(step, {})

    def clear(self) -> None:
        self._replies.clear()
        self._results.clear()


_: type[Desk] = MemoryDesk

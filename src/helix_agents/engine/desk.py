"""The desk: where a reply and its results rest between their effects and the step's commit."""

from typing import NamedTuple, Protocol

from helix_agents.domain.budgets import Spending
from helix_agents.domain.entries import Change
from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.memories import MemoryId
from helix_agents.domain.messages import AssistantMessage, ToolMessage, UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.sessions import ChildWait, WorkspaceRef
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites
from helix_agents.engine.effects import PlannedCall, Reply, Stopped


class RestingReply(Record):
    """A model's reply as planned: what the loop learns about it, and what only the effect bodies see.

    `notices` are hidden messages that the model saw before it replied. `companions` are the children whose ends those
    messages report, and `entries` the changes that record which other news they told. `writer` is the number of the
    stream writer that streamed the reply, and `begun_at` the time at which the model was asked: if two tries are alive
    at once, the later one counts. `refused` says why a check refused the reply's text as the run's output.
    """

    message: AssistantMessage
    calls: tuple[PlannedCall, ...] = ()
    rejections: dict[ToolCallId, ToolMessage] = {}
    previews: dict[ToolCallId, JSON] = {}
    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()
    notices: tuple[UserMessage, ...] = ()
    companions: tuple[SubSessionRefUpdate, ...] = ()
    entries: tuple[Change, ...] = ()
    writer: int = 0
    begun_at: int = 0
    refused: str | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Decides which of several replies to one step counts: the highest rank, in whatever order they came."""
        return self.writer, self.begun_at

    def as_answer(self) -> Reply | Stopped:
        """What the loop is told. A reply that a stop cut off rests here as well: the commit keeps what readers saw."""
        return Stopped() if self.message.interrupted else Reply(calls=self.calls)


class RestingResult(Record):
    """The result of one call.

    `ran` says that a function produced it, `ended_at` when it became available. `told` says whether `after_tool` is
    due; it is not for a call that was denied or given up. `consumes` says that the result uses a stored answer, `once`
    that the call is in the ledger. A `finish_with` tool sets `finishes` and carries the run's `output`. `entries` and
    `audit` are what state capabilities leave for the commit.
    """

    message: ToolMessage
    writes: StepWrites = NO_WRITES
    entries: tuple[Change, ...] = ()
    audit: tuple[dict[str, JSON], ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    input: dict[str, JSON] = {}
    duration_ms: int = 0
    ended_at: int = 0
    ran: bool = False
    told: bool = True
    consumes: bool = False
    once: bool = False
    finishes: bool = False
    output: JSON = None
    fail_run: str | None = None
    child: SubSessionRefUpdate | None = None


class Failure(NamedTuple):
    """Why a run fails."""

    code: str
    error: str
    retryable: bool = False


class StepLost(Exception):  # noqa: N818  # nothing went wrong here: the step begins again
    """Work that an earlier effect of this step left is gone: a power cut took what no commit had made durable yet."""


class Note(Record):
    """What an effect leaves for the commit besides a reply or a result.

    `writes` and `usage` come from hooks. `notices` are hidden messages for the model, and `late_answers` the calls that
    these messages report on. `stale_effects` are ledger entries that no run will return to, and `forgotten` children.

    A call may note that its outcome is `unknown`, which `input` it was begun with and whether a person had `edited`
    that input; or which child it `waits_for`. `remembered` are the memories made from the turn, `spending` what a
    sub-agent has used so far. `workspace` is the session's workspace as of this step, and `changes_files` says that a
    call may have changed files in it.
    """

    round: int = 0
    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()
    notices: tuple[UserMessage, ...] = ()
    late_answers: tuple[ToolCallId, ...] = ()
    stale_effects: tuple[ToolCallId, ...] = ()
    forgotten: tuple[SubSessionRefUpdate, ...] = ()
    failure: Failure | None = None
    unknown: bool = False
    input: dict[str, JSON] | None = None
    edited: bool = False
    waits_for: ChildWait | None = None
    remembered: tuple[MemoryId, ...] | None = None
    spending: Spending | None = None
    workspace: WorkspaceRef | None = None
    changes_files: bool = False


OPENING = "__open__"
"""The note that opening a run leaves."""

ASKING = "__ask__"
"""The note of a model call that gave no reply."""

COMPACTING = "__compact__"
"""Name prefix of notes that hold a summary of the conversation, made before the model was asked."""

REMEMBERING = "__remember__"
"""The note left when memories were made from a turn, before the commit that ends it."""

SPENDING = "__spent__"
"""Name prefix of notes in which sub-agents report what they used; the run that started their turn follows it."""

WORKSPACE = "__workspace__"
"""The note left by whatever opened the session's workspace, or restored it to an earlier state."""

CHANGING = "__changing__"
"""The note of a call that is about to change files of the workspace, whether or not it succeeds."""

PAID = "__paid__"
"""The note of a reply that nobody keeps, because its run fails: it has to be paid for."""

BEFORE = "__before__"
"""Name prefix of notes that hooks before a call leave."""


class Desk(Protocol):
    """Holds the work of the current step: in process in memory, on durable engines in rows of the store."""

    @property
    def is_durable(self) -> bool:
        """Whether its contents survive the process."""
        ...

    async def put_reply(self, step_id: StepId, reply: RestingReply) -> None:
        """Keep a reply until the commit."""
        ...

    async def find_reply(self, step_id: StepId) -> RestingReply | None:
        """The reply that counts for this step, if there is one."""
        ...

    async def put_result(self, step_id: StepId, result: RestingResult) -> None:
        """Keep a call's result until the commit."""
        ...

    async def results(self, step_id: StepId) -> dict[ToolCallId, RestingResult]:
        """The results of this step that no commit has taken yet."""
        ...

    async def put_note(self, step_id: StepId, name: str, note: Note) -> None:
        """Keep a note until the commit, in place of an earlier one of the same name."""
        ...

    async def notes(self, step_id: StepId) -> dict[str, Note]:
        """Notes by name. A note about a call is named by the call's id."""
        ...

    def clear(self) -> None:
        """Forget everything: the step was committed."""
        ...


class MemoryDesk:
    """The desk of a process that holds its run from the reply to the commit."""

    is_durable = False

    def __init__(self) -> None:
        self._replies: dict[StepId, RestingReply] = {}
        self._results: dict[StepId, dict[ToolCallId, RestingResult]] = {}

    async def put_reply(self, step_id: StepId, reply: RestingReply) -> None:
        self._replies[step_id] = reply

    async def find_reply(self, step_id: StepId) -> RestingReply | None:
        return self._replies.get(step_id)

    async def put_result(self, step_id: StepId, result: RestingResult) -> None:
        self._results.setdefault(step_id, {})[result.message.tool_call_id] = result

    async def results(self, step_id: StepId) -> dict[ToolCallId, RestingResult]:
        return self._results.get(step_id, {})

    async def put_note(self, step_id: StepId, name: str, note: Note) -> None:
        """Nothing to do: the run's scope already holds the note."""

    async def notes(self, step_id: StepId) -> dict[str, Note]:
        return {}

    def clear(self) -> None:
        self._replies.clear()
        self._results.clear()


_: type[Desk] = MemoryDesk

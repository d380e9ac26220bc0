"""Where a reply and results rest between their effect and the step's commit."""

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
    """A model's reply as planned: what the loop is told of it, and what only the bodies see.

    `notices` are hidden messages the model saw before it replied, `companions` the children whose ends they tell,
    `entries` the changes that remember what else they told. `writer` is the number of the stream's writer that told
    readers of it, `begun_at` when the model was asked: of two tries that are both alive, the later one counts.
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

    @property
    def rank(self) -> tuple[int, int]:
        """Which of several replies to one step counts: the highest, whichever came to rest first."""
        return self.writer, self.begun_at

    def as_answer(self) -> Reply | Stopped:
        """What the loop is told. A reply that a stop cut off rests too: the commit needs what readers saw of it."""
        return Stopped() if self.message.interrupted else Reply(calls=self.calls)


class RestingResult(Record):
    """What one call came to.

    `ran` says that a function gave it, `ended_at` since when it is there. `told` says whether `after_tool` is due,
    which it is not for a call that was denied or given up. `consumes` says that an answer of somebody went into it,
    `once` that the ledger knows it. A tool that finishes carries the run's `output`. `entries` and `audit` are what
    state capabilities leave for the commit.
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
    """What an earlier effect of the step left is gone: a power cut took what no commit had followed yet."""


class Note(Record):
    """What an effect leaves for the commit beside a reply or a result.

    `writes` are those of hooks and `usage` what they counted, `notices` hidden messages the model will see,
    `late_answers` the calls they tell of, `stale_effects` entries of the ledger that nobody comes back to.
    A call may leave word that its outcome is `unknown`, with which `input` it was begun, and whether a person had
    `edited` that; or which child it `waits_for`. `remembered` are the memories that were made of the turn,
    `spending` is what a sub-agent used so far.
    `workspace` is the session's as of this step, and `changes_files` says that a call may have changed its files.
    """

    round: int = 0
    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()
    notices: tuple[UserMessage, ...] = ()
    late_answers: tuple[ToolCallId, ...] = ()
    stale_effects: tuple[ToolCallId, ...] = ()
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
"""The note that the beginning of a run leaves."""

ASKING = "__ask__"
"""The note that a model call leaves which gave no reply."""

COMPACTING = "__compact__"
"""Begins the names of notes that hold a summary of the conversation, made before the model was asked."""

REMEMBERING = "__remember__"
"""The note that is left when memories were made of a turn, before the commit that ends it."""

SPENDING = "__spent__"
"""Begins the names of notes by which sub-agents say what they used; then comes the run that their turn began with."""

WORKSPACE = "__workspace__"
"""The note of whoever opened the session's workspace, or brought it back to what it was."""

CHANGING = "__changing__"
"""The note of a call that is about to change files of the workspace, whatever becomes of it."""

BEFORE = "__before__"
"""Begins the names of notes that hooks before a call leave."""


class Desk(Protocol):
    """Holds the work of the step in hand. In one process a dictionary, on durable engines rows of the store."""

    @property
    def is_durable(self) -> bool:
        """Whether what lies here survives the process."""
        ...

    async def put_reply(self, step_id: StepId, reply: RestingReply) -> None: ...

    async def find_reply(self, step_id: StepId) -> RestingReply | None: ...

    async def put_result(self, step_id: StepId, result: RestingResult) -> None: ...

    async def results(self, step_id: StepId) -> dict[ToolCallId, RestingResult]: ...

    async def put_note(self, step_id: StepId, name: str, note: Note) -> None: ...

    async def notes(self, step_id: StepId) -> dict[str, Note]:
        """By name, which for a call's note is the call's id."""
        ...

    def clear(self) -> None:
        """The step was committed."""
        ...


class MemoryDesk:
    """The desk of a process that keeps its run in hand from the reply to the commit."""

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
        """Whoever took the note keeps it in hand."""

    async def notes(self, step_id: StepId) -> dict[str, Note]:
        return {}

    def clear(self) -> None:
        self._replies.clear()
        self._results.clear()


_: type[Desk] = MemoryDesk

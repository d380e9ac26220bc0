"""The four effects a run asks of the world, and what they say to the loop: names, ids and kinds, never a text.

An effect answers with a value. An exception from one means that the infrastructure failed and that the effect may be
repeated; the loop never catches it.
"""

from collections.abc import Iterable
from typing import Literal, Protocol, TypeAlias

from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord, RunStatus
from helix_agents.domain.sessions import OpenCall

CallKind: TypeAlias = Literal[
    "server", "finish_with", "gated", "client", "child", "remote", "companion", "finish", "rejected"
]
"""Who settles a call: our function, our function last, a person, the client, a child here or behind another service, a
companion, or nobody."""

DELEGATED: frozenset[CallKind] = frozenset(("child", "remote"))

ANSWERED_BY_SOMEBODY: frozenset[CallKind] = frozenset(("gated", "client"))


class PlannedCall(Record):
    """One call of a reply, as the model effect planned it.

    A runtime that hands calls to other processes reads how long one of our functions may take, and how many processes
    may die of it before it is given up.
    """

    tool_call_id: ToolCallId
    tool_name: str
    kind: CallKind
    child_session_id: SessionId | None = None
    timeout_ms: int | None = None
    attempts: int | None = None


def in_order_of_work(calls: Iterable[PlannedCall | OpenCall]) -> tuple[ToolCallId, ...]:
    """Calls in the order in which one's changes follow another's: the model's, but tools that finish come last, as they
    have seen what all others changed."""
    return tuple(call.tool_call_id for call in sorted(calls, key=lambda call: call.kind == "finish_with"))


class OpenBatch(Record):
    """The calls of one step, and which of them have their results."""

    step: int
    round: int = 0
    calls: tuple[PlannedCall, ...] = ()
    settled: tuple[ToolCallId, ...] = ()

    @property
    def unsettled(self) -> tuple[PlannedCall, ...]:
        return tuple(call for call in self.calls if call.tool_call_id not in self.settled)

    def settle(self, outcomes: "tuple[CallOutcome, ...]") -> "OpenBatch":
        """The batch with these outcomes noted."""
        done = tuple(outcome.tool_call_id for outcome in outcomes if outcome.state == "settled")
        return OpenBatch(step=self.step, round=self.round, calls=self.calls, settled=(*self.settled, *done))

    def next_round(self) -> "OpenBatch":
        """The same batch, looked at once more: an answer has come, or companions are to be spoken to by now."""
        return OpenBatch(step=self.step, round=self.round + 1, calls=self.calls, settled=self.settled)


class Position(Record):
    """Where a run stands in the store: what was committed last, and what is open.

    It has `ended` where nobody drives it any more, or where this attempt does not.
    """

    session_id: SessionId
    run_id: RunId
    attempt: int
    agent_type: str
    step: int
    open_batch: OpenBatch | None = None
    ended: RunStatus | Literal["superseded"] | None = None


class Ask(Record):
    """Ask the model for this step's reply."""

    step: int


class Reply(Record):
    """The model replied; its text, arguments and usage rest behind the port."""

    calls: tuple[PlannedCall, ...] = ()


class Stopped(Record):
    """Somebody asked the run to stop."""


class RunFailed(Record):
    """The step cannot be done; the code says why."""

    code: str


class Batch(Record):
    """Single effects with no order among them."""

    step: int
    round: int
    calls: tuple[PlannedCall, ...]


class CallOutcome(Record):
    """What became of one call: it has a result, waits for somebody, or was stopped."""

    tool_call_id: ToolCallId
    state: Literal["settled", "waiting", "stopped"]


class DriveRun(Record):
    """A call waits for its child: whoever drives the call drives this attempt of the child's run, and asks again."""

    session_id: SessionId
    run_id: RunId
    attempt: int


class Within(Record):
    """For which call of which run a child works; its effects, wherever they run, need to know."""

    session_id: SessionId
    run_id: RunId
    attempt: int
    step: int
    round: int
    tool_call_id: ToolCallId
    timeout_ms: int | None = None
    within: "Within | None" = None


class Advance(Record, tag_field="outcome", tag="advance"):
    """The step is whole; the commit decides whether the run goes on, finishes or has used up its budget."""


class Suspend(Record, tag_field="outcome", tag="suspend"):
    """Calls wait for somebody."""


class Announce(Record, tag_field="outcome", tag="announce"):
    """Companions are to be spoken to, which happens only once the step that says so is durable; calls may wait beside
    them."""


class Stop(Record, tag_field="outcome", tag="stop"):
    """End the run as somebody asked; the commit takes the request and knows which kind it is."""


class Fail(Record, tag_field="outcome", tag="fail"):
    """End the run as failed."""

    code: str


StepOutcome: TypeAlias = Advance | Announce | Suspend | Stop | Fail


class CommitRequest(Record):
    """Make a step durable. Step and round name it: the same one again gets the first answer."""

    batch: OpenBatch
    outcome: StepOutcome


class CommitAck(Record):
    """What the commit says: go on, look at the batch again, the run ended so, or another one took over."""

    next: Literal["continue", "again", "ended", "superseded"]
    status: RunStatus | None = None


class RunEnd(Record):
    """How a run left its driver. `yielded` asks for a fresh driver at the position in the store.

    A driver that has the run of its last commit at hand may add it, for whoever waits for the result.
    """

    status: RunStatus | Literal["superseded", "yielded"]
    run: RunRecord | None = None


class Ops(Protocol):
    """What one run asks of the world. One await is one effect."""

    async def open(self) -> Position:
        """Where is this run?"""
        ...

    async def ask_model(self, ask: Ask) -> Reply | Stopped | RunFailed:
        """Build the request, stream the reply, plan its calls, keep all of it."""
        ...

    async def run_batch(self, batch: Batch) -> tuple[CallOutcome, ...]:
        """Run calls side by side; how is the runtime's business."""
        ...

    async def commit(self, request: CommitRequest) -> CommitAck:
        """Make the step durable, all of it or nothing."""
        ...

    def should_yield(self) -> bool:
        """Whether this driver wants to be replaced by a fresh one at the next step. Not an effect."""
        ...

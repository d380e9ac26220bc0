"""Errors whose cure is another call: what was handed in, or asked for, cannot be."""

from helix_agents.domain.errors.root import HelixError


class CallerError(HelixError):
    """The call asks for something that cannot be; the same call again fails again."""

    code = "caller_error"


class InvalidIdError(CallerError):
    """An id is empty, too long, holds control characters, or means something else where it is used."""

    code = "validation_error"
    kind: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:80]!r} is not usable: {self.reason}."


class InvalidPageError(CallerError):
    """A page was asked for that no listing has."""

    code = "validation_error"
    offset: int
    limit: int
    most: int

    def __str__(self) -> str:
        return (
            f"A page needs offset from 0 to 2**62 and limit from 1 to {self.most}, "
            f"not offset={self.offset}, limit={self.limit}."
        )


class UnstorableValueError(CallerError):
    """A value cannot be written as JSON."""

    code = "validation_error"
    what: str
    reason: str

    def __str__(self) -> str:
        return f"This {self.what} cannot be stored as JSON: {self.reason}."


class InvalidInputError(CallerError):
    """A message or an answer is not what its type says; nothing of it was stored."""

    code = "validation_error"
    what: str
    problem: str

    def __str__(self) -> str:
        return f"This {self.what} cannot be used: {self.problem}. Nothing was stored."


class SessionNotFoundError(CallerError):
    """No session has this id."""

    code = "session_not_found"
    session_id: str

    def __str__(self) -> str:
        return f"There is no session {self.session_id!r}."


class SessionAlreadyExistsError(CallerError):
    """The session id is taken."""

    code = "session_already_exists"
    session_id: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} exists already; continue it, or choose another id."


class RunNotFoundError(CallerError):
    """No run has this id."""

    code = "run_not_found"
    run_id: str

    def __str__(self) -> str:
        return f"There is no run {self.run_id!r}."


class RunAlreadyExistsError(CallerError):
    """The run id is taken."""

    code = "run_already_exists"
    run_id: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} exists already; run ids are minted once per execute, resume or retry."


class CheckpointNotFoundError(CallerError):
    """The session has no such checkpoint, or not so many messages."""

    code = "checkpoint_not_found"
    session_id: str
    checkpoint_id: str | None = None
    asked_messages: int | None = None
    message_count: int | None = None

    def __str__(self) -> str:
        if self.asked_messages is not None:
            has = "1 message" if self.message_count == 1 else f"{self.message_count} messages"
            return f"Session {self.session_id!r} has {has}; it cannot be branched after {self.asked_messages}."
        return f"Session {self.session_id!r} has no checkpoint {self.checkpoint_id!r}."


class MemoryNotFoundError(CallerError):
    """The entity has no such memory."""

    code = "memory_not_found"
    entity: str
    memory_id: str

    def __str__(self) -> str:
        return f"{self.entity!r} has no memory {self.memory_id!r}; it may have been deleted."


class ModeIsWriteOnceError(CallerError):
    """A session's mode was set before and cannot change."""

    code = "mode_is_write_once"
    session_id: str
    stored: str
    given: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} was bound to mode {self.stored!r}; it cannot become {self.given!r}."


class NotARootSessionError(CallerError):
    """A child session is driven by its parent; only its root takes entries."""

    code = "not_a_root_session"
    session_id: str
    root_session_id: str

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} is a child: its parent drives it. "
            f"Use its root {self.root_session_id!r} instead."
        )


class AgentMismatchError(CallerError):
    """A session is gone on with by the agent it was begun with, and by no other. Nothing was written."""

    code = "agent_mismatch"
    session_id: str
    begun_with: str
    given: str

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} was begun with agent {self.begun_with!r}, not {self.given!r}. "
            "Use that agent, or another session; a second agent takes part in a conversation as a tool of the first."
        )


class NothingToResumeError(CallerError):
    """The session is not at a point that resume can continue from."""

    code = "nothing_to_resume"
    session_id: str
    reason: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} has nothing to resume: {self.reason}."


class NothingToRetryError(CallerError):
    """The session's last run did not fail."""

    code = "nothing_to_retry"
    session_id: str
    reason: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} has nothing to retry: {self.reason}."


class StillWaitingError(CallerError):
    """Nothing the session waits for was answered yet."""

    code = "still_waiting"
    session_id: str
    tool_call_ids: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} still waits for {', '.join(self.tool_call_ids) or 'its children'}; "
            "answer first, or give up what waits with a new message."
        )


class RunNotCompletedError(CallerError):
    """The run ended, but not with an output."""

    code = "run_not_completed"
    session_id: str
    run_id: str
    status: str
    reason: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} of session {self.session_id!r} has no output ({self.status}): {self.reason}"


class ExecutorClosedError(CallerError):
    """The executor was left or is on its way out; it starts no new runs."""

    code = "executor_closed"

    def __str__(self) -> str:
        return "This executor is closed: use it inside `async with Executor.open(...)`, and start runs before leaving."


class OtherEventLoopError(CallerError):
    """An executor was asked to begin something in another event loop than the one that opened it."""

    code = "other_event_loop"
    is_over: bool

    def __str__(self) -> str:
        if self.is_over:
            return (
                "The event loop that opened this executor has ended, and it begins nothing in another one: open and "
                "use it within one asyncio.run(…)."
            )
        return (
            "This executor begins runs only in the event loop that opened it: from elsewhere, use "
            "asyncio.run_coroutine_threadsafe(…, loop), or open one executor for each loop."
        )


class InvalidWriteError(CallerError):
    """A state write does not fit the state it meets."""

    code = "validation_error"
    session_id: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"The write to state key {self.key!r} of session {self.session_id!r} was refused: {self.reason}."


class InvalidStateError(CallerError):
    """A state does not fit the type its agent declares; nothing of it was stored."""

    code = "validation_error"
    state_type: str
    problem: str

    def __str__(self) -> str:
        return f"This is no valid {self.state_type} state: {self.problem}. Nothing was stored."


class ToolInputError(CallerError):
    """The arguments of a call do not fit the tool; the sentence is written for the model that has to correct them."""

    code = "validation_error"
    tool: str
    problem: str

    def __str__(self) -> str:
        problem = self.problem.rstrip(".")
        return f"The arguments for {self.tool!r} were refused: {problem}. Correct them and call it again."


class ToolOutputError(CallerError):
    """A result does not fit the type its tool declares, or cannot be stored."""

    code = "validation_error"
    tool: str
    problem: str

    def __str__(self) -> str:
        return f"The result of {self.tool!r} was refused: {self.problem.rstrip('.')}."


class StateSizeExceededError(CallerError):
    """Something is larger than the store accepts; nothing of it was stored."""

    code = "state_size_exceeded"
    session_id: str
    operation: str
    size_bytes: int
    limit_bytes: int
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = f" (keys: {', '.join(self.keys)})" if self.keys else ""
        return (
            f"{self.operation} of session {self.session_id!r} is {self.size_bytes} bytes, "
            f"the store takes at most {self.limit_bytes}{keys}. Nothing was stored."
        )


class ChunkTooLargeError(CallerError):
    """A chunk is larger than the stream accepts; it took no sequence number."""

    code = "chunk_too_large"
    stream_id: str
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"A chunk of {self.size_bytes} bytes does not fit stream {self.stream_id!r}, "
            f"which takes at most {self.limit_bytes}; split it."
        )


class StreamFailedError(CallerError):
    """The run behind this stream failed; its history was delivered before this error."""

    code = "stream_failed"
    stream_id: str
    error_code: str
    message: str

    def __str__(self) -> str:
        return f"The run behind stream {self.stream_id!r} failed ({self.error_code}): {self.message}"


class QueueFullError(CallerError):
    """So many turns wait in a session that one more is refused."""

    code = "queue_full"
    session_id: str
    waiting: int

    def __str__(self) -> str:
        return (
            f"In session {self.session_id!r} {self.waiting} turns wait already, and no more may; wait until some have "
            "begun, or take some from the queue with sessions.drop_queued."
        )


class QueuedTurnDroppedError(CallerError):
    """A turn that waited was taken from the queue before it began."""

    code = "queued_turn_dropped"
    session_id: str
    run_id: str

    def __str__(self) -> str:
        return (
            f"Run {self.run_id!r} of session {self.session_id!r} never began: it was taken from the queue, and nothing "
            "of it was done."
        )


class WeakPassphraseError(CallerError):
    """A passphrase that would protect nothing."""

    code = "weak_passphrase"
    reason: str

    def __str__(self) -> str:
        return f"This passphrase is refused: {self.reason}. A few random words make a good one."


class BudgetExhaustedError(CallerError):
    """What the models of a turn may use is used up."""

    code = "budget_exhausted"
    retryable = True
    agent: str
    limit: str
    allowed: float
    used: float
    scope: str

    def __str__(self) -> str:
        whose = " by it and its sub-agents" if self.scope == "tree" else ""
        amounts = f"{self.used:,.0f} of {self.allowed:,.0f} {self.limit.replace('_', ' ')}"
        if self.limit == "cost_usd":
            amounts = f"${self.used:,.6g} of ${self.allowed:,.6g}"
        return f"The budget of {self.agent!r} is spent: {amounts} used{whose}. A retry continues with a fresh budget."

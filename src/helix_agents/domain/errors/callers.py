"""Errors that you fix in the call: what it passed, or asked for, is not possible."""

from helix_agents.domain.errors.root import HelixError


class CallerError(HelixError):
    """The call asks for something that is not possible. Repeating the same call fails again."""

    code = "caller_error"


class InvalidIdError(CallerError):
    """An id is empty, too long, contains control characters, or has another meaning where it is used."""

    code = "validation_error"
    kind: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.value[:80]!r} cannot be used: {self.reason}."


class InvalidPageError(CallerError):
    """The offset or the limit of a page is out of range."""

    code = "validation_error"
    offset: int
    limit: int
    most: int

    def __str__(self) -> str:
        return (
            f"A page needs an offset from 0 to 2**62 and a limit from 1 to {self.most}, "
            f"not offset={self.offset}, limit={self.limit}."
        )


class UnstorableValueError(CallerError):
    """A value cannot be stored as JSON."""

    code = "validation_error"
    what: str
    reason: str

    def __str__(self) -> str:
        return f"This {self.what} cannot be stored as JSON: {self.reason}."


class InvalidInputError(CallerError):
    """A message, an answer or another argument is not valid. Nothing was stored."""

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
    """A session with this id already exists."""

    code = "session_already_exists"
    session_id: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} already exists; continue it, or choose another id."


class RunNotFoundError(CallerError):
    """No run has this id."""

    code = "run_not_found"
    run_id: str

    def __str__(self) -> str:
        return f"There is no run {self.run_id!r}."


class RunAlreadyExistsError(CallerError):
    """A run with this id already exists."""

    code = "run_already_exists"
    run_id: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} already exists; each execute, resume or retry needs a new run id."


class CheckpointNotFoundError(CallerError):
    """The session has no such checkpoint, or fewer messages than were asked for."""

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
    """The entity has no memory with this id."""

    code = "memory_not_found"
    entity: str
    memory_id: str

    def __str__(self) -> str:
        return f"{self.entity!r} has no memory {self.memory_id!r}; it may have been deleted."


class ScheduleNotFoundError(CallerError):
    """No schedule has this id."""

    code = "schedule_not_found"
    schedule_id: str

    def __str__(self) -> str:
        return f"There is no schedule {self.schedule_id!r}; it may have been deleted."


class DeliveryNotFoundError(CallerError):
    """No delivery to a webhook has this id."""

    code = "delivery_not_found"
    delivery_id: str

    def __str__(self) -> str:
        return (
            f"There is no delivery {self.delivery_id!r}; its record may no longer be kept. `helix webhooks list` shows"
            " those that are."
        )


class ModeIsWriteOnceError(CallerError):
    """The session's mode is already set and cannot change."""

    code = "mode_is_write_once"
    session_id: str
    stored: str
    given: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r} has mode {self.stored!r}, which cannot change to {self.given!r}."


class NotARootSessionError(CallerError):
    """A child session is driven by its parent; only its root session accepts calls."""

    code = "not_a_root_session"
    session_id: str
    root_session_id: str

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} is a child session, which its parent drives. "
            f"Use its root session {self.root_session_id!r} instead."
        )


class AgentMismatchError(CallerError):
    """A session can only be continued with the agent that started it, or the one that has taken it over. Nothing was
    written."""

    code = "agent_mismatch"
    session_id: str
    begun_with: str
    given: str

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} was started by agent {self.begun_with!r}, not by {self.given!r}. Use that "
            "agent, or another session. A second agent can take part in a conversation as a tool of the first, or take "
            "it over if the first hands it over (handoffs=[…])."
        )


class NotTheOwnerError(CallerError):
    """The session or schedule belongs to another user than the one the call is made for. Nothing was written."""

    code = "not_the_owner"
    kind: str
    id: str
    user_id: str

    def __str__(self) -> str:
        return f"The {self.kind} {self.id!r} does not belong to user {self.user_id!r}. Choose another id."


class NothingToResumeError(CallerError):
    """The session is not at a point from which it can be resumed."""

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
    """The session waits for answers and has not received one yet."""

    code = "still_waiting"
    session_id: str
    tool_call_ids: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} is still waiting for {', '.join(self.tool_call_ids) or 'its children'}; "
            "answer first, or send a new message to give up the waiting calls."
        )


class RunNotCompletedError(CallerError):
    """The run ended without an output."""

    code = "run_not_completed"
    session_id: str
    run_id: str
    status: str
    reason: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} of session {self.session_id!r} has no output ({self.status}): {self.reason}"


class ExecutorClosedError(CallerError):
    """The executor is closed or closing; it starts no new runs."""

    code = "executor_closed"

    def __str__(self) -> str:
        return (
            "This executor is closed: use it inside `async with Executor.open(…)`. Nothing that was stored is lost; a "
            "run that has not ended continues in any open executor on the same store."
        )


class OtherEventLoopError(CallerError):
    """An executor was asked to start something in a different event loop than the one that opened it."""

    code = "other_event_loop"
    is_over: bool

    def __str__(self) -> str:
        if self.is_over:
            return (
                "The event loop that opened this executor has ended, and the executor starts nothing in another loop: "
                "open and use it within one asyncio.run(…)."
            )
        return (
            "This executor starts runs only in the event loop that opened it: from elsewhere, use "
            "asyncio.run_coroutine_threadsafe(…, loop), or open one executor per loop."
        )


class InvalidWriteError(CallerError):
    """A state write does not fit the current state."""

    code = "validation_error"
    session_id: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"The write to state key {self.key!r} of session {self.session_id!r} was refused: {self.reason}."


class InvalidStateError(CallerError):
    """A state does not fit the type that its agent declares. Nothing was stored."""

    code = "validation_error"
    state_type: str
    problem: str

    def __str__(self) -> str:
        return f"This is not a valid {self.state_type} state: {self.problem}. Nothing was stored."


class ToolInputError(CallerError):
    """The arguments of a call do not fit the tool. The message is written for the model, which has to correct them."""

    code = "validation_error"
    tool: str
    problem: str

    def __str__(self) -> str:
        problem = self.problem.rstrip(".")
        return f"The arguments for {self.tool!r} were refused: {problem}. Correct them and call the tool again."


class ToolOutputError(CallerError):
    """A result does not fit the type that its tool declares, or cannot be stored."""

    code = "validation_error"
    tool: str
    problem: str

    def __str__(self) -> str:
        return f"The result of {self.tool!r} was refused: {self.problem.rstrip('.')}."


class StateSizeExceededError(CallerError):
    """Something is larger than the store accepts. Nothing was stored."""

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
            f"but the store accepts at most {self.limit_bytes}{keys}. Nothing was stored."
        )


class ChunkTooLargeError(CallerError):
    """A chunk is larger than the stream accepts. It used no sequence number."""

    code = "chunk_too_large"
    stream_id: str
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"A chunk of {self.size_bytes} bytes is too large for stream {self.stream_id!r}, "
            f"which accepts at most {self.limit_bytes} bytes; split the chunk."
        )


class StreamFailedError(CallerError):
    """The run behind this stream failed. Everything the stream had was delivered before this error."""

    code = "stream_failed"
    stream_id: str
    error_code: str
    message: str

    def __str__(self) -> str:
        return f"The run behind stream {self.stream_id!r} failed ({self.error_code}): {self.message}"


class QueueFullError(CallerError):
    """The session's queue is full, so another turn is refused."""

    code = "queue_full"
    session_id: str
    waiting: int

    def __str__(self) -> str:
        return (
            f"The queue of session {self.session_id!r} is full: {self.waiting} turns are waiting. Wait until some have "
            "started, or remove some with sessions.drop_queued."
        )


class QueuedTurnDroppedError(CallerError):
    """A waiting turn was removed from the queue before it started."""

    code = "queued_turn_dropped"
    session_id: str
    run_id: str

    def __str__(self) -> str:
        return (
            f"Run {self.run_id!r} of session {self.session_id!r} never started: it was removed from the queue, and "
            "nothing was done."
        )


class WeakPassphraseError(CallerError):
    """The passphrase is too weak to protect anything."""

    code = "weak_passphrase"
    reason: str

    def __str__(self) -> str:
        return f"This passphrase is refused: {self.reason}. A few random words make a good one."


class BudgetExhaustedError(CallerError):
    """The budget for the models of a turn is used up."""

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

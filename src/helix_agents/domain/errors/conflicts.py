"""Errors of a writer that came second: it has to read again and decide again."""

from helix_agents.domain.errors.root import HelixError


class ConflictError(HelixError):
    """Another writer came first. Nothing was written; read again and decide again."""

    code = "conflict"


class AgentAlreadyRunningError(ConflictError):
    """The session already has an active run. `lease_ends_in_ms` is how long the lease of the process that drives the
    run still lasts: if that process has died, this is known by then. None if unknown, or if this process drives it."""

    code = "agent_already_running"
    session_id: str
    run_id: str
    lease_ends_in_ms: int | None = None

    def __str__(self) -> str:
        busy = f"Session {self.session_id!r} is busy with run {self.run_id!r}; wait for it, or interrupt it."
        if self.lease_ends_in_ms is None:
            return busy
        seconds = -(-self.lease_ends_in_ms // 1000)
        return f"{busy} If its process has died, its lease ends in {seconds} s; the same call then continues."


class QueuedTurnGoneError(ConflictError):
    """A turn that was about to start is no longer in the queue: another caller removed it or started it."""

    code = "queued_turn_gone"
    session_id: str
    run_id: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} of session {self.session_id!r} is no longer in the queue."


class StaleStateError(ConflictError):
    """Another writer committed to this session first."""

    code = "state_stale"
    session_id: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} moved from version {self.expected} to {self.found} "
            "since you loaded it; load it again and decide again."
        )


class ScheduleChangedError(ConflictError):
    """Another writer changed or deleted this schedule first."""

    code = "schedule_changed"
    schedule_id: str

    def __str__(self) -> str:
        return (
            f"Schedule {self.schedule_id!r} was changed or deleted since you read it; read it again and decide again."
        )


class MemoryChangedError(ConflictError):
    """Another writer changed this memory first."""

    code = "memory_changed"
    memory_id: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"Memory {self.memory_id!r} moved from version {self.expected} to {self.found} since you read it; "
            "read it again and decide again."
        )


class RunConflictError(ConflictError):
    """Another run started, or this one was taken over, between reading and starting."""

    code = "run_conflict"
    session_id: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} is at {self.found}, not at {self.expected}: "
            "another caller came first. Read the session again and decide again."
        )


class SupersededError(ConflictError):
    """A newer run or attempt owns this session, so this writer has to stop."""

    code = "run_superseded"
    session_id: str
    run_id: str
    attempt: int
    reason: str

    def __str__(self) -> str:
        return (
            f"Run {self.run_id!r} attempt {self.attempt} may no longer write to {self.session_id!r}: "
            f"{self.reason}. It was replaced and has to stop."
        )


class LockHeldError(ConflictError):
    """Another holder has the lock."""

    code = "lock_held"
    retryable = True
    key: str

    def __str__(self) -> str:
        return f"Lock {self.key!r} has another holder; try again when its lease has expired."


class LockLostError(ConflictError):
    """The lease expired and the lock went to another holder, or the lock was released."""

    code = "lock_lost"
    key: str
    token: int

    def __str__(self) -> str:
        return f"Lock {self.key!r} is no longer held under token {self.token}; stop the work that it protected."

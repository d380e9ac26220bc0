"""Errors of whoever came second: read again, and decide again."""

from helix_agents.domain.errors.root import HelixError


class ConflictError(HelixError):
    """Another writer was first. Nothing was written; read again and decide again."""

    code = "conflict"


class AgentAlreadyRunningError(ConflictError):
    """The session has a run that is going on. `lease_ends_in_ms` is when a process elsewhere that has it would be
    known to be dead, if it is; None where that is not known, or the process is this one."""

    code = "agent_already_running"
    session_id: str
    run_id: str
    lease_ends_in_ms: int | None = None

    def __str__(self) -> str:
        busy = f"Session {self.session_id!r} is busy with run {self.run_id!r}; wait for it, or interrupt it."
        if self.lease_ends_in_ms is None:
            return busy
        seconds = -(-self.lease_ends_in_ms // 1000)
        return f"{busy} If its process has died, its lease ends in {seconds} s, and the same call then goes on."


class QueuedTurnGoneError(ConflictError):
    """A turn that was to begin does not wait any more: somebody took it from the queue."""

    code = "queued_turn_gone"
    session_id: str
    run_id: str

    def __str__(self) -> str:
        return f"Run {self.run_id!r} of session {self.session_id!r} is not in the queue any more."


class StaleStateError(ConflictError):
    """Another writer committed this session first."""

    code = "state_stale"
    session_id: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"Session {self.session_id!r} moved from version {self.expected} to {self.found} "
            "since you loaded it; load it again and decide again."
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
            "another caller was first. Read the session again and decide again."
        )


class SupersededError(ConflictError):
    """A newer run or attempt owns this session; this writer has to stop."""

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
    """Somebody else holds the lock."""

    code = "lock_held"
    retryable = True
    key: str

    def __str__(self) -> str:
        return f"Lock {self.key!r} is held by somebody else; try again when its lease has run out."


class LockLostError(ConflictError):
    """The lease ran out and the lock went to somebody else, or it was released."""

    code = "lock_lost"
    key: str
    token: int

    def __str__(self) -> str:
        return f"Lock {self.key!r} is no longer held under token {self.token}; stop what it protected."

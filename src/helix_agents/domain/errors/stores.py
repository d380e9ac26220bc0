"""Errors of a store: it is unavailable, full, closed, or holds something that cannot be read."""

from helix_agents.domain.errors.root import HelixError


class StoreError(HelixError):
    """The store itself has a problem."""

    code = "store_error"


class StoreUnavailableError(StoreError):
    """The store did not answer. A write may or may not have happened."""

    code = "store_unavailable"
    retryable = True
    store: str
    reason: str

    def __str__(self) -> str:
        reason = self.reason.rstrip(".")
        return f"{self.store} is not answering: {reason}. Try again, and check the store if this persists."


class StoreNotOpenedError(StoreUnavailableError):
    """The store is not where its URL says, or this process is not allowed to open it."""

    cure: str

    def __str__(self) -> str:
        return f"{self.store} cannot be opened: {self.reason}. {self.cure}."


class StoreReplacedError(StoreUnavailableError):
    """The file of the store was deleted, moved or replaced while this process had it open."""

    def __str__(self) -> str:
        return (
            f"{self.store} is no longer the file that this process has open: {self.reason}. Writes would be lost, so "
            "none are made. Put the file back, or restart the process to continue with the file that is there now."
        )


class StoreFullError(StoreError):
    """No space is left. The write was rolled back."""

    code = "store_full"
    retryable = True
    store: str

    def __str__(self) -> str:
        return f"{self.store} has no space left. The write was rolled back and nothing was lost; free some space."


class StoreReadOnlyError(StoreError):
    """The store cannot be written to."""

    code = "store_read_only"
    store: str
    cure: str = "check the permissions of the file and of its folder"

    def __str__(self) -> str:
        return f"{self.store} is read-only: {self.cure}."


class StoreCorruptError(StoreError):
    """The store's file is damaged, or is not a store."""

    code = "store_corrupt"
    store: str
    reason: str

    def __str__(self) -> str:
        return f"{self.store} cannot be read ({self.reason}). Restore it from a backup; nothing was changed."


class SessionCorruptError(StoreError):
    """Stored data of one session is damaged."""

    code = "session_corrupt"
    record: str
    problem: str

    def __str__(self) -> str:
        return f"A stored {self.record} cannot be read: {self.problem}. The session was left unchanged."


class StoreClosedError(StoreError):
    """The store was closed."""

    code = "store_closed"
    store: str

    def __str__(self) -> str:
        return f"{self.store} was closed; open it again to use it."

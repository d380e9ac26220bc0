"""The errors of state capabilities: data that a program can act on.

Every error has a name that never changes, a sentence, what it is about (`context`), whether the same call may succeed
later (`retryable`), and what to do next (`recovery`). The first twelve are the capabilities' own; the others belong to
input, policy and approval, which come before the capability itself.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from helix_agents.domain.errors import HelixError
from helix_agents.domain.records import JSON, Record


class Recovery(Record):
    """One way to deal with an error; with `capability` and `inputs` a program can do it by itself."""

    action: str
    description: str
    capability: str | None = None
    inputs: dict[str, JSON] | None = None


class CapabilityError(HelixError):
    """A capability could not do what it was asked."""

    code = "capability_error"
    message: str
    context: Mapping[str, Any] = {}
    recovery: tuple[Recovery, ...] = ()

    def __str__(self) -> str:
        return self.message

    @property
    def name(self) -> str:
        """The name that callers match on."""
        return type(self).__name__

    def as_data(self) -> dict[str, JSON]:
        """The error as every interface of the capabilities shows it."""
        steps: list[JSON] = []
        for step in self.recovery:
            shown: dict[str, JSON] = {"action": step.action, "description": step.description}
            if step.capability is not None:
                shown["capability"] = step.capability
                shown["inputs"] = step.inputs or {}
            steps.append(shown)
        return {
            "error": self.name,
            "message": self.message,
            "recovery": steps,
            "retryable": self.retryable,
            "context": dict(self.context),
        }


class SessionNotFound(CapabilityError):
    """The session does not exist or has been terminated."""

    code = "session_not_found"


class KeyNotFound(CapabilityError):
    """The key, or this version of it, does not exist."""

    code = "key_not_found"


class VersionConflict(CapabilityError):
    """Another writer changed the key after it was read."""

    code = "version_conflict"
    retryable: ClassVar[bool] = True


class QuotaExceeded(CapabilityError):
    """The write would take more room than the scope has."""

    code = "quota_exceeded"


class DatabaseError(CapabilityError):
    """The store could not be read or written."""

    code = "database_error"
    retryable: ClassVar[bool] = True


class SubscriptionFailed(CapabilityError):
    """The change subscription could not be made."""

    code = "subscription_failed"
    retryable: ClassVar[bool] = True


class SnapshotNotFound(CapabilityError):
    """No snapshot has this id."""

    code = "snapshot_not_found"


class BackupNotFound(CapabilityError):
    """No backup has this id."""

    code = "backup_not_found"


class DecryptionFailed(CapabilityError):
    """Wrong key or damaged backup; which of the two is only in the log."""

    code = "decryption_failed"


class VaultLocked(CapabilityError):
    """The vault has to be unlocked first."""

    code = "vault_locked"


class IoError(CapabilityError):
    """A file could not be read or written."""

    code = "io_error"
    retryable: ClassVar[bool] = True


class InvalidTimestamp(CapabilityError):
    """A time is not written in ISO 8601, or lies in the future."""

    code = "invalid_timestamp"


class InvalidInput(CapabilityError):
    """The arguments are not what the capability takes."""

    code = "invalid_input"


class PolicyDenied(CapabilityError):
    """A rule, or what no rule may allow, forbids the call."""

    code = "policy_denied"


class ApprovalPending(CapabilityError):
    """A person has to approve the call first; it then runs by itself."""

    code = "approval_pending"
    retryable: ClassVar[bool] = True


class ApprovalRejected(CapabilityError):
    """A person decided against the call, or nobody decided in time."""

    code = "approval_rejected"


OWN_ERRORS: tuple[type[CapabilityError], ...] = (
    SessionNotFound,
    KeyNotFound,
    VersionConflict,
    QuotaExceeded,
    DatabaseError,
    SubscriptionFailed,
    SnapshotNotFound,
    BackupNotFound,
    DecryptionFailed,
    VaultLocked,
    IoError,
    InvalidTimestamp,
)
"""The twelve errors that capabilities declare."""

ERRORS: Mapping[str, type[CapabilityError]] = {
    kind.__name__: kind for kind in (*OWN_ERRORS, InvalidInput, PolicyDenied, ApprovalPending, ApprovalRejected)
}

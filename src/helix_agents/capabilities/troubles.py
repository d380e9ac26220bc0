"""Errors of stores, vaults and files, translated for a caller of a capability."""

from helix_agents.capabilities.declaring import Capability
from helix_agents.domain import errors
from helix_agents.domain.capability_errors import (
    CapabilityError,
    DatabaseError,
    DecryptionFailed,
    InvalidInput,
    IoError,
    SubscriptionFailed,
    VaultLocked,
)
from helix_agents.engine.log import log_exception

_LOCKED: dict[type[errors.HelixError], str] = {
    errors.VaultLockedError: "The vault is locked.",
    errors.VaultNotInitialisedError: "There is no vault yet; an operator makes one with `helix vault init`.",
    errors.VaultDamagedError: "The vault's file is damaged; an operator has to look after it.",
}
_UNREADABLE = (
    errors.WrongPassphraseError,
    errors.BackupDamagedError,
    errors.BackupKeyMismatchError,
    errors.BackupTooNewError,
)


def meaning(problem: errors.HelixError | OSError, capability: Capability) -> CapabilityError:
    """The problem as one of the errors that a capability returns."""
    match problem:
        case CapabilityError():
            return problem
        case errors.HelixError() if type(problem) in _LOCKED:
            return VaultLocked(_LOCKED[type(problem)], {"reason": problem.code})
        case _ if isinstance(problem, _UNREADABLE):
            # Saying which of the two it was would help someone who guesses passphrases.
            log_exception("backup.unreadable", problem, capability=capability.name)
            return DecryptionFailed("Wrong key, or the backup file is damaged.", {})
        case errors.PathRefusedError() | errors.VaultFileError():
            return IoError(str(problem), {"reason": problem.code})
        case errors.StoreError() | errors.RecordTooNewError():
            log_exception("state.store_failed", problem, capability=capability.name)
            kind = SubscriptionFailed if capability.name == "state.shared.watch" else DatabaseError
            return kind(str(problem), {"reason": problem.code})
        case errors.HelixError():
            return InvalidInput(str(problem), {"reason": problem.code})
        case OSError():
            return IoError(f"{problem.strerror or problem}", {"errno": problem.errno, "path": problem.filename})

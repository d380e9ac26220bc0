"""Errors for the operator: the vault, its backups, and the audit log."""

from helix_agents.domain.errors.root import HelixError


class VaultError(HelixError):
    """The vault, or a file that it protects, needs an operator's attention."""

    code = "vault_error"
    path: str


class VaultNotInitialisedError(VaultError):
    """There is no vault yet."""

    code = "vault_not_initialised"

    def __str__(self) -> str:
        return f"There is no vault at {self.path!r}: create it once with a passphrase, then unlock it."


class VaultAlreadyExistsError(VaultError):
    """There is a vault already. A second one would make the first one's backups unreadable without its passphrase."""

    code = "vault_already_exists"

    def __str__(self) -> str:
        return f"There is already a vault at {self.path!r}: unlock it, or change its passphrase. Nothing was written."


class VaultLockedError(VaultError):
    """The vault's key is not in memory."""

    code = "vault_locked"
    reason: str = "neither this process nor its user has unlocked it"

    def __str__(self) -> str:
        return f"The vault {self.path!r} is locked ({self.reason}): an operator has to unlock it with the passphrase."


class VaultDamagedError(VaultError):
    """A file of the vault is damaged, or is not a vault's file."""

    code = "vault_damaged"
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} cannot be used ({self.reason}). Restore a copy of it; nothing was changed."


class VaultFileError(VaultError):
    """The file system refused to read or write. Nothing was left half written."""

    code = "vault_file"
    retryable = True
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} could not be read or written: {self.reason}. Check the folder and its free space."


class WrongPassphraseError(VaultError):
    """The passphrase does not open this file."""

    code = "wrong_passphrase"

    def __str__(self) -> str:
        return (
            f"The passphrase does not open {self.path!r}. Nothing was changed; try again. "
            "A backup opens with the passphrase that its vault had when the backup was made."
        )


class AuditBrokenError(VaultError):
    """A row of the audit log does not follow the row before it, so the end of the log is not signed."""

    code = "audit_broken"
    seq: int

    def __str__(self) -> str:
        return (
            f"Row {self.seq} of the audit log does not follow the row before it. Nothing was signed in {self.path!r}; "
            "`helix audit verify` says what is wrong and where."
        )


class BackupDamagedError(VaultError):
    """The file is not the backup that was written: it was cut or altered, or is not a backup at all."""

    code = "backup_damaged"
    reason: str

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} is not what was written ({self.reason}). "
            "None of it may be used: take another copy of it, or an older backup."
        )


class BackupKeyMismatchError(VaultError):
    """The backup was made by another vault."""

    code = "backup_key_mismatch"
    vault_id: str

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} was made by vault {self.vault_id!r}, not by this one: "
            "open it with the passphrase that the other vault had at the time."
        )


class BackupTooNewError(VaultError):
    """The backup was written by a newer version of this library."""

    code = "backup_too_new"
    version: int
    known: int

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} has format {self.version}, but this version of helix-agents reads at most "
            f"{self.known}: upgrade helix-agents here."
        )


class PathRefusedError(VaultError):
    """The path must not be read from or written to, whatever it holds."""

    code = "path_refused"
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} is refused: {self.reason}. Nothing was written; choose another path."

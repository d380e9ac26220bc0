"""Every error that this library raises, grouped by who has to act.

HelixError
├── CallerError                    change the call
│   ├── InvalidIdError
│   ├── InvalidPageError
│   ├── UnstorableValueError
│   ├── InvalidInputError
│   ├── SessionNotFoundError
│   ├── SessionAlreadyExistsError
│   ├── RunNotFoundError
│   ├── RunAlreadyExistsError
│   ├── CheckpointNotFoundError
│   ├── MemoryNotFoundError
│   ├── ScheduleNotFoundError
│   ├── DeliveryNotFoundError
│   ├── ModeIsWriteOnceError
│   ├── NotARootSessionError
│   ├── AgentMismatchError
│   ├── NotTheOwnerError
│   ├── NothingToResumeError
│   ├── NothingToRetryError
│   ├── StillWaitingError
│   ├── RunNotCompletedError
│   ├── QueueFullError
│   ├── QueuedTurnDroppedError
│   ├── BudgetExhaustedError       a retry continues with a fresh budget
│   ├── ExecutorClosedError
│   ├── OtherEventLoopError
│   ├── InvalidWriteError
│   ├── InvalidStateError
│   ├── ToolInputError             the caller is the model
│   ├── ToolOutputError
│   ├── StateSizeExceededError
│   ├── ChunkTooLargeError
│   ├── WeakPassphraseError
│   └── StreamFailedError          the run behind the stream failed
├── ConflictError                  another writer came first: read again, decide again
│   ├── AgentAlreadyRunningError
│   ├── QueuedTurnGoneError
│   ├── StaleStateError
│   ├── MemoryChangedError
│   ├── ScheduleChangedError
│   ├── RunConflictError
│   ├── SupersededError
│   ├── LockHeldError
│   └── LockLostError
├── SetupError                     fix the configuration or the installation
│   ├── DefinitionError
│   ├── PriceUnknownError
│   ├── UnknownAgentError
│   ├── StateSchemaChangedError
│   ├── DepsNotOpenedError
│   ├── UnknownBackendError
│   ├── UnsupportedBackendError
│   ├── UnknownModelError
│   ├── InvalidStoreUrlError
│   ├── MissingExtraError
│   ├── DBOSInUseError
│   ├── IncompleteStoreError
│   ├── UnsafeSQLiteError
│   ├── ForeignFileError           the file is another application's database
│   ├── UnsafeRedisError
│   ├── SchemaTooOldError
│   ├── SchemaTooNewError
│   └── RecordTooNewError
├── ModelError                     the model or its provider did not answer as needed
│   ├── ModelOverloadedError       rate limits and overload: worth a retry
│   ├── ModelUnavailableError      network, time-outs, server errors: worth a retry
│   ├── ModelRefusedError          the provider refused the request as it is
│   ├── ContextTooLongError        the history no longer fits
│   ├── FlowFailedError            the function of a flow raised an exception
│   ├── FlowInputError             it was not given what it takes
│   ├── FlowChangedError           it is another one than before
│   └── FlowStuckError             it waits for something that is no call
├── CallFailedError                the caller is a flow
├── VaultError                     an operator looks after the vault and its backups
│   ├── VaultNotInitialisedError
│   ├── VaultAlreadyExistsError
│   ├── VaultLockedError
│   ├── VaultDamagedError
│   ├── VaultFileError             the file system refused: space, permissions, a folder that is not there
│   ├── WrongPassphraseError
│   ├── AuditBrokenError           the audit log is no longer a chain
│   ├── BackupDamagedError
│   ├── BackupKeyMismatchError
│   ├── BackupTooNewError
│   └── PathRefusedError           a link, a file that is there already, a place outside the allowed folders
├── SkillsError                    check the source of the skills
│   ├── SkillsUnavailableError     they cannot be listed: worth a retry
│   └── SkillSourceError           their source does not provide them
├── WorkspaceError                 check the provider of workspaces
│   ├── WorkspaceFailedError       the workspace is not available: worth a retry
│   └── WorkspaceFileError         the caller is the model, or a reader of its files
├── RuntimeUnavailableError        check the durable engine
├── RemoteAgentError               check the service behind a remote sub-agent
│   ├── RemoteUnavailableError     it does not answer: worth a retry
│   ├── RemoteRefusedError         it refused the request as it is
│   ├── RemoteProtocolError        it does not follow the protocol
│   ├── RemoteSubAgentLostError    the sub-agent's outcome is unknown
│   └── RemoteSubAgentClientToolUnsupportedError
├── MCPServerError                 check the MCP server behind tools
│   ├── MCPUnavailableError        it does not answer: worth a retry
│   ├── MCPRefusedError            it refused the request as it is
│   │   └── MCPUnauthorizedError   it does not accept the credentials
│   └── MCPProtocolError           it does not follow the protocol
└── StoreError                     check the store
    ├── StoreUnavailableError
    │   ├── StoreNotOpenedError    it is missing, or closed to this process
    │   └── StoreReplacedError     its file was deleted, moved or replaced while it was open
    ├── StoreFullError
    ├── StoreReadOnlyError
    ├── StoreCorruptError
    ├── SessionCorruptError
    └── StoreClosedError

Fields travel in `args`, so every error survives pickling; `code` is stable and safe to match on.
"""

from helix_agents.domain.errors.callers import (
    AgentMismatchError,
    BudgetExhaustedError,
    CallerError,
    CheckpointNotFoundError,
    ChunkTooLargeError,
    DeliveryNotFoundError,
    ExecutorClosedError,
    InvalidIdError,
    InvalidInputError,
    InvalidPageError,
    InvalidStateError,
    InvalidWriteError,
    MemoryNotFoundError,
    ModeIsWriteOnceError,
    NotARootSessionError,
    NothingToResumeError,
    NothingToRetryError,
    NotTheOwnerError,
    OtherEventLoopError,
    QueuedTurnDroppedError,
    QueueFullError,
    RunAlreadyExistsError,
    RunNotCompletedError,
    RunNotFoundError,
    ScheduleNotFoundError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StateSizeExceededError,
    StillWaitingError,
    StreamFailedError,
    ToolInputError,
    ToolOutputError,
    UnstorableValueError,
    WeakPassphraseError,
)
from helix_agents.domain.errors.configuration import (
    DBOSInUseError,
    DefinitionError,
    DepsNotOpenedError,
    ForeignFileError,
    IncompleteStoreError,
    InvalidStoreUrlError,
    MissingExtraError,
    PriceUnknownError,
    RecordTooNewError,
    SchemaTooNewError,
    SchemaTooOldError,
    SetupError,
    StateSchemaChangedError,
    UnknownAgentError,
    UnknownBackendError,
    UnknownModelError,
    UnsafeRedisError,
    UnsafeSQLiteError,
    UnsupportedBackendError,
)
from helix_agents.domain.errors.conflicts import (
    AgentAlreadyRunningError,
    ConflictError,
    LockHeldError,
    LockLostError,
    MemoryChangedError,
    QueuedTurnGoneError,
    RunConflictError,
    ScheduleChangedError,
    StaleStateError,
    SupersededError,
)
from helix_agents.domain.errors.flows import (
    CallFailedError,
    FlowChangedError,
    FlowFailedError,
    FlowInputError,
    FlowStuckError,
)
from helix_agents.domain.errors.models import (
    ContextTooLongError,
    ModelError,
    ModelOverloadedError,
    ModelRefusedError,
    ModelUnavailableError,
)
from helix_agents.domain.errors.root import (
    HelixError,
)
from helix_agents.domain.errors.services import (
    MCPProtocolError,
    MCPRefusedError,
    MCPServerError,
    MCPUnauthorizedError,
    MCPUnavailableError,
    RemoteAgentError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteSubAgentClientToolUnsupportedError,
    RemoteSubAgentLostError,
    RemoteUnavailableError,
    RuntimeUnavailableError,
    SkillsError,
    SkillSourceError,
    SkillsUnavailableError,
    WorkspaceError,
    WorkspaceFailedError,
    WorkspaceFileError,
)
from helix_agents.domain.errors.stores import (
    SessionCorruptError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotOpenedError,
    StoreReadOnlyError,
    StoreReplacedError,
    StoreUnavailableError,
)
from helix_agents.domain.errors.vault import (
    AuditBrokenError,
    BackupDamagedError,
    BackupKeyMismatchError,
    BackupTooNewError,
    PathRefusedError,
    VaultAlreadyExistsError,
    VaultDamagedError,
    VaultError,
    VaultFileError,
    VaultLockedError,
    VaultNotInitialisedError,
    WrongPassphraseError,
)

__all__ = [
    "AgentAlreadyRunningError",
    "AgentMismatchError",
    "AuditBrokenError",
    "BackupDamagedError",
    "BackupKeyMismatchError",
    "BackupTooNewError",
    "BudgetExhaustedError",
    "CallFailedError",
    "CallerError",
    "CheckpointNotFoundError",
    "ChunkTooLargeError",
    "ConflictError",
    "ContextTooLongError",
    "DBOSInUseError",
    "DefinitionError",
    "DeliveryNotFoundError",
    "DepsNotOpenedError",
    "ExecutorClosedError",
    "FlowChangedError",
    "FlowFailedError",
    "FlowInputError",
    "FlowStuckError",
    "ForeignFileError",
    "HelixError",
    "IncompleteStoreError",
    "InvalidIdError",
    "InvalidInputError",
    "InvalidPageError",
    "InvalidStateError",
    "InvalidStoreUrlError",
    "InvalidWriteError",
    "LockHeldError",
    "LockLostError",
    "MCPProtocolError",
    "MCPRefusedError",
    "MCPServerError",
    "MCPUnauthorizedError",
    "MCPUnavailableError",
    "MemoryChangedError",
    "MemoryNotFoundError",
    "MissingExtraError",
    "ModeIsWriteOnceError",
    "ModelError",
    "ModelOverloadedError",
    "ModelRefusedError",
    "ModelUnavailableError",
    "NotARootSessionError",
    "NotTheOwnerError",
    "NothingToResumeError",
    "NothingToRetryError",
    "OtherEventLoopError",
    "PathRefusedError",
    "PriceUnknownError",
    "QueueFullError",
    "QueuedTurnDroppedError",
    "QueuedTurnGoneError",
    "RecordTooNewError",
    "RemoteAgentError",
    "RemoteProtocolError",
    "RemoteRefusedError",
    "RemoteSubAgentClientToolUnsupportedError",
    "RemoteSubAgentLostError",
    "RemoteUnavailableError",
    "RunAlreadyExistsError",
    "RunConflictError",
    "RunNotCompletedError",
    "RunNotFoundError",
    "RuntimeUnavailableError",
    "ScheduleChangedError",
    "ScheduleNotFoundError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "SessionAlreadyExistsError",
    "SessionCorruptError",
    "SessionNotFoundError",
    "SetupError",
    "SkillSourceError",
    "SkillsError",
    "SkillsUnavailableError",
    "StaleStateError",
    "StateSchemaChangedError",
    "StateSizeExceededError",
    "StillWaitingError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreNotOpenedError",
    "StoreReadOnlyError",
    "StoreReplacedError",
    "StoreUnavailableError",
    "StreamFailedError",
    "SupersededError",
    "ToolInputError",
    "ToolOutputError",
    "UnknownAgentError",
    "UnknownBackendError",
    "UnknownModelError",
    "UnsafeRedisError",
    "UnsafeSQLiteError",
    "UnstorableValueError",
    "UnsupportedBackendError",
    "VaultAlreadyExistsError",
    "VaultDamagedError",
    "VaultError",
    "VaultFileError",
    "VaultLockedError",
    "VaultNotInitialisedError",
    "WeakPassphraseError",
    "WorkspaceError",
    "WorkspaceFailedError",
    "WorkspaceFileError",
    "WrongPassphraseError",
]

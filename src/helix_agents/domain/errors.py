"""Every error a user of this library can meet, grouped by who has to act.

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
│   ├── ModeIsWriteOnceError
│   ├── NotARootSessionError
│   ├── AgentMismatchError
│   ├── NothingToResumeError
│   ├── NothingToRetryError
│   ├── StillWaitingError
│   ├── RunNotCompletedError
│   ├── QueueFullError
│   ├── QueuedTurnDroppedError
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
├── ConflictError                  somebody else was first: read again, decide again
│   ├── AgentAlreadyRunningError
│   ├── QueuedTurnGoneError
│   ├── StaleStateError
│   ├── MemoryChangedError
│   ├── RunConflictError
│   ├── SupersededError
│   ├── LockHeldError
│   └── LockLostError
├── SetupError                     fix the configuration or the installation
│   ├── DefinitionError
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
│   ├── ForeignFileError           the file holds what another application keeps
│   ├── UnsafeRedisError
│   ├── SchemaTooOldError
│   ├── SchemaTooNewError
│   └── RecordTooNewError
├── ModelError                     the model or its provider did not answer as needed
│   ├── ModelOverloadedError       rate limits and overload: worth asking again
│   ├── ModelUnavailableError      network, time-outs, server errors: worth asking again
│   ├── ModelRefusedError          the provider refused the request as it is
│   └── ContextTooLongError        the history no longer fits
├── VaultError                     an operator looks after the vault and its backups
│   ├── VaultNotInitialisedError
│   ├── VaultAlreadyExistsError
│   ├── VaultLockedError
│   ├── VaultDamagedError
│   ├── VaultFileError             the file system refused: space, permissions, a folder that is not there
│   ├── WrongPassphraseError
│   ├── AuditBrokenError           the audit log is no chain any more
│   ├── BackupDamagedError
│   ├── BackupKeyMismatchError
│   ├── BackupTooNewError
│   └── PathRefusedError           a link, a file that is there already, a place outside the allowed folders
├── SkillsError                    look after whoever provides skills
│   ├── SkillsUnavailableError     nobody says which there are: worth asking again
│   └── SkillSourceError           where they are fetched from does not give them
├── RuntimeUnavailableError        look after the durable engine
├── RemoteAgentError               look after the service behind a remote sub-agent
│   ├── RemoteUnavailableError     it does not answer: worth asking again
│   ├── RemoteRefusedError         it refused the request as it is
│   ├── RemoteProtocolError        it answered what no agent server says
│   ├── RemoteSubAgentLostError    nobody knows what became of the sub-agent
│   └── RemoteSubAgentClientToolUnsupportedError
├── MCPServerError                 look after the MCP server behind tools
│   ├── MCPUnavailableError        it does not answer: worth asking again
│   ├── MCPRefusedError            it refused the request as it is
│   └── MCPProtocolError           it answered what no MCP server says
└── StoreError                     look after the store
    ├── StoreUnavailableError
    │   ├── StoreNotOpenedError    it is not there, or not for this process
    │   └── StoreReplacedError     its file was deleted, moved or replaced while it was open
    ├── StoreFullError
    ├── StoreReadOnlyError
    ├── StoreCorruptError
    ├── SessionCorruptError
    └── StoreClosedError

Fields travel in `args`, so every error survives pickling; `code` is stable and safe to match on.
"""

from typing import Any, ClassVar, dataclass_transform


@dataclass_transform()
class _FieldsError(Exception):
    """Turns the annotated fields of a subclass into positional or keyword arguments."""

    _field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = tuple(
            name for name, kind in cls.__dict__.get("__annotations__", {}).items() if "ClassVar" not in str(kind)
        )
        cls._field_names = cls._field_names + own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = self._field_names
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or values.keys() & kwargs.keys() or kwargs.keys() - set(names):
            raise TypeError(f"{type(self).__name__} takes {names}, got {args} and {kwargs}")
        values.update(kwargs)
        for name in names:
            if name not in values:
                if not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__} lacks {name!r}")
                values[name] = getattr(type(self), name)
            setattr(self, name, values[name])
        super().__init__(*(values[name] for name in names))


class HelixError(_FieldsError):
    """The root of all errors of this library."""

    code: ClassVar[str] = "helix_error"
    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        return (self.__doc__ or self.code).partition("\n")[0]


# ---------------------------------------------------------------------------------------------------------
# Change the call
# ---------------------------------------------------------------------------------------------------------


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
        return f"This is not a valid {self.state_type} state: {self.problem}. Nothing was stored."


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


# ---------------------------------------------------------------------------------------------------------
# Somebody else was first
# ---------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------
# Fix the set-up
# ---------------------------------------------------------------------------------------------------------


class SetupError(HelixError):
    """Configuration or installation does not fit."""

    code = "setup_error"


class DefinitionError(SetupError):
    """An agent, a tool or a set of hooks is defined in a way that cannot work."""

    code = "invalid_definition"
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"


class UnknownAgentError(SetupError):
    """No agent of this name is registered in this process."""

    code = "unknown_agent"
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"No agent named {self.name!r} is registered here; known: {', '.join(self.known) or 'none'}. "
            "Register it before its sessions are run or recovered."
        )


class StateSchemaChangedError(SetupError):
    """Stored state does not fit the agent's present state type. Nothing was written."""

    code = "state_schema_changed"
    agent: str
    version: int
    stored_version: int
    problem: str

    def __str__(self) -> str:
        return (
            f"State stored by version {self.stored_version} of agent {self.agent!r} does not fit version "
            f"{self.version}: {self.problem}. Give the agent a migrate_state=(old, from_version) -> new that "
            "makes it fit; nothing was written, so a fixed deploy can go on."
        )


class DepsNotOpenedError(SetupError):
    """A tool takes what an executor's `deps` open, and nothing opens it here. Nothing was written."""

    code = "deps_not_opened"
    agent: str
    tool: str
    deps: str

    def __str__(self) -> str:
        return (
            f"Agent {self.agent!r} cannot run here: its tool {self.tool!r} takes a {self.deps} as ctx.deps, and "
            "nothing opens one. Write Executor.open(…, deps=…), or --deps module:name on a command line. For a tool "
            f"that can do without, annotate ToolContext[…, {self.deps} | None]."
        )


class UnknownBackendError(SetupError):
    """No installed backend answers to this URL's scheme."""

    code = "unknown_backend"
    scheme: str
    known: tuple[str, ...]
    meant: str | None = None

    def __str__(self) -> str:
        hint = f" Did you mean '{self.meant}://'?" if self.meant is not None else ""
        return f"No backend is installed for {self.scheme!r} URLs; known: {', '.join(self.known) or 'none'}.{hint}"


class UnsupportedBackendError(SetupError):
    """A backend has no place for something."""

    code = "unsupported_backend"
    scheme: str
    what: str

    def __str__(self) -> str:
        return f"{self.scheme}:// has no place for {self.what}; use sqlite:///…, postgresql://… or memory://."


# Whose a model probably is that is named without saying so.
_PROVIDERS = {"gpt": "openai", "gem": "google"}


class UnknownModelError(SetupError):
    """No installed model provider answers to this name's prefix."""

    code = "unknown_model"
    name: str
    known: tuple[str, ...]
    meant: str | None = None

    def __str__(self) -> str:
        prefix, colon, model = self.name.partition(":")
        known = ", ".join(f"{each}:" for each in self.known) or "none"
        if prefix in self.known:
            return f"{self.name!r} does not say which model; write '{prefix}:NAME'. Known prefixes: {known}."
        if not prefix:
            return f"{self.name!r} names no model; write whose it is and its name. Known prefixes: {known}."
        if not colon or not model:
            whose = _PROVIDERS.get(prefix[:3].lower(), "anthropic")
            return f"{self.name!r} does not say whose model it is; write '{whose}:{prefix}'. Known prefixes: {known}."
        hint = f" Did you mean '{self.meant}:{model}'?" if self.meant is not None else ""
        return f"No provider is installed for {prefix!r} models; known prefixes: {known}.{hint}"


class InvalidStoreUrlError(SetupError):
    """A store URL cannot be read."""

    code = "invalid_store_url"
    url: str
    reason: str

    def __str__(self) -> str:
        return f"Store URL {self.url!r} cannot be used: {self.reason.rstrip('.')}."


class MissingExtraError(SetupError):
    """An optional dependency is not installed."""

    code = "missing_extra"
    feature: str
    extra: str

    def __str__(self) -> str:
        return f"{self.feature} needs an optional dependency: pip install 'helix-agents[{self.extra}]'"


class DBOSInUseError(SetupError):
    """A process has one DBOS, and this one runs in another way than an executor needs."""

    code = "dbos_in_use"
    reason: str

    def __str__(self) -> str:
        return (
            f"This process runs DBOS already, and there is one per process: {self.reason}. Open executors that agree, "
            "or use a process of its own."
        )


class IncompleteStoreError(SetupError):
    """A store lacks operations the engine needs."""

    code = "incomplete_store"
    store: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.store} lacks {', '.join(self.missing)}; an executor cannot run on half a store."


class UnsafeSQLiteError(SetupError):
    """The linked SQLite library can corrupt a database in WAL mode."""

    code = "unsafe_sqlite"
    found: str
    needed: str

    def __str__(self) -> str:
        return (
            f"SQLite {self.found} can corrupt a database that several connections write; "
            f"{self.needed} or newer is needed. Cure: pip install --upgrade apsw"
        )


class ForeignFileError(SetupError):
    """The file named as a store is a database of another application. Nothing was written to it."""

    code = "foreign_file"
    file: str
    tables: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.tables[:3]) + (", …" if len(self.tables) > 3 else "")
        return (
            f"{self.file} belongs to another application: it has tables ({names}) and none of a store. Name another "
            "file, which is made on first use; or, to keep both in this one, add shared=true to the URL: "
            "sqlite:///…?shared=true"
        )


class UnsafeRedisError(SetupError):
    """The Redis server cannot be trusted with what must not be lost."""

    code = "unsafe_redis"
    found: str
    cure: str

    def __str__(self) -> str:
        return f"This Redis server has {self.found} and could lose sessions silently: {self.cure}."


class SchemaTooOldError(SetupError):
    """The store's tables are older than this version needs."""

    code = "schema_too_old"
    store: str
    found: int
    needed: int

    def __str__(self) -> str:
        return (
            f"{self.store} has schema version {self.found}, this version needs {self.needed}. "
            "Run `helix migrate` before starting new code."
        )


class SchemaTooNewError(SetupError):
    """The store was migrated by a newer version of this library."""

    code = "schema_too_new"
    store: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"{self.store} has schema version {self.found}, this version knows up to {self.known}. "
            "Migrations go forward only: upgrade helix-agents here too."
        )


class RecordTooNewError(SetupError):
    """A stored record was written by a newer version of this library."""

    code = "record_too_new"
    record: str
    problem: str
    known: int

    def __str__(self) -> str:
        return (
            f"A stored {self.record} does not fit record version {self.known} ({self.problem}); "
            "it was written by a newer helix-agents. Upgrade this process; nothing was changed."
        )


# ---------------------------------------------------------------------------------------------------------
# The model did not answer
# ---------------------------------------------------------------------------------------------------------


class ModelError(HelixError):
    """A model or its provider did not answer as needed."""

    code = "provider_error"
    model: str
    reason: str
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"Model {self.model!r} gave no answer: {self.reason}"


class ModelOverloadedError(ModelError):
    """The provider limits or sheds load; `retry_after` says in seconds when it wants to be asked again."""

    code = "provider_rate_limited"
    retryable = True


class ModelUnavailableError(ModelError):
    """The provider could not be reached, took too long, or failed inside."""

    code = "provider_unavailable"
    retryable = True


class ModelRefusedError(ModelError):
    """The provider refused the request: credentials, an unknown model, or a request it cannot read."""

    code = "provider_refused"


class ContextTooLongError(ModelError):
    """The conversation is longer than the model reads."""

    code = "context_too_long"

    def __str__(self) -> str:
        return f"The conversation no longer fits model {self.model!r}: {self.reason}"


# ---------------------------------------------------------------------------------------------------------
# Look after the vault and its backups
# ---------------------------------------------------------------------------------------------------------


class VaultError(HelixError):
    """The vault, or a file it protects, needs its operator."""

    code = "vault_error"
    path: str


class VaultNotInitialisedError(VaultError):
    """There is no vault yet."""

    code = "vault_not_initialised"

    def __str__(self) -> str:
        return f"There is no vault at {self.path!r}: create it once with a passphrase, then unlock it."


class VaultAlreadyExistsError(VaultError):
    """A vault is there; a second one would make the backups of the first unreadable without its passphrase."""

    code = "vault_already_exists"

    def __str__(self) -> str:
        return f"There is a vault at {self.path!r} already: unlock it, or change its passphrase. Nothing was written."


class VaultLockedError(VaultError):
    """The vault's key is not in memory."""

    code = "vault_locked"
    reason: str = "neither this process nor its user has unlocked it"

    def __str__(self) -> str:
        return f"The vault {self.path!r} is locked ({self.reason}): an operator unlocks it with the passphrase."


class VaultDamagedError(VaultError):
    """A file of the vault is damaged or is something else."""

    code = "vault_damaged"
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} cannot be used ({self.reason}). Put a copy of it back; nothing was changed."


class VaultFileError(VaultError):
    """The file system refused; nothing was left half written."""

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
            "A backup opens with the passphrase its vault had when it was made."
        )


class AuditBrokenError(VaultError):
    """A row of the audit log does not follow the one before it, so the log's end is not worth a signature."""

    code = "audit_broken"
    seq: int

    def __str__(self) -> str:
        return (
            f"Row {self.seq} of the audit log does not follow the row before it. Nothing was signed in {self.path!r}; "
            "`helix audit verify` says what is wrong and where."
        )


class BackupDamagedError(VaultError):
    """A backup is not what was written: cut, altered, or not a backup at all."""

    code = "backup_damaged"
    reason: str

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} is not what was written ({self.reason}). "
            "Nothing of it may be used: take another copy of it, or an older backup."
        )


class BackupKeyMismatchError(VaultError):
    """The backup was made by another vault."""

    code = "backup_key_mismatch"
    vault_id: str

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} was made by vault {self.vault_id!r}, not by this one: "
            "open it with the passphrase that vault had then."
        )


class BackupTooNewError(VaultError):
    """The backup was written by a newer version of this library."""

    code = "backup_too_new"
    version: int
    known: int

    def __str__(self) -> str:
        return (
            f"The backup {self.path!r} has format {self.version}, this version reads up to {self.known}: "
            "upgrade helix-agents here."
        )


class PathRefusedError(VaultError):
    """A path that is not written to or read from, whatever it holds."""

    code = "path_refused"
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} is refused: {self.reason}. Nothing was written; choose another path."


# ---------------------------------------------------------------------------------------------------------
# Look after the service behind a remote sub-agent
# ---------------------------------------------------------------------------------------------------------


class RemoteAgentError(HelixError):
    """The service behind a remote sub-agent did not do what was asked of it."""

    code = "remote_agent_error"
    url: str


class RemoteUnavailableError(RemoteAgentError):
    """The service does not answer, or asks to be asked again later."""

    code = "remote_unavailable"
    retryable = True
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not answer: {self.reason}."


class RemoteRefusedError(RemoteAgentError):
    """The service refused a request; the same request again is refused again."""

    code = "remote_refused"
    status: int
    refusal: str
    detail: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} refused ({self.status} {self.refusal}): {self.detail}"


class RemoteProtocolError(RemoteAgentError):
    """The service answered something that no agent server says, or more than is taken from one."""

    code = "remote_protocol"
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not keep to the protocol: {self.reason}."


class RemoteSubAgentLostError(RemoteAgentError):
    """A remote sub-agent whose end nobody will learn."""

    code = "framework_subagent_lost"
    session_id: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} at {self.url} is lost ({self.cause}): what it did so far, "
            "or whether it still works, is not known here."
        )


class RemoteSubAgentClientToolUnsupportedError(RemoteAgentError):
    """A remote sub-agent waits for somebody, and its service takes no answers."""

    code = "client-tool-unsupported"
    session_id: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} waits for an answer, but the service at {self.url} takes none "
            "through its transport; use one that routes answers, or give that agent no client tools and approvals."
        )


# ---------------------------------------------------------------------------------------------------------
# Look after the MCP server behind tools
# ---------------------------------------------------------------------------------------------------------


class MCPServerError(HelixError):
    """An MCP server did not do what was asked of it."""

    code = "mcp_server_error"
    server: str
    reason: str


class MCPUnavailableError(MCPServerError):
    """The server does not answer, cannot be started, or went away."""

    code = "mcp_unavailable"
    retryable = True

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not answer: {self.reason}."


class MCPRefusedError(MCPServerError):
    """The server refused a request; the same request again is refused again."""

    code = "mcp_refused"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} refused: {self.reason}"


class MCPProtocolError(MCPServerError):
    """The server answered something that no MCP server says, or speaks no version of the protocol known here."""

    code = "mcp_protocol"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not keep to the protocol: {self.reason}."


# ---------------------------------------------------------------------------------------------------------
# Look after whoever provides skills
# ---------------------------------------------------------------------------------------------------------


class SkillsError(HelixError):
    """The skills of an agent cannot be listed."""

    code = "skills_error"


class SkillsUnavailableError(SkillsError):
    """An agent's skills could not be listed, so its model was asked nothing; a retry asks for them again."""

    code = "skills_unavailable"
    retryable = True
    agent: str
    reason: str

    def __str__(self) -> str:
        return f"The skills of agent {self.agent!r} cannot be listed: {self.reason}"


class SkillSourceError(SkillsError):
    """The source of an entry in a manifest of skills does not give what it should."""

    code = "skill_source"
    entry: str
    reason: str

    def __str__(self) -> str:
        return f"Skills {self.entry!r} cannot be fetched: {self.reason}."


# ---------------------------------------------------------------------------------------------------------
# Look after the store
# ---------------------------------------------------------------------------------------------------------


class StoreError(HelixError):
    """The store itself has a problem."""

    code = "store_error"


class RuntimeUnavailableError(HelixError):
    """The server of a durable engine did not answer; runs that were started rest in the store."""

    code = "runtime_unavailable"
    retryable = True
    engine: str
    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine} at {self.address} is not answering: {self.reason}. Check address and server."


class StoreUnavailableError(StoreError):
    """The store did not answer; a write may or may not have happened."""

    code = "store_unavailable"
    retryable = True
    store: str
    reason: str

    def __str__(self) -> str:
        reason = self.reason.rstrip(".")
        return f"{self.store} is not answering: {reason}. Try again; check the store if it stays so."


class StoreNotOpenedError(StoreUnavailableError):
    """The store is not where its URL says, or this process may not open it."""

    cure: str

    def __str__(self) -> str:
        return f"{self.store} cannot be opened: {self.reason}. {self.cure}."


class StoreReplacedError(StoreUnavailableError):
    """The file of the store was deleted, moved or replaced while this process had it open."""

    def __str__(self) -> str:
        return (
            f"{self.store} is no longer the file this process has open: {self.reason}. What is written now would be "
            "lost, so nothing is. Put the file back, or start the process again to go on with what is there now."
        )


class StoreFullError(StoreError):
    """No space is left; the write was rolled back."""

    code = "store_full"
    retryable = True
    store: str

    def __str__(self) -> str:
        return f"{self.store} has no space left. The write was rolled back and nothing was lost; free some space."


class StoreReadOnlyError(StoreError):
    """The store cannot be written."""

    code = "store_read_only"
    store: str
    cure: str = "check the permissions of the file and of its folder"

    def __str__(self) -> str:
        return f"{self.store} is read-only: {self.cure}."


class StoreCorruptError(StoreError):
    """The store's file is damaged or is something else."""

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
        return f"A stored {self.record} cannot be read: {self.problem}. The session was left as it is."


class StoreClosedError(StoreError):
    """The store was closed."""

    code = "store_closed"
    store: str

    def __str__(self) -> str:
        return f"{self.store} was closed; open it again to use it."

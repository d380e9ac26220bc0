"""Errors whose cure is another configuration, installation or agent definition."""

from helix_agents.domain.errors.root import HelixError


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


class PriceUnknownError(SetupError):
    """A budget is in dollars, and a model was asked that nobody knows the price of."""

    code = "price_unknown"
    agent: str
    model: str

    def __str__(self) -> str:
        return (
            f"The budget of {self.agent!r} is in dollars, and nobody knows what model {self.model!r} costs that was "
            "asked; give the agent that asks it prices=…, a function of the model's name and its tokens."
        )


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

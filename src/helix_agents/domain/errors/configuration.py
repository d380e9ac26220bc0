"""Errors that you fix in the configuration, the installation or an agent definition."""

from helix_agents.domain.errors.root import HelixError


class SetupError(HelixError):
    """The configuration, the installation or an agent definition has to be fixed."""

    code = "setup_error"


class DefinitionError(SetupError):
    """An agent, a tool or a set of hooks is defined in a way that cannot work."""

    code = "invalid_definition"
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"


class PriceUnknownError(SetupError):
    """A budget is in dollars, but the price of a model that was called is unknown."""

    code = "price_unknown"
    agent: str
    model: str

    def __str__(self) -> str:
        return (
            f"The budget of {self.agent!r} is in dollars, but the price of model {self.model!r}, which was called, is "
            "unknown. Give the agent that calls it prices=…, a function of the model's name and its tokens."
        )


class UnknownAgentError(SetupError):
    """No agent of this name is registered in this process."""

    code = "unknown_agent"
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"No agent named {self.name!r} is registered here; known: {', '.join(self.known) or 'none'}. "
            "Register it before you run or recover its sessions."
        )


class StateSchemaChangedError(SetupError):
    """Stored state does not fit the agent's current state type. Nothing was written."""

    code = "state_schema_changed"
    agent: str
    version: int
    stored_version: int
    problem: str

    def __str__(self) -> str:
        return (
            f"State stored by version {self.stored_version} of agent {self.agent!r} does not fit version "
            f"{self.version}: {self.problem}. Give the agent migrate_state=…, a function (old, from_version) -> new "
            "that converts it. Nothing was written, so a fixed deploy can continue the session."
        )


class DepsNotOpenedError(SetupError):
    """A tool needs `ctx.deps`, but the executor was opened without `deps`. Nothing was written."""

    code = "deps_not_opened"
    agent: str
    tool: str
    deps: str

    def __str__(self) -> str:
        return (
            f"Agent {self.agent!r} cannot run here: its tool {self.tool!r} needs a {self.deps} as ctx.deps, and "
            "nothing here provides one. Use Executor.open(…, deps=…), or --deps module:name on the command line. If "
            f"the tool also works without it, annotate its context as ToolContext[…, {self.deps} | None]."
        )


class UnknownBackendError(SetupError):
    """No installed backend handles this URL's scheme."""

    code = "unknown_backend"
    scheme: str
    known: tuple[str, ...]
    meant: str | None = None

    def __str__(self) -> str:
        hint = f" Did you mean '{self.meant}://'?" if self.meant is not None else ""
        return f"No backend is installed for {self.scheme!r} URLs; known: {', '.join(self.known) or 'none'}.{hint}"


class UnsupportedBackendError(SetupError):
    """The backend does not support what was asked of it."""

    code = "unsupported_backend"
    scheme: str
    what: str

    def __str__(self) -> str:
        return f"{self.scheme}:// does not support {self.what}; use sqlite:///…, postgresql://… or memory://."


# The likely provider of a model that is named without one.
_PROVIDERS = {"gpt": "openai", "gem": "google", "mis": "mistral", "dee": "deepseek", "qwe": "ollama", "lla": "ollama"}


class UnknownModelError(SetupError):
    """No installed model provider handles the prefix of this name."""

    code = "unknown_model"
    name: str
    known: tuple[str, ...]
    meant: str | None = None

    def __str__(self) -> str:
        prefix, colon, model = self.name.partition(":")
        known = ", ".join(f"{each}:" for each in self.known) or "none"
        if prefix in self.known:
            return f"{self.name!r} names no model after its prefix; write '{prefix}:NAME'. Known prefixes: {known}."
        if not prefix:
            return f"{self.name!r} names no model; write 'PREFIX:NAME'. Known prefixes: {known}."
        if not colon or not model:
            whose = _PROVIDERS.get(prefix[:3].lower(), "anthropic")
            return f"{self.name!r} does not name its provider; write '{whose}:{prefix}'. Known prefixes: {known}."
        hint = f" Did you mean '{self.meant}:{model}'?" if self.meant is not None else ""
        return f"No provider is installed for {prefix!r} models; known prefixes: {known}.{hint}"


class InvalidStoreUrlError(SetupError):
    """A store URL cannot be used."""

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
    """This process already runs DBOS with settings that the executor cannot use; a process can run only one."""

    code = "dbos_in_use"
    reason: str

    def __str__(self) -> str:
        return (
            f"This process already runs DBOS, and there can be only one per process: {self.reason}. Open executors "
            "with matching settings, or use a separate process."
        )


class IncompleteStoreError(SetupError):
    """The store lacks operations that the engine needs."""

    code = "incomplete_store"
    store: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.store} lacks {', '.join(self.missing)}, so an executor cannot run on it."


class UnsafeSQLiteError(SetupError):
    """The linked SQLite library can corrupt a database in WAL mode."""

    code = "unsafe_sqlite"
    found: str
    needed: str

    def __str__(self) -> str:
        return (
            f"SQLite {self.found} can corrupt a database that several connections write to; "
            f"{self.needed} or newer is needed. To fix this: pip install --upgrade apsw"
        )


class ForeignFileError(SetupError):
    """The file given as a store is another application's database. Nothing was written to it."""

    code = "foreign_file"
    file: str
    tables: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(self.tables[:3]) + (", …" if len(self.tables) > 3 else "")
        return (
            f"{self.file} belongs to another application: it has tables ({names}), but none of a store's. Name another "
            "file, which is created on first use. To keep both in this file, add shared=true to the URL: "
            "sqlite:///…?shared=true"
        )


class UnsafeRedisError(SetupError):
    """The version or the configuration of the Redis server could lose data."""

    code = "unsafe_redis"
    found: str
    cure: str

    def __str__(self) -> str:
        return f"This Redis server has {self.found} and could lose sessions silently: {self.cure}."


class SchemaTooOldError(SetupError):
    """The store's tables are older than this version of the library needs."""

    code = "schema_too_old"
    store: str
    found: int
    needed: int

    def __str__(self) -> str:
        return (
            f"{self.store} has schema version {self.found}, but this version of helix-agents needs {self.needed}. "
            "Run `helix migrate` before you start the new code."
        )


class SchemaTooNewError(SetupError):
    """The store was migrated by a newer version of this library."""

    code = "schema_too_new"
    store: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"{self.store} has schema version {self.found}, but this version of helix-agents supports at most "
            f"{self.known}. Migrations cannot be undone: upgrade helix-agents here too."
        )


class RecordTooNewError(SetupError):
    """A stored record was written by a newer version of this library."""

    code = "record_too_new"
    record: str
    problem: str
    known: int

    def __str__(self) -> str:
        return (
            f"A stored {self.record} does not fit record version {self.known} ({self.problem}): "
            "a newer version of helix-agents wrote it. Upgrade helix-agents in this process; nothing was changed."
        )

-- The data of the state capabilities. A namespace's head has the last revision, the end of the audit chain, and the
-- revision up to which events were removed; its epoch counts restores.
CREATE TABLE __agents_entry_heads (
    namespace  TEXT    PRIMARY KEY,
    store_id   TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    compacted  INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    audit_seq  INTEGER NOT NULL,
    audit_hash TEXT    NOT NULL
) WITHOUT ROWID;

-- A deleted key stays as a row without a value, so that its version keeps counting. The value is the last column, so
-- that listings read what is before it and leave its pages alone.
CREATE TABLE __agents_entries (
    namespace     TEXT    NOT NULL,
    scope         TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    size          INTEGER NOT NULL,
    history_bytes INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    owner         TEXT    NOT NULL,
    mark          INTEGER,
    lives         INTEGER NOT NULL,
    value         TEXT,
    PRIMARY KEY (namespace, scope, key)
) WITHOUT ROWID;

-- Versions before the present one.
CREATE TABLE __agents_entry_versions (
    namespace  TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    owner      TEXT    NOT NULL,
    mark       INTEGER,
    value      TEXT,
    PRIMARY KEY (namespace, scope, key, version)
) WITHOUT ROWID;

CREATE TABLE __agents_entry_usage (
    namespace TEXT    NOT NULL,
    scope     TEXT    NOT NULL,
    keys      INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    revision  INTEGER NOT NULL,
    PRIMARY KEY (namespace, scope)
) WITHOUT ROWID;

CREATE TABLE __agents_entry_events (
    namespace TEXT    NOT NULL,
    revision  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    scope     TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    operation TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    PRIMARY KEY (namespace, revision, position)
) WITHOUT ROWID;

CREATE TABLE __agents_audit (
    namespace TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    entry     TEXT    NOT NULL,
    previous  TEXT    NOT NULL,
    hash      TEXT    NOT NULL,
    PRIMARY KEY (namespace, seq)
) WITHOUT ROWID;

-- Staged rows of a backup that is being restored.
CREATE TABLE __agents_entry_staging (
    namespace  TEXT    NOT NULL,
    restore_id TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    body       TEXT    NOT NULL,
    PRIMARY KEY (namespace, restore_id, scope, key, version)
) WITHOUT ROWID;

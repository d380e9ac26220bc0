-- Keys of the logs (messages, state, checkpoints, chunks) are one integer: the log's number in the upper bits, the
-- position in it in the lower 32. A log is then contiguous on disk and needs no second index.

-- A stretch of history. Numbers up to its boundaries belong to the parent's chain, numbers above to the segment itself.
-- A segment that is no longer owned lives on for the branches that see it.
CREATE TABLE __agents_segments (
    segment          INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace        TEXT    NOT NULL,
    session_id       TEXT    NOT NULL,
    owned            INTEGER NOT NULL DEFAULT 1,
    parent           INTEGER,
    message_boundary INTEGER NOT NULL DEFAULT 0,
    state_boundary   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX __agents_segments_by_session ON __agents_segments (namespace, session_id);
CREATE INDEX __agents_segments_by_parent ON __agents_segments (parent) WHERE parent IS NOT NULL;

CREATE TABLE __agents_messages (
    id         INTEGER PRIMARY KEY,
    session_id TEXT    NOT NULL,
    sequence   INTEGER NOT NULL GENERATED ALWAYS AS (id & 4294967295) VIRTUAL,
    created_at INTEGER NOT NULL,
    body       TEXT    NOT NULL
);

-- `base` is the whole custom state after this row's writes, in rows where it was materialised.
CREATE TABLE __agents_state_log (
    id     INTEGER PRIMARY KEY,
    writes TEXT    NOT NULL,
    base   TEXT
);

-- id = segment << 32 | session version.
CREATE TABLE __agents_checkpoints (
    id              INTEGER PRIMARY KEY,
    session_id      TEXT    NOT NULL,
    run_id          TEXT,
    step_id         TEXT,
    step_count      INTEGER NOT NULL,
    status          TEXT    NOT NULL,
    message_count   INTEGER NOT NULL,
    state_count     INTEGER NOT NULL,
    has_writes      INTEGER NOT NULL,
    stream_sequence INTEGER NOT NULL,
    source          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL
);

-- run_id, attempt and running are the fence of the current run; commit_* remember its last commit.
CREATE TABLE __agents_sessions (
    key                INTEGER PRIMARY KEY,
    namespace          TEXT    NOT NULL,
    session_id         TEXT    NOT NULL,
    agent_type         TEXT    NOT NULL,
    status             TEXT    NOT NULL,
    version            INTEGER NOT NULL,
    step_count         INTEGER NOT NULL,
    resume_count       INTEGER NOT NULL,
    mode               TEXT,
    user_id            TEXT,
    parent_session_id  TEXT,
    root_session_id    TEXT    NOT NULL,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    expires_at         INTEGER,
    segment            INTEGER NOT NULL,
    message_count      INTEGER NOT NULL,
    state_count        INTEGER NOT NULL,
    state_base_bytes   INTEGER NOT NULL,
    state_since_bytes  INTEGER NOT NULL,
    checkpoint         INTEGER,
    checkpointed_at    INTEGER,
    checkpoint_source  TEXT,
    run_id             TEXT,
    attempt            INTEGER NOT NULL DEFAULT 0,
    running            INTEGER NOT NULL DEFAULT 0,
    commit_attempt     INTEGER NOT NULL DEFAULT 0,
    commit_step        INTEGER NOT NULL DEFAULT -1,
    commit_round       INTEGER NOT NULL DEFAULT -1,
    commit_checkpoint  INTEGER,
    commit_extra       TEXT,
    staged             INTEGER NOT NULL DEFAULT 0,
    tags               TEXT,
    metadata           TEXT,
    suspension_context TEXT,
    detail             TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_sessions_by_id ON __agents_sessions (namespace, session_id);
CREATE INDEX __agents_sessions_by_creation ON __agents_sessions (namespace, created_at, session_id);
CREATE INDEX __agents_sessions_by_parent ON __agents_sessions (namespace, parent_session_id)
    WHERE parent_session_id IS NOT NULL;

-- start_version and start_messages are the answer to the run's start, for a caller that never received it.
CREATE TABLE __agents_runs (
    key               INTEGER PRIMARY KEY,
    namespace         TEXT    NOT NULL,
    run_id            TEXT    NOT NULL,
    session_id        TEXT    NOT NULL,
    turn              INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    status            TEXT    NOT NULL,
    step_count        INTEGER NOT NULL,
    start_sequence    INTEGER NOT NULL,
    previous_run_id   TEXT,
    parent_run_id     TEXT,
    completion_reason TEXT,
    output            TEXT,
    error             TEXT,
    owner             TEXT,
    workflow_id       TEXT,
    call_hooks        INTEGER NOT NULL DEFAULT 0,
    started_at        INTEGER NOT NULL,
    ended_at          INTEGER,
    start_version     INTEGER,
    start_messages    INTEGER
);
CREATE UNIQUE INDEX __agents_runs_by_id ON __agents_runs (namespace, run_id);
CREATE UNIQUE INDEX __agents_runs_by_turn ON __agents_runs (namespace, session_id, turn);
CREATE INDEX __agents_runs_running ON __agents_runs (namespace, started_at) WHERE status = 'running';

CREATE TABLE __agents_leases (
    namespace  TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, owner)
) WITHOUT ROWID;

CREATE TABLE __agents_staging (
    namespace    TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    step_id      TEXT    NOT NULL,
    tool_call_id TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    staged_at    INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    PRIMARY KEY (namespace, session_id, step_id, tool_call_id)
);

CREATE TABLE __agents_sub_session_refs (
    key            INTEGER PRIMARY KEY,
    namespace      TEXT    NOT NULL,
    session_id     TEXT    NOT NULL,
    sub_session_id TEXT    NOT NULL,
    mode           TEXT    NOT NULL,
    name           TEXT,
    status         TEXT    NOT NULL,
    body           TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_sub_session_refs_by_child
    ON __agents_sub_session_refs (namespace, session_id, sub_session_id);

CREATE TABLE __agents_interrupt_flags (
    namespace  TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    reason     TEXT,
    set_at     INTEGER NOT NULL,
    PRIMARY KEY (namespace, session_id)
) WITHOUT ROWID;

-- ready_at is when an answer or a timeout arrived that no run has consumed yet.
CREATE TABLE __agents_pending_calls (
    key             INTEGER PRIMARY KEY,
    namespace       TEXT    NOT NULL,
    root_session_id TEXT    NOT NULL,
    tool_call_id    TEXT    NOT NULL,
    session_id      TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    tool_name       TEXT    NOT NULL,
    state           TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    deadline        INTEGER,
    ready_at        INTEGER,
    body            TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_pending_calls_by_id
    ON __agents_pending_calls (namespace, root_session_id, tool_call_id);
CREATE INDEX __agents_pending_calls_by_owner ON __agents_pending_calls (namespace, session_id);
CREATE INDEX __agents_pending_calls_by_state ON __agents_pending_calls (namespace, state, created_at, tool_call_id);
CREATE INDEX __agents_pending_calls_by_deadline ON __agents_pending_calls (namespace, deadline)
    WHERE state = 'waiting' AND deadline IS NOT NULL;
CREATE INDEX __agents_pending_calls_ready ON __agents_pending_calls (namespace, ready_at)
    WHERE ready_at IS NOT NULL;

CREATE TABLE __agents_effects (
    key          INTEGER PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    tool_call_id TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    body         TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_effects_by_call ON __agents_effects (namespace, session_id, tool_call_id);

CREATE TABLE __agents_usage (
    key             INTEGER PRIMARY KEY,
    namespace       TEXT    NOT NULL,
    session_id      TEXT    NOT NULL,
    root_session_id TEXT    NOT NULL,
    run_id          TEXT    NOT NULL,
    attempt         INTEGER NOT NULL,
    step            INTEGER NOT NULL,
    n               INTEGER NOT NULL,
    source_type     TEXT    NOT NULL,
    source_name     TEXT    NOT NULL,
    user_id         TEXT,
    agent_type      TEXT,
    recorded_at     INTEGER NOT NULL,
    body            TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_usage_once ON __agents_usage (namespace, run_id, attempt, step, n);
CREATE INDEX __agents_usage_by_root ON __agents_usage (namespace, root_session_id, recorded_at);

CREATE TABLE __agents_locks (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    owner      TEXT,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

-- Keys are not reused, so that a reader of a deleted stream cannot end up in another one.
-- top_step and top_first bound the search for chunks of a step; prunable_since is set while there is something to
-- prune.
CREATE TABLE __agents_streams (
    key            INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace      TEXT    NOT NULL,
    stream_id      TEXT    NOT NULL,
    agent_type     TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    run_id         TEXT    NOT NULL,
    turn           INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    writer         INTEGER NOT NULL,
    batch          INTEGER NOT NULL,
    latest         INTEGER NOT NULL,
    floor          INTEGER NOT NULL,
    count          INTEGER NOT NULL,
    max_chunks     INTEGER,
    committed      INTEGER NOT NULL,
    top_step       INTEGER NOT NULL,
    top_first      INTEGER NOT NULL,
    prunable_since INTEGER,
    end_status     TEXT,
    output         TEXT,
    error          TEXT,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL
);
CREATE UNIQUE INDEX __agents_streams_by_id ON __agents_streams (namespace, stream_id);
CREATE INDEX __agents_streams_prunable ON __agents_streams (namespace, prunable_since)
    WHERE prunable_since IS NOT NULL;

-- id = stream key << 32 | sequence; the body is the chunk without its sequence.
CREATE TABLE __agents_stream_chunks (
    id       INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL GENERATED ALWAYS AS (id & 4294967295) VIRTUAL,
    run_id   TEXT    NOT NULL,
    step     INTEGER NOT NULL,
    type     TEXT    NOT NULL,
    body     TEXT    NOT NULL
);

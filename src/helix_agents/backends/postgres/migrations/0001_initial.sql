-- Every name that starts with __agents_ is put into the schema the store was opened with. Ids compare byte by byte
-- (COLLATE "C"), so that pages are in the same order on every server.
--
-- Keys of the logs (messages, state, checkpoints, chunks) are one integer: the log's number in the upper bits, the
-- position in it in the lower 32. A log is then one range of its only index.

-- A stretch of history. Numbers up to its boundaries belong to the parent's chain, numbers above to the segment itself.
-- A segment that is no longer owned lives on for the branches that see it.
CREATE TABLE __agents_segments (
    segment          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace        text COLLATE "C" NOT NULL,
    session_id       text COLLATE "C" NOT NULL,
    owned            boolean NOT NULL DEFAULT true,
    parent           bigint,
    message_boundary bigint NOT NULL DEFAULT 0,
    state_boundary   bigint NOT NULL DEFAULT 0
);
CREATE INDEX agents_segments_by_session ON __agents_segments (namespace, session_id);
CREATE INDEX agents_segments_by_parent ON __agents_segments (parent) WHERE parent IS NOT NULL;

CREATE TABLE __agents_messages (
    id         bigint PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    sequence   bigint NOT NULL GENERATED ALWAYS AS (id & 4294967295) STORED,
    created_at bigint NOT NULL,
    body       text NOT NULL
);

-- `base` is the whole custom state after this row's writes, in rows where it was materialised.
CREATE TABLE __agents_state_log (
    id     bigint PRIMARY KEY,
    writes text NOT NULL,
    base   text
);
CREATE INDEX agents_state_log_bases ON __agents_state_log (id) WHERE base IS NOT NULL;

-- id = segment << 32 | session version.
CREATE TABLE __agents_checkpoints (
    id              bigint PRIMARY KEY,
    session_id      text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C",
    step_id         text COLLATE "C",
    step_count      bigint NOT NULL,
    status          text NOT NULL,
    message_count   bigint NOT NULL,
    state_count     bigint NOT NULL,
    has_writes      boolean NOT NULL,
    stream_sequence bigint NOT NULL,
    source          text NOT NULL,
    created_at      bigint NOT NULL
);

-- run_id, attempt and running are the fence of the current run; commit_* remember its last commit. `suspension` is the
-- record as it was written; `suspension_context` is the same for queries in SQL, where JSON may not hold a zero
-- character. `labels` are the tags and metadata as JSON, for one index over both. A step changes no indexed column, so
-- the row is rewritten within its page as long as there is room.
CREATE TABLE __agents_sessions (
    namespace          text COLLATE "C" NOT NULL,
    session_id         text COLLATE "C" NOT NULL,
    agent_type         text NOT NULL,
    status             text NOT NULL,
    version            bigint NOT NULL,
    step_count         bigint NOT NULL,
    resume_count       bigint NOT NULL,
    mode               text,
    user_id            text COLLATE "C",
    parent_session_id  text COLLATE "C",
    root_session_id    text COLLATE "C" NOT NULL,
    created_at         bigint NOT NULL,
    updated_at         bigint NOT NULL,
    expires_at         bigint,
    segment            bigint NOT NULL,
    message_count      bigint NOT NULL,
    state_count        bigint NOT NULL,
    state_base_bytes   bigint NOT NULL,
    state_since_bytes  bigint NOT NULL,
    checkpoint         bigint,
    checkpointed_at    bigint,
    checkpoint_source  text,
    run_id             text COLLATE "C",
    attempt            bigint NOT NULL DEFAULT 0,
    running            boolean NOT NULL DEFAULT false,
    commit_attempt     bigint NOT NULL DEFAULT 0,
    commit_step        bigint NOT NULL DEFAULT -1,
    commit_round       bigint NOT NULL DEFAULT -1,
    commit_checkpoint  bigint,
    commit_extra       text,
    tags               text,
    metadata           text,
    labels             text[] COLLATE "C" NOT NULL DEFAULT '{}',
    suspension         text,
    suspension_context jsonb GENERATED ALWAYS AS (replace(suspension, '\u0000', '\ufffd')::jsonb) STORED,
    detail             text NOT NULL,
    PRIMARY KEY (namespace, session_id)
) WITH (fillfactor = 60);
CREATE INDEX agents_sessions_by_creation ON __agents_sessions (namespace, created_at, session_id);
CREATE INDEX agents_sessions_by_user ON __agents_sessions (namespace, user_id, created_at, session_id)
    WHERE user_id IS NOT NULL;
CREATE INDEX agents_sessions_by_parent ON __agents_sessions (namespace, parent_session_id)
    WHERE parent_session_id IS NOT NULL;
CREATE INDEX agents_sessions_by_expiry ON __agents_sessions (namespace, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX agents_sessions_by_label ON __agents_sessions USING gin (labels);
CREATE INDEX agents_sessions_suspended ON __agents_sessions USING gin (suspension_context jsonb_path_ops)
    WHERE suspension_context IS NOT NULL;

-- completion_reason, output and error are JSON. start_version and start_messages are the answer to the run's start, for
-- a caller that never received it.
CREATE TABLE __agents_runs (
    namespace         text COLLATE "C" NOT NULL,
    run_id            text COLLATE "C" NOT NULL,
    session_id        text COLLATE "C" NOT NULL,
    turn              bigint NOT NULL,
    attempt           bigint NOT NULL,
    status            text NOT NULL,
    step_count        bigint NOT NULL,
    start_sequence    bigint NOT NULL,
    previous_run_id   text COLLATE "C",
    parent_run_id     text COLLATE "C",
    completion_reason text,
    output            text,
    error             text,
    owner             text COLLATE "C",
    workflow_id       text COLLATE "C",
    call_hooks        boolean NOT NULL DEFAULT false,
    started_at        bigint NOT NULL,
    ended_at          bigint,
    start_version     bigint,
    start_messages    bigint,
    PRIMARY KEY (namespace, run_id)
);
CREATE UNIQUE INDEX agents_runs_by_turn ON __agents_runs (namespace, session_id, turn);
CREATE INDEX agents_runs_running ON __agents_runs (namespace, started_at, run_id) WHERE status = 'running';

CREATE TABLE __agents_leases (
    namespace  text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (namespace, owner)
);

CREATE TABLE __agents_staging (
    namespace    text COLLATE "C" NOT NULL,
    session_id   text COLLATE "C" NOT NULL,
    step_id      text COLLATE "C" NOT NULL,
    tool_call_id text COLLATE "C" NOT NULL,
    position     bigint NOT NULL,
    staged_at    bigint NOT NULL,
    body         text NOT NULL,
    PRIMARY KEY (namespace, session_id, step_id, tool_call_id)
);
CREATE INDEX agents_staging_by_age ON __agents_staging (namespace, staged_at);

CREATE TABLE __agents_sub_session_refs (
    key            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace      text COLLATE "C" NOT NULL,
    session_id     text COLLATE "C" NOT NULL,
    sub_session_id text COLLATE "C" NOT NULL,
    mode           text NOT NULL,
    name           text,
    status         text NOT NULL,
    body           text NOT NULL
);
CREATE UNIQUE INDEX agents_sub_session_refs_by_child
    ON __agents_sub_session_refs (namespace, session_id, sub_session_id);

CREATE TABLE __agents_interrupt_flags (
    namespace  text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    kind       text NOT NULL,
    body       text NOT NULL,
    PRIMARY KEY (namespace, session_id)
);

-- ready_at is when an answer or a timeout arrived that no run has consumed yet.
CREATE TABLE __agents_pending_calls (
    namespace       text COLLATE "C" NOT NULL,
    root_session_id text COLLATE "C" NOT NULL,
    tool_call_id    text COLLATE "C" NOT NULL,
    session_id      text COLLATE "C" NOT NULL,
    kind            text NOT NULL,
    tool_name       text NOT NULL,
    state           text NOT NULL,
    created_at      bigint NOT NULL,
    deadline        bigint,
    ready_at        bigint,
    body            text NOT NULL,
    PRIMARY KEY (namespace, root_session_id, tool_call_id)
);
CREATE INDEX agents_pending_calls_by_owner ON __agents_pending_calls (namespace, session_id, tool_call_id);
CREATE INDEX agents_pending_calls_by_state ON __agents_pending_calls (namespace, state, created_at, tool_call_id);
CREATE INDEX agents_pending_calls_by_deadline ON __agents_pending_calls (namespace, deadline, tool_call_id)
    WHERE state = 'waiting' AND deadline IS NOT NULL;
CREATE INDEX agents_pending_calls_ready ON __agents_pending_calls (namespace, ready_at) WHERE ready_at IS NOT NULL;

CREATE TABLE __agents_effects (
    key          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace    text COLLATE "C" NOT NULL,
    session_id   text COLLATE "C" NOT NULL,
    tool_call_id text COLLATE "C" NOT NULL,
    state        text NOT NULL,
    body         text NOT NULL
);
CREATE UNIQUE INDEX agents_effects_by_call ON __agents_effects (namespace, session_id, tool_call_id);

CREATE TABLE __agents_usage (
    key             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace       text COLLATE "C" NOT NULL,
    session_id      text COLLATE "C" NOT NULL,
    root_session_id text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    attempt         bigint NOT NULL,
    step            bigint NOT NULL,
    n               bigint NOT NULL,
    source_type     text NOT NULL,
    source_name     text NOT NULL,
    user_id         text COLLATE "C",
    agent_type      text,
    recorded_at     bigint NOT NULL,
    body            text NOT NULL
);
CREATE UNIQUE INDEX agents_usage_once ON __agents_usage (namespace, run_id, attempt, step, n);
CREATE INDEX agents_usage_by_root ON __agents_usage (namespace, root_session_id, recorded_at);

CREATE TABLE __agents_locks (
    namespace  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    token      bigint NOT NULL,
    owner      text,
    expires_at bigint NOT NULL,
    PRIMARY KEY (namespace, key)
);

-- Keys are not reused, so that a reader of a deleted stream cannot end up in another one.
-- top_step and top_first bound the search for chunks of a step; prunable_since is set while there is something to
-- prune.
-- A stream without readers causes no notifications: watched_until says how long it has readers.
CREATE TABLE __agents_streams (
    key            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace      text COLLATE "C" NOT NULL,
    stream_id      text COLLATE "C" NOT NULL,
    agent_type     text NOT NULL,
    status         text NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    turn           bigint NOT NULL,
    attempt        bigint NOT NULL,
    writer         bigint NOT NULL,
    batch          bigint NOT NULL,
    latest         bigint NOT NULL,
    floor          bigint NOT NULL,
    count          bigint NOT NULL,
    max_chunks     bigint,
    committed      bigint NOT NULL,
    top_step       bigint NOT NULL,
    top_first      bigint NOT NULL,
    prunable_since bigint,
    end_status     text,
    output         text,
    error          text,
    created_at     bigint NOT NULL,
    updated_at     bigint NOT NULL,
    watched_until  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 60);
CREATE UNIQUE INDEX agents_streams_by_id ON __agents_streams (namespace, stream_id);
CREATE INDEX agents_streams_prunable ON __agents_streams (namespace, prunable_since)
    WHERE prunable_since IS NOT NULL;

-- id = stream key << 32 | sequence; the body is the chunk without its sequence.
CREATE TABLE __agents_stream_chunks (
    id       bigint PRIMARY KEY,
    sequence bigint NOT NULL GENERATED ALWAYS AS (id & 4294967295) STORED,
    run_id   text COLLATE "C" NOT NULL,
    step     bigint NOT NULL,
    type     text NOT NULL,
    body     text NOT NULL
);

-- The data of the state capabilities. A namespace's head has the last revision, the end of the audit chain, and the
-- revision up to which events were removed; its epoch counts restores, its commits count writes of any kind. A writer
-- locks the head, or finds it unchanged since it read it, so revisions become visible in their order. Writers notify
-- while a process waits.
CREATE TABLE __agents_entry_heads (
    namespace     text COLLATE "C" PRIMARY KEY,
    store_id      text        NOT NULL,
    revision      bigint      NOT NULL,
    compacted     bigint      NOT NULL,
    epoch         bigint      NOT NULL,
    audit_seq     bigint      NOT NULL,
    audit_hash    text        NOT NULL,
    commits       bigint      NOT NULL DEFAULT 0,
    watched_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- A deleted key stays as a row without a value, so that its version keeps counting.
CREATE TABLE __agents_entries (
    namespace     text COLLATE "C" NOT NULL,
    scope         text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    version       bigint NOT NULL,
    revision      bigint NOT NULL,
    size          bigint NOT NULL,
    history_bytes bigint NOT NULL,
    created_at    bigint NOT NULL,
    updated_at    bigint NOT NULL,
    owner         text   NOT NULL,
    mark          bigint,
    value         text,
    PRIMARY KEY (namespace, scope, key)
);

-- Versions before the present one.
CREATE TABLE __agents_entry_versions (
    namespace  text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    revision   bigint NOT NULL,
    size       bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    owner      text   NOT NULL,
    mark       bigint,
    value      text,
    PRIMARY KEY (namespace, scope, key, version)
);

CREATE TABLE __agents_entry_usage (
    namespace text COLLATE "C" NOT NULL,
    scope     text COLLATE "C" NOT NULL,
    keys      bigint NOT NULL,
    bytes     bigint NOT NULL,
    revision  bigint NOT NULL,
    PRIMARY KEY (namespace, scope)
);

CREATE TABLE __agents_entry_events (
    namespace text COLLATE "C" NOT NULL,
    revision  bigint NOT NULL,
    position  bigint NOT NULL,
    scope     text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,
    operation text   NOT NULL,
    owner     text   NOT NULL,
    at        bigint NOT NULL,
    size      bigint NOT NULL,
    PRIMARY KEY (namespace, revision, position)
);

-- The entry is text, because the chain covers every character of it.
CREATE TABLE __agents_audit (
    namespace text COLLATE "C" NOT NULL,
    seq       bigint NOT NULL,
    entry     text   NOT NULL,
    previous  text   NOT NULL,
    hash      text   NOT NULL,
    PRIMARY KEY (namespace, seq)
);

-- Staged rows of a backup that is being restored.
CREATE TABLE __agents_entry_staging (
    namespace  text COLLATE "C" NOT NULL,
    restore_id text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    body       text   NOT NULL,
    PRIMARY KEY (namespace, restore_id, scope, key, version)
);

-- Stores a plan, and moves the head. It knows no rules. False: there was a write since p_commits was read, and nothing
-- was done; NULL is for a caller that holds the head. A list that is NULL is empty.
CREATE FUNCTION __agents_write_entries(
    p_namespace text, p_commits bigint, p_revision bigint, p_epoch bigint, p_audit_seq bigint, p_audit_hash text,
    p_dropped json, p_pruned json, p_versions json, p_forgotten json, p_entries json, p_usages json, p_events json,
    p_audit json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gone record;
    watched boolean;
BEGIN
    UPDATE __agents_entry_heads SET
        revision = p_revision, epoch = p_epoch, audit_seq = p_audit_seq, audit_hash = p_audit_hash,
        commits = commits + 1
    WHERE namespace = p_namespace AND (p_commits IS NULL OR commits = p_commits)
    RETURNING watched_until > clock_timestamp() INTO watched;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Key by key, so that each is found by the index, however many rows the server believes there are.
    FOR gone IN SELECT * FROM json_to_recordset(p_dropped) AS d (scope text, key text) LOOP
        DELETE FROM __agents_entry_versions v
            WHERE v.namespace = p_namespace AND v.scope = gone.scope AND v.key = gone.key;
    END LOOP;
    FOR gone IN SELECT * FROM json_to_recordset(p_pruned) AS d (scope text, key text, version bigint) LOOP
        DELETE FROM __agents_entry_versions v
            WHERE v.namespace = p_namespace AND v.scope = gone.scope AND v.key = gone.key
                AND v.version <= gone.version;
    END LOOP;
    IF p_versions IS NOT NULL THEN
        INSERT INTO __agents_entry_versions (namespace, scope, key, version, revision, size, created_at, updated_at,
            owner, mark, value)
        SELECT p_namespace, e.scope, e.key, e.version, e.revision, e.size, e.created_at, e.updated_at, e.owner,
            e.mark, e.value
        FROM json_to_recordset(p_versions) AS e (scope text, key text, version bigint, revision bigint, size bigint,
            created_at bigint, updated_at bigint, owner text, mark bigint, value text);
    END IF;
    FOR gone IN SELECT * FROM json_to_recordset(p_forgotten) AS d (scope text, key text) LOOP
        DELETE FROM __agents_entries e
            WHERE e.namespace = p_namespace AND e.scope = gone.scope AND e.key = gone.key;
    END LOOP;
    IF p_entries IS NOT NULL THEN
        INSERT INTO __agents_entries (namespace, scope, key, version, revision, size, history_bytes, created_at,
            updated_at, owner, mark, value)
        SELECT p_namespace, e.scope, e.key, e.version, e.revision, e.size, coalesce(e.history_bytes, 0), e.created_at,
            e.updated_at, e.owner, e.mark, e.value
        FROM json_to_recordset(p_entries) AS e (scope text, key text, version bigint, revision bigint, size bigint,
            history_bytes bigint, created_at bigint, updated_at bigint, owner text, mark bigint, value text)
        ON CONFLICT (namespace, scope, key) DO UPDATE SET
            version = excluded.version, revision = excluded.revision, size = excluded.size,
            history_bytes = excluded.history_bytes, created_at = excluded.created_at,
            updated_at = excluded.updated_at, owner = excluded.owner, mark = excluded.mark, value = excluded.value;
    END IF;
    IF p_usages IS NOT NULL THEN
        INSERT INTO __agents_entry_usage (namespace, scope, keys, bytes, revision)
        SELECT p_namespace, u.scope, coalesce(u.keys, 0), coalesce(u.bytes, 0), coalesce(u.revision, 0)
        FROM json_to_recordset(p_usages) AS u (scope text, keys bigint, bytes bigint, revision bigint)
        ON CONFLICT (namespace, scope) DO UPDATE SET
            keys = excluded.keys, bytes = excluded.bytes, revision = excluded.revision;
    END IF;
    IF p_events IS NOT NULL THEN
        INSERT INTO __agents_entry_events (namespace, revision, position, scope, key, version, operation, owner, at, size)
        SELECT p_namespace, e.revision, e.position, e.scope, e.key, e.version, e.operation, e.owner, e.at,
            coalesce(e.size, 0)
        FROM json_to_recordset(p_events) AS e (revision bigint, position bigint, scope text, key text, version bigint,
            operation text, owner text, at bigint, size bigint);
    END IF;
    IF p_audit IS NOT NULL THEN
        INSERT INTO __agents_audit (namespace, seq, entry, previous, hash)
        SELECT p_namespace, a.seq, a.entry, a.previous, a.hash
        FROM json_to_recordset(p_audit) AS a (seq bigint, entry text, previous text, hash text);
    END IF;
    IF watched THEN
        PERFORM pg_notify('__agents_changes', 'entries/' || p_namespace);
    END IF;
    RETURN true;
END
$$;

-- Destroys whole scopes with their history, if they have any. It waits for a writer that holds the head; a writer that
-- has only read looks again.
CREATE FUNCTION __agents_delete_scopes(p_namespace text, p_scopes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE __agents_entry_heads SET commits = commits + 1 WHERE namespace = p_namespace
        AND EXISTS (SELECT 1 FROM __agents_entry_usage u WHERE u.namespace = p_namespace AND u.scope = ANY(p_scopes));
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM __agents_entries WHERE namespace = p_namespace AND scope = ANY(p_scopes);
    DELETE FROM __agents_entry_versions WHERE namespace = p_namespace AND scope = ANY(p_scopes);
    DELETE FROM __agents_entry_usage WHERE namespace = p_namespace AND scope = ANY(p_scopes);
END
$$;

-- A step's usage is stored in its checkpoint. Usage recorded in any other way has a row per entry.
ALTER TABLE __agents_checkpoints ADD COLUMN used TEXT;
ALTER TABLE __agents_usage RENAME TO __agents_usage_entries;
DELETE FROM __agents_usage_entries WHERE key NOT IN (
    SELECT min(key) FROM __agents_usage_entries GROUP BY namespace, session_id, run_id, attempt, step, n
);
CREATE UNIQUE INDEX __agents_usage_entries_once
    ON __agents_usage_entries (namespace, session_id, run_id, attempt, step, n);
CREATE INDEX __agents_usage_entries_by_root ON __agents_usage_entries (namespace, root_session_id);
DROP INDEX __agents_usage_of_tree;

-- All entries. The order of the joins finds those of a session, or of a tree, without scanning others.
CREATE VIEW __agents_usage AS
SELECT namespace, session_id, root_session_id, run_id, attempt, step, n, source_type, source_name, user_id, agent_type,
    recorded_at, body
FROM __agents_usage_entries
UNION ALL
SELECT sessions.namespace, sessions.session_id, sessions.root_session_id, steps.run_id,
    coalesce(steps.used ->> 'attempt', 1), steps.used ->> 'step', coalesce(entry.value ->> 'n', 0),
    entry.value ->> 'source_type', entry.value ->> 'source_name', steps.used ->> 'user_id', steps.used ->> 'agent_type',
    steps.created_at, entry.value
FROM __agents_sessions sessions
CROSS JOIN __agents_segments segments
    ON segments.namespace = sessions.namespace AND segments.session_id = sessions.session_id
CROSS JOIN __agents_checkpoints steps
    ON steps.id BETWEEN segments.segment << 32 AND segments.segment << 32 | 4294967295 AND steps.used IS NOT NULL
CROSS JOIN json_each(steps.used, '$.entries') entry
WHERE NOT EXISTS (
    SELECT 1 FROM __agents_usage_entries first
    WHERE first.namespace = sessions.namespace AND first.session_id = sessions.session_id
        AND first.run_id = steps.run_id AND first.attempt = coalesce(steps.used ->> 'attempt', 1)
        AND first.step = steps.used ->> 'step' AND first.n = coalesce(entry.value ->> 'n', 0)
);

-- Chunks stored together are one row, under the id of the last of them; their bodies name their run and step.
CREATE TABLE __agents_lean_chunks (
    id     INTEGER PRIMARY KEY,
    first  INTEGER NOT NULL,
    bodies TEXT    NOT NULL
);
INSERT INTO __agents_lean_chunks (id, first, bodies)
SELECT id, id, '[' || body || ']' FROM __agents_stream_chunks ORDER BY id;
DROP TABLE __agents_stream_chunks;
ALTER TABLE __agents_lean_chunks RENAME TO __agents_stream_chunks;

-- Queries about a tree of sessions, and about a session's usage, use an index, however many others there are. A run
-- belongs to one session, so usage entries are still unique.
CREATE INDEX agents_sessions_by_root ON __agents_sessions (namespace, root_session_id, created_at, session_id);
CREATE UNIQUE INDEX agents_usage_of_session ON __agents_usage (namespace, session_id, run_id, attempt, step, n);
DO $$
BEGIN
    EXECUTE (
        SELECT format('DROP INDEX %s.agents_usage_once', relnamespace::regnamespace)
        FROM pg_class WHERE oid = '__agents_usage'::regclass
    );
END
$$;

-- Queries about a user, a tree of sessions, or expired sessions use an index, however many other sessions there are,
-- and listings get them in order. In `expiring` the status comes first: ended sessions stay in it, and no query looks
-- for them.
CREATE INDEX __agents_sessions_by_user ON __agents_sessions (namespace, user_id, created_at, session_id)
    WHERE user_id IS NOT NULL;
DROP INDEX __agents_sessions_by_parent;
CREATE INDEX __agents_sessions_by_parent ON __agents_sessions (namespace, parent_session_id, created_at, session_id)
    WHERE parent_session_id IS NOT NULL;
CREATE INDEX __agents_sessions_by_root ON __agents_sessions (namespace, root_session_id, created_at, session_id);
CREATE INDEX __agents_sessions_expiring ON __agents_sessions (namespace, status, expires_at)
    WHERE expires_at IS NOT NULL;

-- A run belongs to one session, so entries are still unique.
CREATE UNIQUE INDEX __agents_usage_of_tree
    ON __agents_usage (namespace, root_session_id, session_id, run_id, attempt, step, n);
DROP INDEX __agents_usage_once;
DROP INDEX __agents_usage_by_root;

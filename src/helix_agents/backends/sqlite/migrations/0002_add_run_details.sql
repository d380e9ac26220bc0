-- Each turn keeps what it produced: the session's own output is that of its latest one.
ALTER TABLE __agents_runs ADD COLUMN output TEXT;
-- Whether the caller gave the run hooks, which another process does not have.
ALTER TABLE __agents_runs ADD COLUMN call_hooks INTEGER NOT NULL DEFAULT 0;

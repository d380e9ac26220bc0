-- Each turn keeps what it produced: the session's own output is that of its latest one.
ALTER TABLE __agents_runs ADD COLUMN output TEXT;

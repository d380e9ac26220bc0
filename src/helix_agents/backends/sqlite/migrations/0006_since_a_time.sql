-- What happened since a time is looked up, for a briefing: runs that ended, while those that go on have an index of their
-- own, and announced changes.
CREATE INDEX __agents_runs_ended ON __agents_runs (namespace, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX __agents_entry_events_by_time ON __agents_entry_events (namespace, at);

-- Indexes by time, for briefings: runs that ended (runs that are still going have an index of their own), and events.
CREATE INDEX __agents_runs_ended ON __agents_runs (namespace, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX __agents_entry_events_by_time ON __agents_entry_events (namespace, at);

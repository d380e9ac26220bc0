-- Messages to agents at set times; next_at is null while a schedule is paused or over.
CREATE TABLE __agents_schedules (
    namespace   TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    revision    TEXT NOT NULL,
    next_at     INTEGER,
    body        TEXT NOT NULL,
    PRIMARY KEY (namespace, schedule_id)
) WITHOUT ROWID;
CREATE INDEX __agents_schedules_by_time ON __agents_schedules (namespace, next_at) WHERE next_at IS NOT NULL;

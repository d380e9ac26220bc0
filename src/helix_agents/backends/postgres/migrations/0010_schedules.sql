-- Messages to agents at set times; next_at is null while a schedule is paused or over.
CREATE TABLE __agents_schedules (
    namespace   text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    revision    text COLLATE "C" NOT NULL,
    next_at     bigint,
    body        text NOT NULL,
    PRIMARY KEY (namespace, schedule_id)
);
CREATE INDEX agents_schedules_by_time ON __agents_schedules (namespace, next_at) WHERE next_at IS NOT NULL;

-- told is the last status of a run that webhooks were told; null if they are told nothing about it.
ALTER TABLE __agents_runs ADD COLUMN told TEXT;
CREATE INDEX __agents_runs_untold ON __agents_runs (namespace, ended_at)
    WHERE told <> status AND status <> 'running' AND (parent_run_id IS NULL OR status LIKE 'suspended%');

-- What one webhook has to be told about the end of one run. next_at is when it is tried, or forgotten once it is over.
CREATE TABLE __agents_deliveries (
    namespace   TEXT    NOT NULL,
    delivery_id TEXT    NOT NULL,
    webhook     TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    next_at     INTEGER NOT NULL,
    revision    TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    PRIMARY KEY (namespace, delivery_id)
) WITHOUT ROWID;
CREATE INDEX __agents_deliveries_due ON __agents_deliveries (namespace, webhook, next_at) WHERE state = 'owed';
CREATE INDEX __agents_deliveries_over ON __agents_deliveries (namespace, next_at) WHERE state <> 'owed';
CREATE INDEX __agents_deliveries_by_time ON __agents_deliveries (namespace, created_at);

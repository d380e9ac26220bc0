-- Turns that wait until their session is free, in the order of their keys.
CREATE TABLE __agents_queued_turns (
    key        INTEGER PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    body       TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_queued_turns_by_run ON __agents_queued_turns (namespace, session_id, run_id);

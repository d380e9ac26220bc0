-- steered says that messages wait for the session's run to take them in, so that a step that takes none need not look.
ALTER TABLE __agents_sessions ADD COLUMN steered INTEGER NOT NULL DEFAULT 0;

-- Messages that waited, and the runs that took them in; known for as long as the session lives.
CREATE TABLE __agents_taken_turns (
    namespace  TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    taken_by   TEXT NOT NULL,
    PRIMARY KEY (namespace, session_id, run_id)
) WITHOUT ROWID;

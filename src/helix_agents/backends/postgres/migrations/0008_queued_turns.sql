-- Turns that wait until their session is free, in the order of their keys. They are deleted with their session.
CREATE TABLE __agents_queued_turns (
    key        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    body       text NOT NULL,
    FOREIGN KEY (namespace, session_id) REFERENCES __agents_sessions (namespace, session_id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX agents_queued_turns_by_run ON __agents_queued_turns (namespace, session_id, run_id);

-- Sessions with one of our marks (`MARKS` in domain/sessions.py) are found without scanning the others.
CREATE INDEX __agents_sessions_remote
    ON __agents_sessions (namespace, json_extract(metadata, '$."helix.remote"'), created_at, session_id)
    WHERE json_extract(metadata, '$."helix.remote"') IS NOT NULL;
CREATE INDEX __agents_sessions_remote_waits
    ON __agents_sessions (namespace, json_extract(metadata, '$."helix.remote_waits"'), created_at, session_id)
    WHERE json_extract(metadata, '$."helix.remote_waits"') IS NOT NULL;

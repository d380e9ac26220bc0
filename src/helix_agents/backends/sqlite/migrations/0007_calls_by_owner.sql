-- A call is found at the session that owns it without going through all that this session ever asked.
DROP INDEX __agents_pending_calls_by_owner;
CREATE INDEX __agents_pending_calls_by_owner ON __agents_pending_calls (namespace, session_id, tool_call_id);

-- Finds a call by the session that owns it, without scanning everything that session ever asked.
DROP INDEX __agents_pending_calls_by_owner;
CREATE INDEX __agents_pending_calls_by_owner ON __agents_pending_calls (namespace, session_id, tool_call_id);

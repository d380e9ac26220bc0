-- told is the last status of a run that webhooks were told; null if they are told nothing about it.
ALTER TABLE __agents_runs ADD COLUMN told text;
CREATE INDEX agents_runs_untold ON __agents_runs (namespace, ended_at)
    WHERE told <> status AND status <> 'running' AND (parent_run_id IS NULL OR status LIKE 'suspended%');

-- What one webhook has to be told about the end of one run. next_at is when it is tried, or forgotten once it is over.
CREATE TABLE __agents_deliveries (
    namespace   text COLLATE "C" NOT NULL,
    delivery_id text COLLATE "C" NOT NULL,
    webhook     text COLLATE "C" NOT NULL,
    state       text NOT NULL,
    created_at  bigint NOT NULL,
    next_at     bigint NOT NULL,
    revision    text COLLATE "C" NOT NULL,
    body        text NOT NULL,
    PRIMARY KEY (namespace, delivery_id)
);
CREATE INDEX agents_deliveries_due ON __agents_deliveries (namespace, webhook, next_at) WHERE state = 'owed';
CREATE INDEX agents_deliveries_over ON __agents_deliveries (namespace, next_at) WHERE state <> 'owed';
CREATE INDEX agents_deliveries_by_time ON __agents_deliveries (namespace, created_at);

-- The start of a run in a session that is new (then nothing was read) or exactly as the caller read it. No row: it is
-- not, and nothing was done. State HX001 undoes everything: another start was faster, or this one was already made.
-- p_base is the state a new session starts with, p_replaced the run that ends because this one starts.
CREATE OR REPLACE FUNCTION __agents_start_run(
    p_namespace text, p_session_id text, p_now bigint,
    p_read_version bigint, p_read_run text, p_read_attempt bigint, p_read_running boolean, p_read_expires bigint,
    p_agent_type text, p_version bigint, p_step_count bigint, p_resume_count bigint, p_mode text, p_user_id text,
    p_root_session_id text, p_expires_at bigint, p_tags text, p_metadata text, p_labels text[], p_suspension text,
    p_detail text, p_bodies text[], p_writes text, p_base text, p_run json, p_replaced json
) RETURNS TABLE (segment_of bigint, messages bigint) LANGUAGE plpgsql AS $$
DECLARE
    new_run text := p_run ->> 'run_id';
    size bigint := cardinality(p_bodies);
    weight bigint := coalesce(octet_length(p_writes), 0);
    first_writes bigint := CASE WHEN p_base IS NULL THEN 0 ELSE 1 END;
    written bigint;
BEGIN
    IF p_read_version IS NULL THEN
        IF EXISTS (SELECT 1 FROM __agents_sessions s WHERE s.namespace = p_namespace AND s.session_id = p_session_id) THEN
            RETURN;
        END IF;
        INSERT INTO __agents_segments (namespace, session_id) VALUES (p_namespace, p_session_id)
            RETURNING segment INTO segment_of;
        messages := size;
        written := first_writes + CASE WHEN weight > 0 THEN 1 ELSE 0 END;
        INSERT INTO __agents_sessions (namespace, session_id, agent_type, status, version, step_count, resume_count, mode,
            user_id, root_session_id, created_at, updated_at, expires_at, segment, message_count, state_count,
            state_base_bytes, state_since_bytes, run_id, attempt, running, tags, metadata, labels, suspension, detail)
        VALUES (p_namespace, p_session_id, p_agent_type, 'active', p_version, p_step_count, p_resume_count, p_mode,
            p_user_id, p_root_session_id, p_now, p_now, p_expires_at, segment_of, messages, written,
            coalesce(octet_length(p_base), 0), weight, new_run, 1, true, p_tags, p_metadata, p_labels, p_suspension,
            p_detail)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the session was made meanwhile' USING ERRCODE = 'HX001';
        END IF;
        IF p_base IS NOT NULL THEN
            INSERT INTO __agents_state_log (id, writes, base) VALUES ((segment_of << 32) | 1, '{"ops":[]}', p_base);
        END IF;
    ELSE
        UPDATE __agents_sessions s SET
            agent_type = p_agent_type, status = 'active', version = p_version, step_count = p_step_count,
            resume_count = p_resume_count, updated_at = p_now, expires_at = p_expires_at,
            message_count = s.message_count + size,
            state_count = s.state_count + CASE WHEN weight > 0 THEN 1 ELSE 0 END,
            state_since_bytes = s.state_since_bytes + weight,
            run_id = new_run, attempt = 1, running = true,
            commit_step = -1, commit_round = -1, commit_checkpoint = NULL, commit_extra = NULL,
            suspension = p_suspension, detail = p_detail
        WHERE s.namespace = p_namespace AND s.session_id = p_session_id AND s.version = p_read_version
            AND s.run_id IS NOT DISTINCT FROM p_read_run AND s.attempt = p_read_attempt
            AND s.running = p_read_running AND s.expires_at IS NOT DISTINCT FROM p_read_expires
        RETURNING s.segment, s.message_count, s.state_count INTO segment_of, messages, written;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        DELETE FROM __agents_interrupt_flags f WHERE f.namespace = p_namespace AND f.session_id = p_session_id;
        IF p_suspension IS NULL AND p_detail::json ->> 'suspended_step_id' IS NULL THEN
            DELETE FROM __agents_staging g WHERE g.namespace = p_namespace AND g.session_id = p_session_id;
        END IF;
        IF p_replaced IS NOT NULL THEN
            UPDATE __agents_runs r SET status = p_replaced ->> 'status', ended_at = (p_replaced ->> 'ended_at')::bigint,
                completion_reason = (p_replaced -> 'completion_reason')::text
            WHERE r.namespace = p_namespace AND r.run_id = p_replaced ->> 'run_id';
        END IF;
    END IF;
    INSERT INTO __agents_messages (id, session_id, created_at, body)
        SELECT ((segment_of << 32) | (messages - size)) + m.place, p_session_id, p_now, m.body
        FROM unnest(p_bodies) WITH ORDINALITY AS m (body, place);
    IF weight > 0 THEN
        INSERT INTO __agents_state_log (id, writes) VALUES ((segment_of << 32) | written, p_writes);
    END IF;
    INSERT INTO __agents_runs (namespace, run_id, session_id, turn, attempt, status, step_count, start_sequence,
        previous_run_id, parent_run_id, owner, workflow_id, call_hooks, told, started_at, start_version, start_messages)
    SELECT p_namespace, r.run_id, p_session_id, r.turn, 1, 'running', 0, coalesce(r.start_sequence, 0),
        r.previous_run_id, r.parent_run_id, r.owner, r.workflow_id, coalesce(r.call_hooks, false), r.told, p_now,
        p_version, messages
    FROM json_to_record(p_run) AS r (run_id text, turn bigint, start_sequence bigint, previous_run_id text,
        parent_run_id text, owner text, workflow_id text, call_hooks boolean, told text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this run was started before' USING ERRCODE = 'HX001';
    END IF;
    RETURN NEXT;
END
$$;

-- Steps leave alone what others may have changed since the run read it: a session's owner, its labels, its expiry. A
-- start drops what is staged for steps that will not be continued.
--
-- The function with the longer argument list stays in place: processes of the previous version call it until they are
-- replaced.

-- A step of the run that holds the fence. One UPDATE checks the fence, takes the next version and advances every count;
-- the rows to insert follow from what it returns. No row: the fence or the expected version does not match, and nothing
-- was done. An exception of state HX001 undoes everything: the step has to be examined under a lock first.
--
-- p_known is the version, and p_known_segment the history, for which the caller knows that its appends meet lists;
-- p_limit bounds the state. p_more is what most steps do not have: rows to stage, references, effects to forget, a stop
-- to take, the run's end.
CREATE FUNCTION __agents_commit_step(
    p_namespace text, p_session_id text, p_run_id text, p_attempt bigint, p_step bigint, p_round bigint,
    p_expected bigint, p_known bigint, p_known_segment bigint, p_limit bigint, p_now bigint,
    p_status text, p_agent_type text, p_mode text, p_suspension text, p_detail text,
    p_step_id text, p_step_count bigint, p_sequence bigint, p_bodies text[], p_writes text, p_promote boolean,
    p_usage json, p_more json,
    p_stream_id text, p_stream_run text, p_stream_attempt bigint, p_writer bigint, p_batch bigint,
    p_committed bigint, p_top_step bigint, p_top_first bigint,
    p_run_ids text[], p_steps bigint[], p_types text[], p_chunks text[]
) RETURNS TABLE (
    new_version bigint, new_segment bigint, messages bigint, sequence bigint, new_status text,
    writes_logged bigint, base_bytes bigint, since_bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    at record;
    run json := p_more -> 'run';
    run_status text := p_more -> 'run' ->> 'status';
    size bigint := cardinality(p_bodies);
    weight bigint := octet_length(p_writes);
BEGIN
    UPDATE __agents_sessions s SET
        version = s.version + 1,
        status = CASE WHEN s.status = 'paused' AND p_status = 'active' THEN 'paused' ELSE p_status END,
        step_count = p_step_count, updated_at = p_now, message_count = s.message_count + size,
        checkpoint = (s.segment << 32) | (s.version + 1), checkpointed_at = p_now, checkpoint_source = 'staging',
        state_count = s.state_count + CASE WHEN weight IS NULL THEN 0 ELSE 1 END,
        state_since_bytes = s.state_since_bytes + coalesce(weight, 0),
        running = coalesce(run_status, 'running') = 'running',
        commit_attempt = s.attempt, commit_step = p_step, commit_round = p_round,
        commit_checkpoint = (s.segment << 32) | (s.version + 1), commit_extra = (p_more -> 'extra')::text,
        agent_type = p_agent_type, mode = coalesce(s.mode, p_mode), suspension = p_suspension, detail = p_detail
    WHERE s.namespace = p_namespace AND s.session_id = p_session_id AND s.run_id = p_run_id
        AND s.attempt = p_attempt AND s.running AND (s.commit_step, s.commit_round) < (p_step, p_round)
        AND (p_expected IS NULL OR s.version = p_expected)
    RETURNING s.version, s.segment, s.mode, s.status, s.checkpoint, s.message_count, s.state_count,
        s.state_base_bytes, s.state_since_bytes INTO at;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_known <> at.version - 1 OR p_known_segment <> at.segment OR at.mode IS DISTINCT FROM p_mode
        OR at.state_base_bytes + at.state_since_bytes > p_limit AND weight IS NOT NULL THEN
        RAISE EXCEPTION 'this step has to be looked at' USING ERRCODE = 'HX001';
    END IF;
    sequence := p_sequence;
    IF p_stream_id IS NOT NULL THEN
        sequence := __agents_append_chunks(
            p_namespace, p_stream_id, p_stream_run, p_stream_attempt, p_writer, p_batch, p_now,
            p_committed, p_top_step, p_top_first, p_run_ids, p_steps, p_types, p_chunks
        );
        IF sequence IS NULL THEN
            RAISE EXCEPTION 'these chunks have to be looked at' USING ERRCODE = 'HX001';
        END IF;
    END IF;
    IF p_more IS NOT NULL THEN
        IF p_more -> 'stage' IS NOT NULL THEN
            PERFORM __agents_stage(p_namespace, p_session_id, p_now, p_more -> 'stage');
        END IF;
        IF p_more -> 'refs' IS NOT NULL THEN
            PERFORM __agents_add_refs(p_namespace, p_session_id, p_more -> 'refs');
        END IF;
        IF p_more -> 'forget' IS NOT NULL THEN
            DELETE FROM __agents_effects e WHERE e.namespace = p_namespace AND e.session_id = p_session_id
                AND e.tool_call_id IN (SELECT json_array_elements_text(p_more -> 'forget'));
        END IF;
        IF p_more -> 'take_stop' IS NOT NULL THEN
            DELETE FROM __agents_interrupt_flags f
                WHERE f.namespace = p_namespace AND f.session_id = p_session_id AND f.run_id = p_run_id;
        END IF;
    END IF;
    IF p_promote THEN
        DELETE FROM __agents_staging g
            WHERE g.namespace = p_namespace AND g.session_id = p_session_id AND g.step_id = p_step_id
                AND g.body::json -> 'writes' IS NULL;
        IF EXISTS (
            SELECT 1 FROM __agents_staging g
            WHERE g.namespace = p_namespace AND g.session_id = p_session_id AND g.step_id = p_step_id
        ) THEN
            RAISE EXCEPTION 'staged writes have to be looked at' USING ERRCODE = 'HX001';
        END IF;
    END IF;
    IF size > 0 THEN
        INSERT INTO __agents_messages (id, session_id, created_at, body)
            SELECT ((at.segment << 32) | (at.message_count - size)) + m.place, p_session_id, p_now, m.body
            FROM unnest(p_bodies) WITH ORDINALITY AS m (body, place);
    END IF;
    IF weight IS NOT NULL THEN
        INSERT INTO __agents_state_log (id, writes) VALUES ((at.segment << 32) | at.state_count, p_writes);
    END IF;
    INSERT INTO __agents_checkpoints (id, session_id, run_id, step_id, step_count, status, message_count, state_count,
        has_writes, stream_sequence, source, created_at)
    VALUES (at.checkpoint, p_session_id, p_run_id, p_step_id, p_step_count, at.status, at.message_count,
        at.state_count, weight IS NOT NULL, sequence, 'staging', p_now);
    IF run IS NOT NULL THEN
        UPDATE __agents_runs r SET
            status = coalesce(run_status, r.status),
            step_count = coalesce((run ->> 'step_count')::bigint, p_step_count),
            completion_reason = coalesce((run -> 'completion_reason')::text, r.completion_reason),
            output = coalesce((run -> 'output')::text, r.output),
            error = coalesce((run -> 'error')::text, r.error),
            ended_at = CASE WHEN coalesce(run_status, r.status) <> 'running' THEN coalesce(r.ended_at, p_now) END
        WHERE r.namespace = p_namespace AND r.run_id = p_run_id;
    END IF;
    IF p_usage IS NOT NULL THEN
        PERFORM __agents_insert_usage(p_namespace, p_usage);
    END IF;
    new_version := at.version;
    new_segment := at.segment;
    messages := at.message_count;
    new_status := at.status;
    writes_logged := at.state_count;
    base_bytes := at.state_base_bytes;
    since_bytes := at.state_since_bytes;
    RETURN NEXT;
END
$$;

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
        previous_run_id, parent_run_id, owner, workflow_id, call_hooks, started_at, start_version, start_messages)
    SELECT p_namespace, r.run_id, p_session_id, r.turn, 1, 'running', 0, coalesce(r.start_sequence, 0),
        r.previous_run_id, r.parent_run_id, r.owner, r.workflow_id, coalesce(r.call_hooks, false), p_now,
        p_version, messages
    FROM json_to_record(p_run) AS r (run_id text, turn bigint, start_sequence bigint, previous_run_id text,
        parent_run_id text, owner text, workflow_id text, call_hooks boolean)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this run was started before' USING ERRCODE = 'HX001';
    END IF;
    RETURN NEXT;
END
$$;

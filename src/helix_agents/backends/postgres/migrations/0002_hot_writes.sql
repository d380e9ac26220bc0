-- The most frequent writes, each a single statement for its caller. They handle the plain case, which is nearly all of
-- them. In any other case they answer that nothing was done, and the caller examines the rows under a lock, where the
-- rules are written out.

-- An append by the current writer. NULL: the sender is not the current writer, the batch is not new, or the stream has
-- a bound.
CREATE FUNCTION __agents_append_chunks(
    p_namespace text, p_stream_id text, p_run_id text, p_attempt bigint, p_writer bigint, p_batch bigint, p_now bigint,
    p_committed bigint, p_top_step bigint, p_top_first bigint,
    p_run_ids text[], p_steps bigint[], p_types text[], p_bodies text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    size bigint := cardinality(p_bodies);
    first bigint;
    last bigint;
    watched boolean;
BEGIN
    UPDATE __agents_streams SET
        latest = latest + size, count = count + size, batch = p_batch, updated_at = p_now,
        committed = CASE WHEN p_committed > 0 THEN latest + p_committed ELSE committed END,
        top_first = CASE WHEN p_top_step > top_step THEN latest + p_top_first ELSE top_first END,
        top_step = greatest(top_step, p_top_step)
    WHERE namespace = p_namespace AND stream_id = p_stream_id AND run_id = p_run_id AND attempt = p_attempt
        AND writer = p_writer AND status = 'active' AND batch < p_batch AND max_chunks IS NULL
    RETURNING (key << 32) | (latest - size), latest, watched_until > clock_timestamp() INTO first, last, watched;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO __agents_stream_chunks (id, run_id, step, type, body)
        SELECT first + c.place, c.run_id, c.step, c.type, c.body
        FROM unnest(p_run_ids, p_steps, p_types, p_bodies) WITH ORDINALITY AS c (run_id, step, type, body, place);
    IF watched THEN
        PERFORM pg_notify('__agents_changes', 'stream/' || p_namespace || '/' || p_stream_id);
    END IF;
    RETURN last;
END
$$;

-- How a run leaves its active stream, including its last chunks. False: the case is not that simple.
CREATE FUNCTION __agents_rest_stream(
    p_namespace text, p_stream_id text, p_run_id text, p_attempt bigint, p_now bigint,
    p_status text, p_end_status text, p_output text, p_error text,
    p_writer bigint, p_batch bigint, p_committed bigint, p_top_step bigint, p_top_first bigint,
    p_run_ids text[], p_steps bigint[], p_types text[], p_bodies text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    watched boolean;
BEGIN
    PERFORM 1 FROM __agents_streams
        WHERE namespace = p_namespace AND stream_id = p_stream_id AND run_id = p_run_id AND attempt = p_attempt
            AND status = 'active'
        FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_bodies IS NOT NULL AND __agents_append_chunks(
        p_namespace, p_stream_id, p_run_id, p_attempt, p_writer, p_batch, p_now, p_committed, p_top_step, p_top_first,
        p_run_ids, p_steps, p_types, p_bodies
    ) IS NULL THEN
        RETURN false;
    END IF;
    UPDATE __agents_streams SET
        status = p_status, end_status = p_end_status, output = p_output, error = p_error,
        prunable_since = p_now, updated_at = p_now
    WHERE namespace = p_namespace AND stream_id = p_stream_id
    RETURNING watched_until > clock_timestamp() INTO watched;
    IF watched THEN
        PERFORM pg_notify('__agents_changes', 'stream/' || p_namespace || '/' || p_stream_id);
    END IF;
    RETURN true;
END
$$;

-- Usage entries; one that is already stored is not counted again. Returns how many were new.
CREATE FUNCTION __agents_insert_usage(p_namespace text, p_entries json) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO __agents_usage (namespace, session_id, root_session_id, run_id, attempt, step, n, source_type,
        source_name, user_id, agent_type, recorded_at, body)
    SELECT p_namespace, e.session_id, e.root_session_id, e.run_id, e.attempt, e.step, e.n, e.source_type,
        e.source_name, e.user_id, e.agent_type, e.recorded_at, e.body::text
    FROM json_to_recordset(p_entries) AS e (session_id text, root_session_id text, run_id text, attempt bigint,
        step bigint, n bigint, source_type text, source_name text, user_id text, agent_type text, recorded_at bigint,
        body json)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    RETURN added;
END
$$;

-- Staged changes, upserted by step and call.
CREATE FUNCTION __agents_stage(p_namespace text, p_session_id text, p_now bigint, p_changes json)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO __agents_staging (namespace, session_id, step_id, tool_call_id, position, staged_at, body)
    SELECT p_namespace, p_session_id, c.step_id, c.tool_call_id, c.position, p_now, c.body::text
    FROM json_to_recordset(p_changes) AS c (step_id text, tool_call_id text, position bigint, body json)
    ON CONFLICT (namespace, session_id, step_id, tool_call_id)
        DO UPDATE SET position = excluded.position, staged_at = excluded.staged_at, body = excluded.body
$$;

-- References to children; an existing one stays as it is.
CREATE FUNCTION __agents_add_refs(p_namespace text, p_session_id text, p_refs json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO __agents_sub_session_refs (namespace, session_id, sub_session_id, mode, name, status, body)
    SELECT p_namespace, p_session_id, r.sub_session_id, r.mode, r.name, r.status, r.body::text
    FROM json_to_recordset(p_refs) AS r (sub_session_id text, mode text, name text, status text, body json)
    ON CONFLICT DO NOTHING
$$;

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
    p_status text, p_agent_type text, p_mode text, p_user_id text, p_expires_at bigint,
    p_tags text, p_metadata text, p_labels text[], p_suspension text, p_detail text,
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
    at __agents_sessions;
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
        agent_type = p_agent_type, mode = coalesce(s.mode, p_mode), user_id = p_user_id, expires_at = p_expires_at,
        tags = p_tags, metadata = p_metadata, labels = p_labels, suspension = p_suspension, detail = p_detail
    WHERE s.namespace = p_namespace AND s.session_id = p_session_id AND s.run_id = p_run_id
        AND s.attempt = p_attempt AND s.running AND (s.commit_step, s.commit_round) < (p_step, p_round)
        AND (p_expected IS NULL OR s.version = p_expected)
    RETURNING s.* INTO at;
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
CREATE FUNCTION __agents_start_run(
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

-- Deletes what belongs to these sessions alone, including their streams; the caller releases their history.
CREATE FUNCTION __agents_delete_sessions(p_namespace text, p_session_ids text[], p_stream_ids text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    FOR gone IN
        DELETE FROM __agents_streams WHERE namespace = p_namespace AND stream_id = ANY(p_stream_ids)
        RETURNING key, stream_id
    LOOP
        DELETE FROM __agents_stream_chunks WHERE id BETWEEN (gone.key << 32) AND ((gone.key << 32) | 4294967295);
        PERFORM pg_notify('__agents_changes', 'stream/' || p_namespace || '/' || gone.stream_id);
    END LOOP;
    DELETE FROM __agents_runs WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_staging WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_sub_session_refs WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_interrupt_flags WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_pending_calls WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_effects WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_usage WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
    DELETE FROM __agents_sessions WHERE namespace = p_namespace AND session_id = ANY(p_session_ids);
END
$$;

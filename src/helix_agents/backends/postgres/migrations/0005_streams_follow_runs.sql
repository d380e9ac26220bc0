-- A run becomes its stream's writer with its start, and brings the stream to rest with its last step. Each is one
-- statement, and readers see it happen at one moment.

-- A step, and with it the end of the stream that took its chunks. No row, and the exception of state HX001, as for the
-- step alone. The markers leave blank what only the step can know: the name of its checkpoint, and the count of
-- messages.
CREATE FUNCTION __agents_commit_last_step(
    p_namespace text, p_session_id text, p_run_id text, p_attempt bigint, p_step bigint, p_round bigint,
    p_expected bigint, p_known bigint, p_known_segment bigint, p_limit bigint, p_now bigint,
    p_status text, p_agent_type text, p_mode text, p_suspension text, p_detail text,
    p_step_id text, p_step_count bigint, p_sequence bigint, p_bodies text[], p_writes text, p_promote boolean,
    p_usage json, p_more json,
    p_stream_id text, p_stream_run text, p_stream_attempt bigint, p_writer bigint, p_batch bigint,
    p_committed bigint, p_top_step bigint, p_top_first bigint,
    p_run_ids text[], p_steps bigint[], p_types text[], p_chunks text[],
    p_rest_status text, p_end_status text, p_output text, p_error text,
    p_last_batch bigint, p_last_committed bigint, p_last_top_step bigint, p_last_top_first bigint,
    p_last_run_ids text[], p_last_steps bigint[], p_last_types text[], p_markers text[]
) RETURNS TABLE (
    new_version bigint, new_segment bigint, messages bigint, sequence bigint, new_status text,
    writes_logged bigint, base_bytes bigint, since_bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    checkpoint text;
BEGIN
    SELECT * INTO new_version, new_segment, messages, sequence, new_status, writes_logged, base_bytes, since_bytes
        FROM __agents_commit_step(
            p_namespace, p_session_id, p_run_id, p_attempt, p_step, p_round, p_expected, p_known, p_known_segment,
            p_limit, p_now, p_status, p_agent_type, p_mode, p_suspension, p_detail, p_step_id, p_step_count,
            p_sequence, p_bodies, p_writes, p_promote, p_usage, p_more, p_stream_id, p_stream_run, p_stream_attempt,
            p_writer, p_batch, p_committed, p_top_step, p_top_first, p_run_ids, p_steps, p_types, p_chunks
        );
    IF NOT FOUND THEN
        RETURN;
    END IF;
    checkpoint := 'cpv1-' || to_hex(new_segment) || '-' || to_hex(new_version);
    IF NOT __agents_rest_stream(
        p_namespace, p_stream_id, p_stream_run, p_stream_attempt, p_now,
        p_rest_status, p_end_status, p_output, p_error, p_writer, p_last_batch,
        p_last_committed, p_last_top_step, p_last_top_first, p_last_run_ids, p_last_steps, p_last_types,
        ARRAY(
            SELECT replace(
                replace(m.body, '"checkpoint_id":""', '"checkpoint_id":"' || checkpoint || '"'),
                '"message_count":0', '"message_count":' || messages
            )
            FROM unnest(p_markers) WITH ORDINALITY AS m (body, place) ORDER BY m.place
        )
    ) THEN
        RAISE EXCEPTION 'this end has to be looked at' USING ERRCODE = 'HX001';
    END IF;
    RETURN NEXT;
END
$$;

-- The start of a run, and with it the claim on its stream. No row, and the exception of state HX001, as for the start
-- alone. No writer: the stream belongs to this turn or a later one, and the process that drives the run examines it.
CREATE FUNCTION __agents_start_writing_run(
    p_namespace text, p_session_id text, p_now bigint,
    p_read_version bigint, p_read_run text, p_read_attempt bigint, p_read_running boolean, p_read_expires bigint,
    p_agent_type text, p_version bigint, p_step_count bigint, p_resume_count bigint, p_mode text, p_user_id text,
    p_root_session_id text, p_expires_at bigint, p_tags text, p_metadata text, p_labels text[], p_suspension text,
    p_detail text, p_bodies text[], p_writes text, p_base text, p_run json, p_replaced json,
    p_stream_id text, p_stream_agent text, p_max_chunks bigint
) RETURNS TABLE (segment_of bigint, messages bigint, new_writer bigint, latest_sequence bigint) LANGUAGE plpgsql AS $$
DECLARE
    watched boolean;
BEGIN
    SELECT * INTO segment_of, messages FROM __agents_start_run(
        p_namespace, p_session_id, p_now, p_read_version, p_read_run, p_read_attempt, p_read_running, p_read_expires,
        p_agent_type, p_version, p_step_count, p_resume_count, p_mode, p_user_id, p_root_session_id, p_expires_at,
        p_tags, p_metadata, p_labels, p_suspension, p_detail, p_bodies, p_writes, p_base, p_run, p_replaced
    );
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO __agents_streams AS s (namespace, stream_id, agent_type, status, run_id, turn, attempt, writer, batch,
        latest, floor, count, max_chunks, committed, top_step, top_first, created_at, updated_at)
    VALUES (p_namespace, p_stream_id, p_stream_agent, 'active', p_run ->> 'run_id', (p_run ->> 'turn')::bigint, 1, 1, 0,
        0, 1, 0, p_max_chunks, 0, -1, 1, p_now, p_now)
    ON CONFLICT (namespace, stream_id) DO UPDATE SET
        agent_type = excluded.agent_type, status = 'active', run_id = excluded.run_id, turn = excluded.turn,
        attempt = 1, writer = s.writer + 1, batch = 0, max_chunks = excluded.max_chunks, top_step = -1,
        top_first = s.latest + 1, prunable_since = NULL, end_status = NULL, output = NULL, error = NULL,
        updated_at = p_now
    WHERE s.turn < excluded.turn
    RETURNING s.writer, s.latest, s.watched_until > clock_timestamp() INTO new_writer, latest_sequence, watched;
    IF watched THEN
        PERFORM pg_notify('__agents_changes', 'stream/' || p_namespace || '/' || p_stream_id);
    END IF;
    RETURN NEXT;
END
$$;

-- steered says that messages wait for the session's run to take them in, so that a step that takes none need not look.
ALTER TABLE __agents_sessions ADD COLUMN steered boolean NOT NULL DEFAULT false;

-- Messages that waited, and the runs that took them in; known for as long as the session lives.
CREATE TABLE __agents_taken_turns (
    namespace  text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    taken_by   text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, session_id, run_id),
    FOREIGN KEY (namespace, session_id) REFERENCES __agents_sessions (namespace, session_id) ON DELETE CASCADE
);

-- A step of the run that holds the fence. One UPDATE checks the fence, takes the next version and advances every count;
-- the rows to insert follow from what it returns. No row: the fence or the expected version does not match, and nothing
-- was done. An exception of state HX001 undoes everything: the step has to be examined under a lock first.
--
-- p_known is the version, and p_known_segment the history, for which the caller knows that its appends meet lists;
-- p_limit bounds the state. p_more is what not every step has: rows to stage, references, effects to forget, a stop to
-- take, the run's end. With take, messages that wait for the run have to be looked at.
CREATE OR REPLACE FUNCTION __agents_commit_step(
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
        s.state_base_bytes, s.state_since_bytes, s.steered INTO at;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_known <> at.version - 1 OR p_known_segment <> at.segment OR at.mode IS DISTINCT FROM p_mode
        OR at.state_base_bytes + at.state_since_bytes > p_limit AND weight IS NOT NULL
        OR at.steered AND p_more -> 'take' IS NOT NULL THEN
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

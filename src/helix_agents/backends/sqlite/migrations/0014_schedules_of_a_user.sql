-- Schedules by their user, for listings of what one user has.
CREATE INDEX __agents_schedules_by_user
    ON __agents_schedules (namespace, json_extract(body, '$.user_id'), schedule_id);

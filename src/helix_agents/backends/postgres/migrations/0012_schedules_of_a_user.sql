-- Schedules by their user, for listings of what one user has.
CREATE INDEX agents_schedules_by_user
    ON __agents_schedules (namespace, ((body::json ->> 'user_id') COLLATE "C"), schedule_id);

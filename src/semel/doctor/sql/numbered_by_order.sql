-- Without a receive count, the order of a message's lines tells its deliveries apart, for each worker: lines after a
-- receive (or a start, where receives are not logged) belong to it. If every beginning has an end, the first end
-- belongs to the first beginning: two deliveries at once, in one worker. If ends are missing, an end belongs to the
-- latest beginning: the others crashed.
WITH steps AS (
  SELECT *,
    coalesce(worker_id, 0) AS stream,
    CASE WHEN flag = $RECEIVED THEN 1 ELSE 0 END AS is_received,
    CASE WHEN flag = $STARTED THEN 1 ELSE 0 END AS is_started,
    CASE WHEN (flag & $OUTCOMES) <> 0 THEN 1 ELSE 0 END AS is_outcome,
    CASE WHEN flag = $DELETED THEN 1 ELSE 0 END AS is_deleted,
    -- With the same time: first the receive, then its start, its outcome, its delete.
    CASE flag WHEN $RECEIVED THEN 0 WHEN $STARTED THEN 1 WHEN $DELETED THEN 3 ELSE 2 END AS place
  FROM events
),
begins AS (
  SELECT *,
    CASE WHEN max(is_received) OVER (PARTITION BY slot, stream) = 1 THEN is_received ELSE is_started END AS is_begin
  FROM steps
),
counted AS (
  SELECT *,
    sum(is_begin) OVER whole AS begins_in_all, sum(is_begin) OVER so_far AS begins,
    sum(is_outcome) OVER whole AS outcomes_in_all, sum(is_outcome) OVER so_far AS outcomes,
    sum(is_deleted) OVER whole AS deletes_in_all, sum(is_deleted) OVER so_far AS deletes,
    sum(is_started) OVER whole AS starts_in_all, sum(is_started) OVER so_far AS starts
  FROM begins
  WINDOW
    whole AS (PARTITION BY slot, stream),
    so_far AS (
      PARTITION BY slot, stream
      ORDER BY event_time, place, flag, duration NULLS FIRST, receive_count NULLS FIRST, sent_time NULLS FIRST,
        visibility NULLS FIRST, key_id NULLS FIRST, handler_id NULLS FIRST, group_id NULLS FIRST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT
  event_time, flag, queue_id, slot, worker_id, key_id, receive_count, sent_time, group_id, duration, visibility, handler_id, stream,
  CAST(CASE
    WHEN is_outcome = 1 AND outcomes_in_all = begins_in_all THEN outcomes
    WHEN is_deleted = 1 AND deletes_in_all = begins_in_all THEN deletes
    WHEN is_started = 1 AND starts_in_all = begins_in_all THEN starts
    ELSE greatest(begins, 1)
  END AS BIGINT) AS number
FROM counted

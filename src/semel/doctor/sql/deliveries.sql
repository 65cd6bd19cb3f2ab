-- One row for each delivery: each time that SQS handed a message out, with its outcome. Numbers only: `slot` identifies
-- the message. Texts are looked up in `events`, for the few messages that need them.
WITH grouped AS (
  SELECT
    slot, number, stream,
    max(queue_id) AS queue_id,
    bit_or(flag) AS flags,
    min(event_time) AS first_time,
    max(event_time) AS last_time,
    min(CASE WHEN flag = $RECEIVED THEN event_time END) AS received_time,
    min(CASE WHEN flag = $STARTED THEN event_time END) AS started_time,
    min(CASE WHEN flag = $STARTED THEN duration END) AS start_wait,
    max(CASE WHEN (flag & $OUTCOMES) <> 0 THEN event_time END) AS outcome_time,
    min(CASE WHEN flag = $DELETED THEN event_time END) AS deleted_time,
    max(CASE WHEN (flag & $WORKED) <> 0 AND duration > 0 THEN duration END) AS handler_time,
    max(CASE WHEN (flag & $HIDES) <> 0 THEN event_time + visibility END) AS hidden_until,
    max(CASE WHEN (flag & $BEGINS) <> 0 THEN visibility END) AS timeout,
    count(CASE WHEN flag = $HEARTBEAT THEN 1 END) AS heartbeats,
    min(CASE WHEN flag = $HEARTBEAT THEN event_time END) AS first_heartbeat,
    max(CASE WHEN flag = $HEARTBEAT THEN event_time END) AS last_heartbeat,
    max(receive_count) AS receive_count,
    min(sent_time) AS sent_time,
    max(worker_id) AS worker_id,
    max(key_id) AS key_id,
    max(handler_id) AS handler_id,
    max(group_id) AS group_id
  FROM numbered_events
  GROUP BY slot, number, stream
),
begun AS (
  SELECT *, coalesce(received_time, started_time - coalesce(start_wait, 0), first_time) AS begin_time FROM grouped
)
SELECT
  queue_id, slot, number, stream, flags, begin_time, last_time, outcome_time, deleted_time, timeout, heartbeats,
  receive_count, sent_time, worker_id, key_id, handler_id, group_id,
  coalesce(hidden_until, begin_time + timeout) AS deadline,
  coalesce(handler_time, outcome_time - started_time) AS work,
  coalesce(start_wait, started_time - received_time) AS wait,
  -- A delivery that came and went without any work says nothing about how long work takes.
  CASE WHEN (flags & $STARTED) <> 0 OR (flags & $NOT_RUN) = 0
       THEN coalesce(deleted_time, outcome_time) - begin_time END AS hold,
  CASE WHEN heartbeats > 1 THEN last_heartbeat - first_heartbeat END AS heartbeat_span,
  coalesce(outcome_time < started_time, FALSE) OR coalesce(coalesce(deleted_time, outcome_time) < begin_time, FALSE)
    AS out_of_order
FROM begun

-- All events, with the starts that an application's log leaves out: an end with a duration shows when the run began.
SELECT * FROM logged_events
UNION ALL
SELECT
  ended.event_time - ended.duration, $STARTED, ended.queue, ended.queue_id, ended.message_id, ended.slot, ended.key,
  ended.key_id, ended.receive_count, ended.sent_time, ended.group_id, CAST(NULL AS STRING), CAST(NULL AS STRING),
  ended.worker, ended.worker_id, ended.handler, ended.handler_id, CAST(NULL AS BIGINT), ended.visibility
FROM logged_events ended
LEFT JOIN (SELECT DISTINCT slot FROM logged_events WHERE flag = $STARTED) started ON started.slot = ended.slot
WHERE started.slot IS NULL AND ended.duration > 0

-- The events of the log: its usable lines, with the bit of the step that each word stands for, and the visibility
-- timeout of the queue where the line does not have it.
SELECT
  line.event_time, word.flag, line.queue, line.queue_id, line.message_id, line.slot, line.key, line.key_id,
  line.receive_count, line.sent_time, line.group_id, line.error, line.error_kind, line.worker, line.worker_id,
  line.handler, line.handler_id,
  -- In an application's log a duration belongs to the end of a run.
  CASE WHEN $own_log OR (word.flag & $ENDS) <> 0 THEN line.duration END AS duration,
  coalesce(line.visibility, timeout.visibility) AS visibility
FROM log_lines line
JOIN words word ON word.word = line.word
LEFT JOIN timeouts timeout ON timeout.queue_id = line.queue_id
WHERE line.problem = 0

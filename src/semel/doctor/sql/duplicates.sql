-- One row for each duplicate, whatever its cause. `earlier_slot` is the earlier message, which may be another one.
SELECT queue_id, slot, cause, begin_time, receive_count, overrun, (flags & $STARTED) <> 0 AS ran, work,
  slot AS earlier_slot, earlier_time, timeline_end
FROM redeliveries WHERE is_duplicate
UNION ALL
SELECT queue_id, slot, cause, begin_time, receive_count, CAST(NULL AS BIGINT), ran, work,
  earlier_slot, earlier_time, timeline_end
FROM shared_keys

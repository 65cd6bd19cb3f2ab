-- One row for each message whose key an earlier message had, with the cause: REDRIVE if the earlier message had failed
-- and ended before this one began, else PRODUCER.
WITH several AS (
  SELECT queue_id, identity AS key_id FROM keys WHERE is_shared
),
messages AS (
  SELECT
    delivery.queue_id, delivery.key_id, delivery.slot,
    max(coalesce(delivery.receive_count, delivery.number)) AS receive_count,
    count(CASE WHEN (delivery.flags & $RECORDED) <> 0 THEN 1 END) AS effects,
    max(CASE WHEN (delivery.flags & $STARTED) <> 0 THEN 1 ELSE 0 END) AS ran,
    -- Its key was done already, or another message had claimed its key, and it has not run since.
    CASE WHEN max(delivery.flags & $DUPLICATE) <> 0
           OR max(delivery.flags & $BOUNCED) <> 0 AND max(delivery.flags & $STARTED) = 0
         THEN 1 ELSE 0 END AS was_duplicate,
    min(delivery.begin_time) AS begin_time,
    max(delivery.last_time) AS last_time,
    sum(CASE WHEN coalesce(again.is_duplicate, FALSE) THEN NULL ELSE delivery.work END) AS work
  FROM deliveries delivery
  JOIN several ON several.queue_id = delivery.queue_id AND several.key_id = delivery.key_id
  LEFT JOIN redeliveries again
    ON again.slot = delivery.slot AND again.number = delivery.number AND again.stream = delivery.stream
  GROUP BY delivery.queue_id, delivery.key_id, delivery.slot
),
ordered AS (
  SELECT *,
    lag(slot) OVER by_time AS earlier_slot,
    lag(last_time) OVER by_time AS earlier_last,
    lag(effects) OVER by_time AS earlier_effects,
    lag(begin_time) OVER by_time AS earlier_time,
    lag(was_duplicate) OVER by_time AS earlier_was_duplicate,
    max(ran) OVER (
      PARTITION BY queue_id, key_id ORDER BY begin_time, slot ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS ran_before
  FROM messages
  WINDOW by_time AS (PARTITION BY queue_id, key_id ORDER BY begin_time, slot)
)
SELECT
  queue_id, slot, begin_time, receive_count, CAST(work AS BIGINT) AS work, earlier_slot, earlier_time,
  -- It ran again only if an earlier one had run: of two that came at once, the ledger may let either of them run.
  ran = 1 AND coalesce(ran_before, 0) = 1 AS ran,
  greatest(last_time, earlier_last) AS timeline_end,
  -- If two came at once, the first may be the duplicate: it had no effect either, but it did not fail.
  CASE WHEN earlier_effects = 0 AND earlier_was_duplicate = 0 AND earlier_last <= begin_time + $SLACK
       THEN $REDRIVE ELSE $PRODUCER END AS cause
FROM ordered
WHERE earlier_slot IS NOT NULL

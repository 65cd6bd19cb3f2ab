-- The figures: each query is one small aggregation, and its result is small whatever the size of the logs.

-- name: queues_and_words
-- What was logged: the queues, and the logs' own words for what happened.
SELECT queue, queue_id, word, count(*) AS lines FROM log_lines WHERE problem = 0 GROUP BY queue, queue_id, word

-- name: quality
-- How many lines can be used, and why others cannot.
SELECT
  count(*) AS lines,
  count(CASE WHEN line.problem = 0 AND word.word IS NOT NULL THEN 1 END) AS events,
  count(CASE WHEN line.problem = $MALFORMED THEN 1 END) AS malformed,
  count(CASE WHEN line.problem = $INCOMPLETE THEN 1 END) AS incomplete,
  count(CASE WHEN line.problem = $OUT_OF_RANGE THEN 1 END) AS out_of_range,
  count(CASE WHEN line.problem = 0 AND word.word IS NULL THEN 1 END) AS unknown_events,
  coalesce(sum(line.dropped), 0) AS dropped
FROM log_lines line LEFT JOIN words word ON word.word = line.word

-- name: broken_lines
-- The first lines that are not JSON.
SELECT file, line_number, sample FROM log_lines WHERE problem = $MALFORMED
ORDER BY file, line_number LIMIT $EXAMPLES

-- name: writers
-- Who wrote: by queue, handler and worker.
SELECT queue, queue_id, handler, handler_id, worker,
  count(*) AS events, min(event_time) AS first_time, max(event_time) AS last_time,
  min(CASE WHEN flag = $RECEIVED AND coalesce(receive_count, 1) = 1 THEN event_time - sent_time END) AS since_sent
FROM events GROUP BY queue, queue_id, handler, handler_id, worker

-- name: totals
SELECT queue_id,
  count(*) AS deliveries,
  count(CASE WHEN (flags & $STARTED) <> 0 THEN 1 END) AS attempts,
  count(CASE WHEN (flags & $RECORDED) <> 0 THEN 1 END) AS effects,
  count(CASE WHEN (flags & $FAILED) <> 0 THEN 1 END) AS failures,
  count(CASE WHEN (flags & $WITH_ERROR) <> 0 THEN 1 END) AS with_error,
  count(CASE WHEN out_of_order THEN 1 END) AS out_of_order,
  count(group_id) AS grouped,
  sum(heartbeats) AS heartbeats,
  sum(heartbeat_span) AS heartbeat_span,
  sum(CASE WHEN heartbeat_span IS NOT NULL THEN heartbeats - 1 END) AS heartbeat_intervals
FROM deliveries GROUP BY queue_id

-- name: repeated
-- Messages that came more than once, by queue. `later` is the number of deliveries after a message's first.
SELECT queue_id,
  count(CASE WHEN place > 1 THEN 1 END) AS later,
  count(CASE WHEN cause = $RETRY THEN 1 END) AS retries,
  count(DISTINCT CASE WHEN times_received >= $LOOP THEN slot END) AS loops
FROM redeliveries GROUP BY queue_id

-- name: timeouts_in_force
-- The visibility timeout of the latest delivery.
SELECT delivery.queue_id, max(delivery.timeout) AS timeout
FROM deliveries delivery
JOIN (SELECT queue_id, max(begin_time) AS begin_time FROM deliveries WHERE timeout IS NOT NULL GROUP BY queue_id) latest
  ON latest.queue_id = delivery.queue_id AND latest.begin_time = delivery.begin_time
GROUP BY delivery.queue_id

-- name: durations
-- How many durations have the same first three digits, and the longest of these. Counts can be added up, over handlers
-- too, and a percentile is read from them: it is off by 1 % at most.
SELECT queue_id, handler_id, name, bucket, count(*) AS count, max(value) AS longest
FROM (
  SELECT queue_id, handler_id, name, value,
    CASE
      WHEN value < 1000 THEN value
      WHEN value < 10000 THEN value - value % 10
      WHEN value < 100000 THEN value - value % 100
      WHEN value < 1000000 THEN value - value % 1000
      WHEN value < 10000000 THEN value - value % 10000
      WHEN value < 100000000 THEN value - value % 100000
      WHEN value < 1000000000 THEN value - value % 1000000
      WHEN value < 10000000000 THEN value - value % 10000000
      ELSE value - value % 100000000
    END AS bucket
  FROM (
    SELECT queue_id, handler_id, 'work' AS name, work AS value FROM deliveries WHERE NOT out_of_order
    UNION ALL
    SELECT queue_id, handler_id, 'wait', wait FROM deliveries WHERE NOT out_of_order
    UNION ALL
    SELECT queue_id, handler_id, 'hold', hold FROM deliveries WHERE NOT out_of_order
    UNION ALL
    SELECT queue_id, CAST(NULL AS BIGINT), 'overrun', overrun FROM duplicates
  ) all_durations
  WHERE value >= 0
) bucketed
GROUP BY queue_id, handler_id, name, bucket

-- name: receives
-- Messages per receive, in a sample of one receive in 16. Messages of one receive have the same time.
SELECT queue_id, count(*) AS receives, sum(messages) AS messages
FROM (
  SELECT queue_id, begin_time, count(*) AS messages FROM deliveries
  WHERE (flags & $RECEIVED) <> 0 AND (begin_time % 1000003) % 16 = 0
  GROUP BY queue_id, begin_time
) each_receive
GROUP BY queue_id

-- name: groups
SELECT queue_id, count(DISTINCT group_id) AS groups FROM deliveries GROUP BY queue_id

-- name: causes
SELECT queue_id, cause, count(*) AS duplicates, count(CASE WHEN ran THEN 1 END) AS ran,
  sum(CASE WHEN ran THEN work END) AS wasted
FROM duplicates GROUP BY queue_id, cause

-- name: examples
-- The first duplicates of each queue and cause.
SELECT * FROM (
  SELECT *,
    row_number() OVER (
      PARTITION BY queue_id, cause
      ORDER BY begin_time, slot, receive_count NULLS FIRST, earlier_time NULLS FIRST, timeline_end, earlier_slot,
        overrun NULLS FIRST
    ) AS nth
  FROM duplicates
) ranked WHERE nth <= $EXAMPLES

-- name: timelines
-- The events that are nearest to each example.
SELECT * FROM (
  SELECT example.example, event.event_time, event.flag, event.message_id, event.slot, event.key, event.receive_count,
    event.worker, event.duration, event.error,
    row_number() OVER (
      PARTITION BY example.example
      ORDER BY abs(event.event_time - example.begin_time), event.event_time, event.flag, event.message_id,
        event.worker NULLS FIRST, event.duration NULLS FIRST, event.receive_count NULLS FIRST, event.key NULLS FIRST,
        event.error NULLS FIRST
    ) AS distance
  FROM events event
  JOIN example_messages example ON example.slot = event.slot
  WHERE event.event_time BETWEEN example.since AND example.until
) ranked WHERE distance <= $TIMELINE

-- name: doubled
SELECT queue_id, count(*) AS doubled FROM keys WHERE effects > 1 GROUP BY queue_id

-- name: looping
-- The messages that came most often.
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY queue_id ORDER BY receive_count DESC, slot) AS nth FROM (
    SELECT queue_id, slot, max(place) AS deliveries, max(times_received) AS receive_count, max(last_time) AS last_time
    FROM redeliveries WHERE times_received >= $LOOP GROUP BY queue_id, slot
  ) messages
) ranked WHERE nth <= $WORST

-- name: messages
-- The id, the key, the latest error and the first event of some messages.
SELECT wanted.slot, min(event.message_id) AS message_id, max(event.key) AS key, min(event.event_time) AS first_time,
  max(CASE WHEN event.event_time = latest.event_time THEN event.error END) AS error
FROM events event
JOIN wanted_messages wanted ON wanted.slot = event.slot
LEFT JOIN (
  SELECT event.slot, max(event.event_time) AS event_time
  FROM events event JOIN wanted_messages wanted ON wanted.slot = event.slot
  WHERE event.error IS NOT NULL GROUP BY event.slot
) latest ON latest.slot = event.slot
GROUP BY wanted.slot

-- name: over_time
-- Deliveries by the windows in which they began, were deleted, and their messages were sent. For nearly all deliveries
-- the three are close together, so there are few rows; they are added up elsewhere.
SELECT queue_id,
  begin_time - begin_time % $WIDTH AS received,
  deleted_time - deleted_time % $WIDTH AS deleted,
  CASE WHEN sent_time >= $FIRST THEN sent_time - sent_time % $WIDTH END AS sent,
  count(*) AS count
FROM deliveries
GROUP BY queue_id, begin_time - begin_time % $WIDTH, deleted_time - deleted_time % $WIDTH,
  CASE WHEN sent_time >= $FIRST THEN sent_time - sent_time % $WIDTH END

-- name: repeated_over_time
-- Corrections to `over_time`: a message with several deliveries was sent only once. Also counts duplicates.
SELECT queue_id,
  begin_time - begin_time % $WIDTH AS received,
  CASE WHEN place > 1 AND sent_time >= $FIRST THEN sent_time - sent_time % $WIDTH END AS sent,
  count(*) AS count, count(CASE WHEN is_duplicate THEN 1 END) AS duplicates
FROM redeliveries
GROUP BY queue_id, begin_time - begin_time % $WIDTH,
  CASE WHEN place > 1 AND sent_time >= $FIRST THEN sent_time - sent_time % $WIDTH END

-- name: replays
-- How often messages would have been delivered again while they were worked on, by timeout. Holds are grouped in steps
-- of 10 ms. Deliveries that exist only because the timeout in force was too short are not replayed.
SELECT held.queue_id, tried.timeout,
  sum(held.count * least(CAST(floor(held.hold / tried.timeout) AS BIGINT), $MOST_REDELIVERIES)) AS redeliveries
FROM (
  SELECT queue_id, hold, sum(count) AS count FROM (
    SELECT queue_id, hold - hold % 10000 AS hold, count(*) AS count FROM deliveries
    WHERE hold >= $SHORTEST GROUP BY queue_id, hold - hold % 10000
    UNION ALL
    SELECT queue_id, hold - hold % 10000, -count(*) FROM redeliveries
    WHERE cause = $VISIBILITY AND hold >= $SHORTEST GROUP BY queue_id, hold - hold % 10000
  ) counted GROUP BY queue_id, hold
) held
JOIN tried_timeouts tried ON tried.queue_id = held.queue_id
GROUP BY held.queue_id, tried.timeout

-- name: errors
-- The largest groups of errors of each queue, by kind.
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY queue_id ORDER BY count DESC, error_kind) AS nth FROM (
    SELECT queue_id, error_kind, count(*) AS count, count(DISTINCT slot) AS messages,
      min(event_time) AS first_time, max(event_time) AS last_time,
      min(error) AS sample, min(message_id) AS first_id, max(message_id) AS last_id
    FROM events WHERE error IS NOT NULL AND (flag & $WITH_ERROR) <> 0
    GROUP BY queue_id, error_kind
  ) kinds
) ranked WHERE nth <= $WORST

-- Why a message came again. If a message has several deliveries, each is compared with the one before it. If the logs
-- have receive counts, a single delivery is also included if SQS counts an earlier one that no log has.
--
-- The rules, in the order in which they are applied. `t` is when the delivery began. The deadline is when the
-- visibility timeout of the earlier deliveries ended, with heartbeats; SQS shows a message to others only after that,
-- unless it was returned.
-- 1. SQS counts a delivery in between that no log has: UNLOGGED (a crash if workers of the queue died, else unknown).
-- 2. The earlier one was returned to the queue before t: a retry, not a duplicate.
-- 3. The earlier one was deleted before t: VISIBILITY if the delete came after the deadline, as SQS had shown the message
--    again by then; LOST_DELETE if it came in time. A delete at the very moment of t says nothing, see 4.
-- 4. t lies before the deadline: CONCURRENT.
-- 5. The earlier one wrote a line after t, or noticed itself that it was too late: VISIBILITY.
-- 6. The earlier one had its outcome: VISIBILITY if its last line, such as a delete that failed, is after the deadline,
--    else LOST_DELETE. It had none: CRASH.
WITH repeated AS (
  SELECT slot FROM deliveries GROUP BY slot HAVING count(*) > 1
),
candidates AS (
  SELECT delivery.*
  FROM deliveries delivery JOIN repeated ON repeated.slot = delivery.slot
  UNION ALL
  SELECT delivery.*
  FROM deliveries delivery LEFT JOIN repeated ON repeated.slot = delivery.slot
  WHERE repeated.slot IS NULL AND $exact AND delivery.number > 1
),
-- No message is received before it is sent: if it seems so, the worker's clock is behind, at least by that much. If it
-- were more than 15 minutes, SQS would refuse every call, so the time of sending is wrong.
clocks AS (
  SELECT worker_id, -min(begin_time - sent_time) AS behind FROM deliveries
  WHERE begin_time - sent_time >= -900000000
  GROUP BY worker_id HAVING min(begin_time - sent_time) < 0
),
corrected AS (
  SELECT queue_id, slot, number, stream, flags, receive_count, sent_time, work, hold, timeout,
    coalesce(clock.behind, 0) AS behind,
    begin_time + coalesce(clock.behind, 0) AS begin_time,
    last_time + coalesce(clock.behind, 0) AS last_time,
    outcome_time + coalesce(clock.behind, 0) AS outcome_time,
    deleted_time + coalesce(clock.behind, 0) AS deleted_time,
    deadline + coalesce(clock.behind, 0) AS deadline
  FROM candidates candidate LEFT JOIN clocks clock ON clock.worker_id = candidate.worker_id
),
placed AS (
  SELECT *, row_number() OVER (PARTITION BY slot ORDER BY begin_time, number, stream) AS place FROM corrected
),
ordered AS (
  SELECT *,
    lag(number) OVER (PARTITION BY slot ORDER BY place) AS previous_number,
    -- A worker that receives a message which it already holds continues with it: the next delivery is compared with the
    -- one that it holds.
    max(CASE WHEN (flags & $HELD) = 0 THEN place END) OVER earlier_rows AS earlier_place,
    max(deadline) OVER earlier_rows AS hidden_until
  FROM placed
  WINDOW earlier_rows AS (PARTITION BY slot ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
compared AS (
  SELECT
    this.queue_id, this.slot, this.number, this.stream, this.place, this.previous_number, this.begin_time, this.flags,
    this.receive_count, this.sent_time, this.work, this.hold, this.hidden_until,
    -- Times as they are in the log, by the worker's own clock.
    this.begin_time - this.behind AS logged_begin, this.last_time - this.behind AS logged_last,
    earlier.begin_time - earlier.behind AS logged_earlier_begin, earlier.last_time - earlier.behind AS logged_earlier_last,
    earlier.begin_time AS earlier_time, earlier.last_time AS earlier_last, earlier.flags AS earlier_flags,
    earlier.outcome_time AS earlier_outcome, earlier.deleted_time AS earlier_deleted,
    coalesce(earlier.deleted_time, earlier.outcome_time, earlier.last_time) AS earlier_end,
    -- A worker's deadline is later than that of SQS, by the time that the answer took; and SQS counts whole seconds.
    this.hidden_until - least(CAST(floor(this.timeout / 10) AS BIGINT), 1000000) AS early_deadline,
    coalesce(this.begin_time < this.hidden_until - least(CAST(floor(this.timeout / 10) AS BIGINT), 1000000), FALSE) AS too_soon
  FROM ordered this
  LEFT JOIN placed earlier ON earlier.slot = this.slot AND earlier.place = this.earlier_place
),
classified AS (
  SELECT *,
    CASE
      WHEN $exact AND number > 1 AND number > coalesce(previous_number, 0) + 1 THEN $UNLOGGED
      WHEN earlier_time IS NULL THEN NULL
      WHEN (earlier_flags & $RETURNED) <> 0 AND (earlier_flags & $FINISHED) = 0
           AND earlier_outcome <= begin_time + $SLACK THEN $RETRY
      WHEN earlier_deleted <= begin_time AND NOT (too_soon AND earlier_deleted > begin_time - $SLACK)
        THEN CASE WHEN earlier_deleted > early_deadline THEN $VISIBILITY ELSE $LOST_DELETE END
      WHEN too_soon THEN $CONCURRENT
      WHEN earlier_last > begin_time OR ((earlier_flags & $LOST) <> 0 AND (earlier_flags & $FINISHED) = 0)
        THEN $VISIBILITY
      WHEN (earlier_flags & $FINISHED) <> 0
        THEN CASE WHEN earlier_last > early_deadline THEN $VISIBILITY ELSE $LOST_DELETE END
      ELSE $CRASH
    END AS cause
  FROM compared
)
SELECT
  queue_id, slot, number, stream, place, logged_begin AS begin_time, logged_last AS last_time, flags, receive_count,
  sent_time, work, hold, cause,
  greatest(place, coalesce(receive_count, 0)) AS times_received,
  cause IS NOT NULL AND cause <> $RETRY AS is_duplicate,
  -- How long the earlier delivery went on after its visibility had ended.
  CASE WHEN cause = $VISIBILITY AND hidden_until IS NOT NULL THEN greatest(earlier_end - hidden_until, 0) END AS overrun,
  logged_earlier_begin AS earlier_time,
  greatest(logged_last, coalesce(logged_earlier_last, logged_last)) AS timeline_end
FROM classified

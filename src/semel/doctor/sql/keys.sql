-- Keys that more than one message has, or that took effect more than once; usually few. A message without a key is its
-- own key.
SELECT queue_id, identity, min(slot) <> max(slot) AS is_shared, sum(effect) AS effects
FROM (
  SELECT queue_id, slot, coalesce(key_id, slot) AS identity,
    CASE WHEN (flags & $RECORDED) <> 0 THEN 1 ELSE 0 END AS effect
  FROM deliveries
) effects_of_keys
GROUP BY queue_id, identity
HAVING min(slot) <> max(slot) OR sum(effect) > 1

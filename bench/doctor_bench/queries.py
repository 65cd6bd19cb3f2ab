"""The doctor's figures as DuckDB queries, written by hand for this log format, as a careful analyst would do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

# One row for each delivery.
DELIVERIES: Final = """
CREATE TEMP TABLE deliveries AS
SELECT queue, message_id, receive_count AS n, max(handler) AS handler, max(key) AS key,
       min("at") FILTER (step = 'received') AS received_at,
       min("at") FILTER (step = 'started') AS started_at,
       min(seconds) FILTER (step = 'started') AS wait,
       max(seconds) FILTER (step IN ('recorded', 'retried', 'fenced', 'rejected', 'skipped', 'released') AND seconds > 0) AS work,
       max("at") FILTER (step NOT IN ('received', 'started', 'claimed', 'taken_over', 'heartbeat', 'deleted', 'held', 'delete_failed'))
         AS outcome_at,
       min("at") FILTER (step = 'deleted') AS deleted_at,
       max("at") FILTER (step = 'delete_failed') AS delete_failed_at,
       max("at") AS last_at,
       max("at" + visibility) FILTER (step IN ('received', 'heartbeat')) AS deadline,
       max(visibility) FILTER (step IN ('received', 'started')) AS timeout,
       bool_or(step IN ('recorded', 'skipped', 'rejected', 'duplicate')) AS settled,
       bool_or(step IN ('retried', 'released', 'ledger_down', 'bounced', 'conflict')) AS returned,
       bool_or(step IN ('lost', 'fenced')) AS lost,
       bool_or(step = 'held') AS held,
       bool_or(step IN ('duplicate', 'bounced', 'held', 'conflict', 'ledger_down', 'released')) AS not_run,
       bool_or(step = 'duplicate') AS duplicate, bool_or(step = 'recorded') AS effect, bool_or(step = 'started') AS ran, bool_or(step = 'rejected') AS rejected,
       count(*) FILTER (step = 'heartbeat') AS heartbeats,
       min(sent_at) AS sent_at, count(DISTINCT "group") AS groups
FROM {source}
GROUP BY ALL
"""
CAUSES: Final = """
CREATE TEMP TABLE classified AS
WITH ordered AS (
  SELECT *, CASE WHEN ran OR NOT not_run THEN coalesce(deleted_at, outcome_at) - received_at END AS hold,
         lag(n) OVER w AS p_n, lag(received_at) OVER w AS p_received, lag(last_at) OVER w AS p_last,
         lag(outcome_at) OVER w AS p_outcome, lag(deleted_at) OVER w AS p_deleted, lag(settled) OVER w AS p_settled,
         lag(coalesce(deleted_at, delete_failed_at, outcome_at)) OVER w AS p_ended,
         lag(returned) OVER w AS p_returned, lag(lost) OVER w AS p_lost,
         max(deadline) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS hidden_until
  FROM deliveries WINDOW w AS (PARTITION BY queue, message_id ORDER BY received_at, n)
)
SELECT * EXCLUDE (p_received), CASE
  WHEN n > coalesce(p_n, 0) + 1 THEN 'unlogged'
  WHEN p_n IS NULL THEN NULL
  WHEN p_returned AND NOT p_settled AND p_outcome <= received_at + 0.25 THEN 'retry'
  WHEN p_deleted <= received_at
       AND NOT (received_at < hidden_until - least(0.1 * timeout, 1) AND p_deleted > received_at - 0.25)
    THEN CASE WHEN p_ended > hidden_until - least(0.1 * timeout, 1) THEN 'visibility' ELSE 'lost-delete' END
  WHEN received_at < hidden_until - least(0.1 * timeout, 1) THEN 'concurrent'
  WHEN p_last > received_at OR (p_lost AND NOT p_settled) THEN 'visibility'
  WHEN p_settled THEN CASE WHEN p_ended > hidden_until - least(0.1 * timeout, 1) THEN 'visibility' ELSE 'lost-delete' END
  ELSE 'crash' END AS cause,
  greatest(0, coalesce(p_deleted, p_outcome, p_last) - hidden_until) AS over
FROM ordered
"""
MESSAGES: Final = """
CREATE TEMP TABLE messages AS
SELECT queue, message_id, count(*) AS deliveries, max(n) AS receives, max(key) AS key, count(*) FILTER (effect) AS effects,
       min(received_at) AS first_at, max(last_at) AS last_at, min(sent_at) AS sent_at, bool_or(ran) AS ran, sum(work) AS work,
       bool_or(duplicate) AS duplicate
FROM classified GROUP BY ALL
"""
SHARED: Final = """
CREATE TEMP TABLE shared AS
WITH several AS (SELECT queue, key FROM messages WHERE key IS NOT NULL GROUP BY ALL HAVING count(*) > 1),
     ordered AS (SELECT m.*, lag(effects) OVER w AS p_effects, lag(last_at) OVER w AS p_last, lag(duplicate) OVER w AS p_duplicate
                 FROM messages m JOIN several USING (queue, key) WINDOW w AS (PARTITION BY queue, key ORDER BY first_at, message_id))
SELECT *, CASE WHEN p_effects = 0 AND NOT p_duplicate AND p_last <= first_at + 0.25 THEN 'redrive' ELSE 'producer' END AS cause
FROM ordered WHERE p_effects IS NOT NULL
"""
_P: Final = "[0.5, 0.9, 0.99, 0.999]"
FIGURES: Final = {
    "writers": """SELECT queue, handler, worker, count(*), min("at"), max("at"),
                   min("at" - sent_at) FILTER (step = 'received' AND receive_count = 1)
                 FROM {source} GROUP BY ALL""",
    "queues": f"""SELECT queue, count(*) AS deliveries, count(*) FILTER (ran) AS attempts, count(*) FILTER (effect) AS effects,
                    count(*) FILTER (cause = 'retry') AS retries, sum(heartbeats), arg_max(timeout, received_at),
                    approx_quantile(work, {_P}), max(work), approx_quantile(wait, {_P}), max(wait),
                    approx_quantile(hold, {_P}), max(hold), approx_count_distinct(received_at)
                  FROM classified GROUP BY queue""",
    "handlers": f"""SELECT queue, handler, approx_quantile(work, {_P}), max(work), approx_quantile(wait, {_P}), max(wait)
                    FROM classified GROUP BY ALL""",
    "causes": f"""SELECT queue, cause, count(*) AS duplicates, count(*) FILTER (ran), sum(work) FILTER (ran),
                    approx_quantile(over, {_P}), max(over)
                  FROM (SELECT queue, cause, ran, work, over FROM classified WHERE cause IS NOT NULL AND cause <> 'retry'
                        UNION ALL SELECT queue, cause, ran, work, NULL FROM shared) GROUP BY ALL""",
    "messages": """SELECT queue, count(*) AS messages, count(*) FILTER (greatest(deliveries, receives) >= 3) FROM messages
                   GROUP BY queue""",
    "doubled": """SELECT queue, count(*) FROM (SELECT queue, coalesce(key, message_id) AS identity FROM messages WHERE effects > 0
                  GROUP BY ALL HAVING sum(effects) > 1) GROUP BY queue""",
    "looping": """SELECT * FROM messages WHERE greatest(deliveries, receives) >= 3
                  QUALIFY row_number() OVER (PARTITION BY queue ORDER BY greatest(deliveries, receives) DESC) <= 20""",
    "histogram": "SELECT queue, floor(log10(greatest(hold, 0.001)) * 8), count(*) FROM classified WHERE hold >= 0 GROUP BY ALL",
    "windows": """SELECT queue, w, sum(sent), sum(received), sum(deleted), sum(duplicates) FROM (
                    SELECT queue, floor(received_at / 60) AS w, 0 AS sent, count(*) AS received, 0 AS deleted,
                      count(*) FILTER (cause IS NOT NULL AND cause <> 'retry') AS duplicates FROM classified GROUP BY ALL
                    UNION ALL SELECT queue, floor(deleted_at / 60), 0, 0, count(*), 0 FROM classified WHERE deleted_at IS NOT NULL GROUP BY ALL
                    UNION ALL SELECT queue, floor(sent_at / 60), count(*), 0, 0, 0 FROM messages GROUP BY ALL) GROUP BY ALL""",
    "errors": """SELECT * FROM (
                   SELECT queue, regexp_replace(regexp_replace(left(error, 300), '''[^'']*''', '…', 'g'), '\\d+', 'N', 'g') AS print,
                     count(*) AS n, approx_count_distinct(message_id), min("at"), max("at"), arg_min(error, "at"), min(message_id)
                   FROM {source} WHERE error IS NOT NULL GROUP BY ALL)
                 QUALIFY row_number() OVER (PARTITION BY queue ORDER BY n DESC) <= 20""",
    "changes": """SELECT queue, t, count(*) FILTER (hold > t) FROM classified, (VALUES (1), (2), (5), (10), (20), (30), (60), (45)) v(t)
                  GROUP BY ALL""",
    "examples": """SELECT e.* FROM {source} e JOIN (
                     SELECT queue, message_id, received_at FROM classified WHERE cause IS NOT NULL AND cause <> 'retry'
                     QUALIFY row_number() OVER (PARTITION BY queue, cause ORDER BY received_at) <= 5) x
                   ON e.queue = x.queue AND e.message_id = x.message_id AND e."at" BETWEEN x.received_at - 60 AND x.received_at + 60
                   LIMIT 5000""",
}


_JSON_COLUMNS: Final = """{"at": 'DOUBLE', step: 'VARCHAR', queue: 'VARCHAR', message_id: 'VARCHAR', key: 'VARCHAR',
  receive_count: 'BIGINT', sent_at: 'DOUBLE', "group": 'VARCHAR', seconds: 'DOUBLE', visibility: 'DOUBLE', error: 'VARCHAR',
  worker: 'VARCHAR', handler: 'VARCHAR'}"""


def run(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All figures of a folder with Parquet files, or with JSON lines."""
    base = duckdb.connect()
    base.execute("SET threads=2; SET memory_limit='3GB'; SET preserve_insertion_order=false")
    source = f"read_parquet('{folder}/*.parquet')"
    if not any(folder.glob("*.parquet")):  # parse the lines only once
        lines = f"read_json('{folder}/*.jsonl', format='newline_delimited', columns={_JSON_COLUMNS})"
        base.execute(f"CREATE TEMP TABLE events AS FROM {lines}")
        source = "events"
    for statement in (DELIVERIES, CAUSES, MESSAGES, SHARED):
        base.execute(statement.replace("{source}", source))
    figures = {name: base.execute(query.replace("{source}", source)).fetchall() for name, query in FIGURES.items()}
    base.close()
    return figures

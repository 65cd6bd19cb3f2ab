"""A day's attempt log with known causes, made by DuckDB in seconds: every figure follows from a message's number."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

START: Final = 1_760_000_000.0
RATE: Final = 2_000.0  # messages a second
# Of a thousand messages: how many have which fate. The rest goes well.
FATES: Final = {"visibility": 20, "crash": 5, "lost": 5, "retry": 10, "concurrent": 5, "producer": 5}
EVENTS_PER_MESSAGE: Final = 5.18

_MESSAGES: Final = """
CREATE OR REPLACE TEMP TABLE messages AS
SELECT i, 'queue-' || (i % 4) AS queue, 'handler_' || (i % 4) AS handler,
       printf('%08x-0000-4000-8000-%012x', i % 4294967296, i) AS id, 'order-' || i AS key,
       {start} + i / {rate} AS b, (hash(i) % 1000)::INT AS r,
       -- from 20 ms to some seconds, with a long tail; beyond the timeout of 30 s only where that is the fate
       CASE WHEN hash(i) % 1000 < {visibility} THEN 31 + (hash(i + 7) % 9000) / 1000.0
            ELSE least(25, 0.02 * exp((hash(i + 3) % 4000) / 1000.0)) END AS work,
       'host-' || (i % 16) || '/100' || '/1' AS worker, 'host-' || ((i + 5) % 16) || '/100' || '/1' AS other
FROM range({first}, {last}) AS t(i)
"""
# One branch for each event of each delivery: at, step, receive count, seconds, error, worker, id.
_OK: Final = (
    ("0", "received", "0"),
    ("0.002", "claimed", "0.002"),
    ("0.003", "started", "0.003"),
    ("0.003 + work", "recorded", "work"),
    ("0.01 + work", "deleted", "0"),
)


def _branch(
    where: str, at: str, step: str, count: int, seconds: str, worker: str, *, id: str = "id", error: str = "NULL"
) -> str:
    return (
        f"SELECT b + {at} AS \"at\", '{step}' AS step, queue, {id} AS message_id, key, 1 AS fence, 1 AS attempt, "
        f'{count} AS receive_count, b - 0.05 AS sent_at, NULL::VARCHAR AS "group", {seconds} AS seconds, '
        f"30.0 AS visibility, {error} AS error, {worker} AS worker, 'body' AS key_origin, NULL::BIGINT AS count, "
        f"handler FROM messages WHERE {where}"
    )


def _events() -> str:
    edge: dict[str, tuple[int, int]] = {}
    low = 0
    for name, share in FATES.items():
        edge[name] = (low, low + share)
        low += share

    def fate(name: str) -> str:
        return f"r >= {edge[name][0]} AND r < {edge[name][1]}"

    quiet = f"NOT ({fate('crash')} OR {fate('retry')})"
    branches = [_branch(quiet, at, step, 1, seconds, "worker") for at, step, seconds in _OK]
    # Who died said nothing more; who failed put it back for a second.
    for name in ("crash", "retry"):
        branches += [_branch(fate(name), at, step, 1, seconds, "worker") for at, step, seconds in _OK[:3]]
    failed = "'TimeoutError: order ' || i || ' took longer than ' || (r * 10) || ' ms'"
    branches.append(_branch(fate("retry"), "0.5", "retried", 1, "0.497", "worker", error=failed))
    for name, after in (("visibility", "30.2"), ("crash", "30.3"), ("retry", "1.6")):
        branches += [_branch(fate(name), f"{after} + {at}", step, 2, seconds, "other") for at, step, seconds in _OK]
    for at, step in (("0", "received"), ("0.002", "duplicate"), ("0.01", "deleted")):
        branches.append(_branch(fate("lost"), f"work + 30.1 + {at}", step, 2, "0", "other"))
        branches.append(_branch(fate("producer"), f"1 + {at}", step, 1, "0", "other", id="'p' || id"))
    for at, step in (("0.004", "received"), ("0.006", "bounced")):
        branches.append(_branch(fate("concurrent"), at, step, 2, "0", "other"))
    return " UNION ALL ".join(branches)


def make(folder: Path, events: int, *, hot: int = 0) -> int:
    """Write about `events` events; `hot`: so many more, all of one message. Returns how many there are."""
    folder.mkdir(parents=True)
    base = duckdb.connect()
    base.execute("SET threads=2; SET memory_limit='3GB'; SET preserve_insertion_order=false")
    count, step = int(events / EVENTS_PER_MESSAGE), 200_000
    for file, first in enumerate(range(0, count, step)):
        fields = {"start": START, "rate": RATE, "first": first, "last": min(count, first + step)}
        base.execute(_MESSAGES.format(**fields, visibility=FATES["visibility"]))
        # A worker writes in the order of time.
        path = f"{folder}/part-{file:05}.parquet"
        base.execute(f"COPY ({_TYPED} FROM ({_events()}) ORDER BY 1) TO '{path}' (COMPRESSION zstd)")
    if hot:
        base.execute(_HOT.format(typed=_TYPED, start=START, hot=hot // 2, path=f"{folder}/part-hot.parquet"))
    (total,) = base.execute(f"SELECT count(*) FROM '{folder}/*.parquet'").fetchone() or (0,)
    base.close()
    return int(total)


# As the attempt log's own Parquet has them.
_TYPED: Final = """
SELECT "at"::DOUBLE AS "at", step, queue, message_id, key, fence::BIGINT AS fence, attempt::BIGINT AS attempt,
       receive_count::BIGINT AS receive_count, sent_at::DOUBLE AS sent_at, "group", seconds::DOUBLE AS seconds,
       visibility::DOUBLE AS visibility, error, worker, key_origin, count, handler
"""
_HOT: Final = """
COPY (
  {typed} FROM (
  SELECT {start} + n + d AS "at", step, 'queue-0' AS queue, 'hot' AS message_id, 'order-hot' AS key, 1 AS fence,
         n AS attempt, n AS receive_count, {start} - 1 AS sent_at, NULL::VARCHAR AS "group", 0.5 AS seconds,
         30.0 AS visibility, CASE WHEN step = 'retried' THEN 'ValueError: poison' END AS error, 'host-1/1' AS worker,
         'body' AS key_origin, NULL::BIGINT AS count, 'handler_0' AS handler
  FROM range(1, {hot} + 1) AS t(n), (VALUES (0.0, 'received'), (0.5, 'retried')) AS s(d, step)
  )
) TO '{path}' (COMPRESSION zstd)
"""

"""The tables of the PostgreSQL ledger, their migrations, and every SQL statement that it runs on them.

The rules: a change of the tables is a new entry at the end of MIGRATIONS, never an edit of an old one. Statements
lock rows in the order of their keys, so that overlapping batches wait for each other but never deadlock. The only index
besides that of the keys has the minute of `expires`, so that a record soon after its claim changes no index at all (a
HOT update, for which half of each page is left free).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields
from typing import Any, Final, LiteralString, cast

import psycopg
from psycopg import sql

from semel.ledger.contract import LedgerError, Status

# The stored values. TAKEN_OVER is a claim that was taken over from a holder whose lease had run out.
FREE, CLAIMED, TAKEN_OVER, DONE, REJECTED = range(5)
STATUS: Final = (Status.FREE, Status.CLAIMED, Status.CLAIMED, Status.DONE, Status.REJECTED)
CODE: Final = {Status.DONE: DONE, Status.REJECTED: REJECTED}

# Keys are bytes: they compare fast, in one order under any locale, and hold what `text` cannot (a NUL, any encoding).
# Times are seconds since 1970. The view is for people.
MIGRATIONS: Final[tuple[LiteralString, ...]] = (
    """
    CREATE TABLE {ledger} (
        key        bytea PRIMARY KEY,
        fence      bigint NOT NULL,
        lease_ends float8 NOT NULL,
        first_seen float8 NOT NULL,
        changed    float8 NOT NULL,
        expires    float8 NOT NULL,
        attempt    integer NOT NULL,
        minute     integer NOT NULL GENERATED ALWAYS AS (floor(expires / 60)::integer) STORED,
        status     smallint NOT NULL,
        claimant   text NOT NULL,
        payload    text NOT NULL,
        source     text NOT NULL,
        result     bytea,
        notes      jsonb
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
    CREATE INDEX ledger_minute ON {ledger} (minute);
    CREATE TABLE {outbox} (
        id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        hidden_until float8 NOT NULL,
        queue        text NOT NULL,
        body         text NOT NULL,
        key          text NOT NULL,
        delay        integer,
        "group"      text,
        attributes   jsonb NOT NULL
    );
    CREATE INDEX outbox_groups ON {outbox} (queue, "group", id) WHERE "group" IS NOT NULL;
    CREATE VIEW {readable} AS SELECT
        CASE WHEN position('\\x00'::bytea IN key) > 0 THEN encode(key, 'escape') ELSE convert_from(key, 'UTF8') END
            AS key,
        (ARRAY['free', 'claimed', 'claimed', 'done', 'rejected'])[status + 1] AS status,
        fence, attempt, claimant, to_timestamp(lease_ends) AS lease_ends, payload, source,
        length(result) AS result_bytes, to_timestamp(first_seen) AS first_seen,
        to_timestamp(changed) AS changed, to_timestamp(expires) AS expires
    FROM {ledger};
    """,
    """
    ALTER TABLE {outbox}
        ADD COLUMN attempts integer NOT NULL DEFAULT 0,
        ADD COLUMN error    text NOT NULL DEFAULT '';
    """,
    # The floor as it is now, and not as the calling statement sees it. `after` is not used: it makes the caller compute
    # its value before the floor is read.
    """
    CREATE FUNCTION {fence_floor}(after bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        RETURN (SELECT meta.fence_floor FROM {semel_meta} AS meta LIMIT 1);
    END $$;
    """,
)

# One row. `fence_floor`: the highest fence of a key that was purged.
META: Final = """
CREATE TABLE {semel_meta} (version integer NOT NULL, identity text NOT NULL, fence_floor bigint NOT NULL)
"""

META_TABLE: Final = """
SELECT FROM pg_class AS r JOIN pg_namespace AS n ON n.oid = r.relnamespace
WHERE n.nspname = %s AND r.relname = 'semel_meta'
"""

NOW: Final = """
now_ AS MATERIALIZED (SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS at)
"""

# The conditions read the known row (r); `excluded` is the row of a new key, and its `changed` is now. A claim that is
# refused returns no row: WHY_REFUSED is asked next. A new key gets a fence above those of all keys that were purged, so
# that the fence of a key that comes back still grows. If a purge commits while this statement waits for one of its
# keys, the floor has been raised since: the fence of that row is then `too_low`.
CLAIM: Final = f"""
WITH {NOW}, floor_ AS MATERIALIZED (SELECT fence_floor AS fence FROM {{semel_meta}} LIMIT 1),
won AS (
INSERT INTO {{ledger}} AS r
    (key, fence, lease_ends, first_seen, changed, expires, attempt, status, claimant, payload, source)
SELECT ask.key, floor_.fence + 1, at + ask.lease, at, at, at + greatest(ask.lease, %(retention)s::float8), 1, {CLAIMED},
       ask.claimant, ask.payload, ask.source
FROM now_ CROSS JOIN floor_
CROSS JOIN unnest(%(keys)b::bytea[], %(payloads)b::text[], %(sources)b::text[], %(claimants)b::text[],
                            %(leases)b::float8[]) AS ask(key, payload, source, claimant, lease)
ORDER BY ask.key
ON CONFLICT (key) DO UPDATE SET
    fence = r.fence + CASE WHEN r.status IN ({CLAIMED}, {TAKEN_OVER}) AND r.claimant = excluded.claimant
                                AND r.expires > excluded.changed THEN 0 ELSE 1 END,
    attempt = CASE WHEN r.expires <= excluded.changed OR r.status = {REJECTED} THEN 1
                   WHEN r.status IN ({CLAIMED}, {TAKEN_OVER}) AND r.claimant = excluded.claimant THEN r.attempt
                   ELSE r.attempt + 1 END,
    status = CASE WHEN r.expires <= excluded.changed OR r.status NOT IN ({CLAIMED}, {TAKEN_OVER}) THEN {CLAIMED}
                  WHEN r.claimant = excluded.claimant THEN r.status
                  ELSE {TAKEN_OVER} END,
    notes = CASE WHEN r.expires <= excluded.changed OR r.status = {REJECTED} THEN NULL ELSE r.notes END,
    payload = CASE WHEN r.expires <= excluded.changed OR r.status = {REJECTED} OR r.payload = ''
                   THEN excluded.payload ELSE r.payload END,
    first_seen = CASE WHEN r.expires <= excluded.changed THEN excluded.changed ELSE r.first_seen END,
    claimant = excluded.claimant, lease_ends = excluded.lease_ends, source = excluded.source,
    changed = excluded.changed, expires = excluded.expires, result = NULL
WHERE r.expires <= excluded.changed
   OR (r.status = {REJECTED} AND r.source <> excluded.source)
   OR ((r.payload = excluded.payload OR r.payload = '' OR excluded.payload = '')
       AND (r.status = {FREE}
            OR (r.status IN ({CLAIMED}, {TAKEN_OVER})
                AND (r.claimant = excluded.claimant OR r.lease_ends <= excluded.changed))))
RETURNING r.key, r.fence, r.attempt, r.status, r.notes, r.xmax = 0 AS is_new
)
SELECT won.key, won.fence, won.attempt, won.status, won.notes, won.is_new AND won.fence <= latest.floor AS too_low
FROM (SELECT count(*) AS rows FROM won) AS all_ CROSS JOIN LATERAL {{fence_floor}}(all_.rows) AS latest(floor)
CROSS JOIN won
"""

# For claims that were just won, and that no caller knows yet.
RAISE: Final = """
UPDATE {ledger} AS r SET fence = floor_.fence + 1
FROM (SELECT fence_floor AS fence FROM {semel_meta} LIMIT 1) AS floor_
CROSS JOIN unnest(%(keys)b::bytea[], %(fences)b::int8[]) AS given(key, fence)
WHERE r.key = given.key AND r.fence = given.fence
RETURNING r.key, r.fence
"""

# Why a claim was refused. This is a separate statement, because CLAIM sees the rows as they were when it began.
WHY_REFUSED: Final = f"""
WITH {NOW}
SELECT key, status, lease_ends - at, payload, source, result
FROM {{ledger}} CROSS JOIN now_
WHERE key = ANY(%(keys)b::bytea[]) AND expires > at
"""

# Known rows that no other transaction has locked.
AVAILABLE: Final = "SELECT key FROM {ledger} WHERE key = ANY(%(keys)b::bytea[]) FOR UPDATE SKIP LOCKED"
KNOWN: Final = "SELECT key FROM {ledger} WHERE key = ANY(%(keys)b::bytea[])"

# Those of the given claims that are still in force, locked in the order of their keys.
_HELD: Final = f"""
    JOIN {{ledger}} AS r ON r.key = given.key AND r.fence = given.fence
    WHERE r.status IN ({CLAIMED}, {TAKEN_OVER}) AND r.expires > now_.at
    ORDER BY r.key FOR NO KEY UPDATE OF r"""

# From here on the row is locked. If the process is stopped before its COMMIT, the server ends the session after a
# while, so that the row does not stay locked for all others.
RECORD: Final = f"""
WITH {NOW},
held AS MATERIALIZED (
    SELECT r.key, given.status, given.result, at, at + coalesce(given.retention, %(retention)s::float8) AS expires
    FROM now_ CROSS JOIN unnest(%(keys)b::bytea[], %(fences)b::int8[], %(statuses)b::int8[], %(results)b::bytea[],
                                %(retentions)b::float8[]) AS given(key, fence, status, result, retention)
    {_HELD}
)
UPDATE {{ledger}} AS r
SET status = held.status::smallint, result = nullif(held.result, ''), notes = NULL, changed = at, expires = held.expires
FROM held WHERE r.key = held.key
RETURNING r.key, set_config('idle_in_transaction_session_timeout', %(idle)s, true)
"""

# For completions that RECORD did not find held: the same outcome may have been recorded before.
RECORDED: Final = f"""
WITH {NOW}
SELECT key, fence, status FROM {{ledger}} CROSS JOIN now_ WHERE key = ANY(%(keys)b::bytea[]) AND expires > at
"""

EXTEND: Final = f"""
WITH {NOW},
held AS MATERIALIZED (
    SELECT r.key, at, at + given.lease AS lease_ends, at + greatest(given.lease, %(retention)s::float8) AS expires
    FROM now_ CROSS JOIN unnest(%(keys)b::bytea[], %(fences)b::int8[], %(leases)b::float8[])
                         AS given(key, fence, lease)
    {_HELD}
)
UPDATE {{ledger}} AS r SET lease_ends = held.lease_ends, changed = at, expires = held.expires
FROM held WHERE r.key = held.key
RETURNING r.key
"""

RELEASE: Final = f"""
WITH {NOW},
held AS MATERIALIZED (
    SELECT r.key, at, given.untried
    FROM now_ CROSS JOIN unnest(%(keys)b::bytea[], %(fences)b::int8[], %(untried)b::int8[])
                         AS given(key, fence, untried)
    {_HELD}
)
UPDATE {{ledger}} AS r
SET status = {FREE}, attempt = r.attempt - held.untried, claimant = '', lease_ends = at, changed = at,
    expires = at + %(retention)s::float8
FROM held WHERE r.key = held.key
RETURNING r.key
"""

# `size` is that of the other notes. If all are too large together, nothing is written; the second count is then 0.
NOTE: Final = f"""
WITH {NOW},
held AS MATERIALIZED (
    SELECT r.key, r.notes, at FROM now_ CROSS JOIN {{ledger}} AS r
    WHERE r.key = %(key)b::bytea AND r.fence = %(fence)s::int8
      AND r.status IN ({CLAIMED}, {TAKEN_OVER}) AND r.expires > at
    FOR NO KEY UPDATE OF r
),
others AS (
    SELECT coalesce(sum(length(decode(note.value, 'base64'))), 0) AS size
    FROM held CROSS JOIN jsonb_each_text(held.notes) AS note WHERE note.key <> %(name)s::text
),
written AS (
    UPDATE {{ledger}} AS r
    SET notes = coalesce(r.notes, jsonb_build_object())
                || jsonb_build_object(%(name)s::text, encode(%(value)b::bytea, 'base64')),
        changed = at, expires = greatest(r.lease_ends, at + %(retention)s::float8)
    FROM held CROSS JOIN others
    WHERE r.key = held.key AND others.size + length(%(value)b::bytea) <= %(most)s
    RETURNING r.key
)
SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM written)
"""

FORGET: Final = f"""
WITH {NOW},
known AS MATERIALIZED (
    SELECT key, at FROM now_ CROSS JOIN {{ledger}} WHERE key = ANY(%(keys)b::bytea[]) AND expires > at
    ORDER BY key FOR NO KEY UPDATE OF ledger
)
UPDATE {{ledger}} AS r
SET status = {FREE}, attempt = 0, claimant = '', payload = '', source = '', result = NULL, notes = NULL,
    lease_ends = at, changed = at, expires = at + %(retention)s::float8
FROM known WHERE r.key = known.key
RETURNING r.key
"""

PURGE: Final = f"""
WITH {NOW},
expired AS MATERIALIZED (
    SELECT key FROM {{ledger}}
    WHERE minute <= (SELECT floor(at / 60)::integer FROM now_) AND expires <= (SELECT at FROM now_)
    ORDER BY minute LIMIT %(limit)s::int8
    FOR UPDATE SKIP LOCKED
),
removed AS (DELETE FROM {{ledger}} AS r USING expired WHERE r.key = expired.key RETURNING r.fence),
highest AS (SELECT max(fence) AS fence FROM removed),
raised AS (UPDATE {{semel_meta}} SET fence_floor = highest.fence FROM highest WHERE fence_floor < highest.fence)
SELECT count(*) FROM removed
"""

LOOK: Final = f"""
WITH {NOW}
SELECT key, status, fence, attempt, claimant, lease_ends, payload, source, result, notes, first_seen, changed, expires
FROM {{ledger}} CROSS JOIN now_
WHERE key = ANY(%(keys)b::bytea[]) AND expires > at
"""

SEND: Final = """
INSERT INTO {outbox} (hidden_until, queue, body, key, delay, "group", attributes)
VALUES (0, %(queue)s, %(body)s, %(key)s, %(delay)s, %(group)s, %(attributes)s)
"""

DUE: Final = f"WITH {NOW} SELECT 1 FROM {{outbox}} WHERE hidden_until <= (SELECT at FROM now_) LIMIT 1"

# One dispatcher takes messages at a time, so that a message of a group waits for all earlier messages of the group. The
# lock is a separate statement, because TAKE sees only what was committed before it began.
TAKING: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%(name)s::text, 0))"
TAKE: Final = f"""
WITH {NOW},
taken AS MATERIALIZED (
    SELECT id FROM {{outbox}} AS it CROSS JOIN now_
    WHERE hidden_until <= at AND NOT EXISTS (
        SELECT FROM {{outbox}} AS earlier
        WHERE earlier.queue = it.queue AND earlier."group" = it."group" AND earlier.id < it.id
          AND earlier.hidden_until > at)
    ORDER BY id LIMIT %(limit)s::int8
    FOR UPDATE OF it SKIP LOCKED
)
UPDATE {{outbox}} AS o SET hidden_until = at + %(lease)s::float8
FROM now_ CROSS JOIN taken WHERE o.id = taken.id
RETURNING o.id, o.queue, o.body, o.key, o.delay, o."group", o.attributes, o.attempts, o.error
"""

REFUSED: Final = f"""
WITH {NOW}
UPDATE {{outbox}} SET hidden_until = at + %(wait)s::float8, attempts = attempts + 1, error = %(error)s
FROM now_ WHERE id = ANY(%(ids)b::int8[])
"""

COUNT_OUTGOING: Final = "SELECT count(*), count(*) FILTER (WHERE attempts > 0) FROM {outbox}"

EXAMPLES: Final = """
SELECT id, queue, body, key, delay, "group", attributes, attempts, error FROM {outbox}
WHERE attempts > 0 ORDER BY id LIMIT %(limit)s::int8
"""

SENT: Final = "DELETE FROM {outbox} WHERE id = ANY(%(ids)b::int8[])"


@dataclass(frozen=True, slots=True)
class Statements:
    """Every statement, with the names of the tables of one schema."""

    claim: str = CLAIM
    raise_fences: str = RAISE
    why_refused: str = WHY_REFUSED
    available: str = AVAILABLE
    known: str = KNOWN
    record: str = RECORD
    recorded: str = RECORDED
    extend: str = EXTEND
    release: str = RELEASE
    note: str = NOTE
    forget: str = FORGET
    purge: str = PURGE
    look: str = LOOK
    send: str = SEND
    due: str = DUE
    taking: str = TAKING
    take: str = TAKE
    sent: str = SENT
    refused: str = REFUSED
    count_outgoing: str = COUNT_OUTGOING
    examples: str = EXAMPLES

    @classmethod
    def within(cls, schema: str) -> Statements:
        return cls(**{field.name: _placed(cast(LiteralString, field.default), schema) for field in fields(cls)})


_NAMES: Final = ("ledger", "outbox", "readable", "semel_meta", "fence_floor")


def _placed(text: LiteralString, schema: str) -> str:
    tables = {name: sql.Identifier(schema, name) for name in _NAMES}
    return sql.SQL(text).format(schema=sql.Identifier(schema), **tables).as_string(None)


def migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Bring the tables of `schema` up to date. Any number of processes may do so at once: one works, others wait."""
    if _version(connection, schema) == len(MIGRATIONS):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"semel ledger {schema}",))
        version = _version(connection, schema)
        if version > len(MIGRATIONS):
            raise LedgerError(
                f"the ledger in the schema {schema!r} has version {version}, this Semel knows versions up to "
                f"{len(MIGRATIONS)}: upgrade Semel here, or use another schema"
            )
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            _run(connection, "CREATE SCHEMA {schema}", schema)
        if version == 0:
            _run(connection, META, schema)
            _run(connection, "INSERT INTO {semel_meta} VALUES (0, %s, 0)", schema, (uuid.uuid4().hex,))
        for script in MIGRATIONS[version:]:
            _run(connection, script, schema)
        _run(connection, "UPDATE {semel_meta} SET version = %s", schema, (len(MIGRATIONS),))


def identity(connection: psycopg.Connection[Any], schema: str) -> str:
    """A unique id of this ledger. The ids of its outgoing messages start with it."""
    row = _run(connection, "SELECT identity FROM {semel_meta}", schema).fetchone()
    return str(row[0]) if row else ""


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    """0: there is no ledger in the schema yet."""
    # Read from the catalogue itself: to_regclass() may answer with what was known before the wait for the lock.
    if connection.execute(META_TABLE, (schema,)).fetchone() is None:
        return 0
    row = _run(connection, "SELECT version FROM {semel_meta}", schema).fetchone()
    return int(row[0]) if row else 0


def _run(connection: psycopg.Connection[Any], text: LiteralString, schema: str, values: Any = None) -> Any:
    return connection.execute(_placed(text, schema).encode(), values)

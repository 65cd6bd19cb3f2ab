"""The ledger's operations on SQLite rows. `semel.ledger.rules.decide` decides each claim.

Everything that writes runs inside a transaction that its caller has begun, takes the time as `now`, and reports all
that it changes. The hot statements handle many rows at once, at a third of the cost of one statement for each row.
"""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, Self

import orjson

from semel.ledger.contract import (
    MAX_RESULT,
    Claim,
    ClaimRequest,
    ClaimResult,
    Completion,
    Entry,
    LedgerError,
    Status,
    Won,
)
from semel.ledger.rules import Winning, decide
from semel.ledger.sqlite.schema import DamagedRow

_COLUMNS: Final = (
    "key, status, fence, attempt, claimant, lease_ends, payload, source, result, notes, first_seen, changed, expires"
)
_FIND: Final = f"SELECT {_COLUMNS} FROM semel_ledger WHERE key IN"
# `purge_at` is never later than `expires`: a statement that makes `expires` earlier changes both. Nearly always
# `expires` becomes later; then the hot statements (EXTEND, RECORD) leave `purge_at` as it is, so that no index changes.
_PUT: Final = f"""
    INSERT INTO semel_ledger ({_COLUMNS}, purge_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?13)
    ON CONFLICT (key) DO UPDATE SET status = excluded.status, fence = excluded.fence, attempt = excluded.attempt,
        claimant = excluded.claimant, lease_ends = excluded.lease_ends, payload = excluded.payload,
        source = excluded.source, result = excluded.result, notes = excluded.notes, first_seen = excluded.first_seen,
        changed = excluded.changed, expires = excluded.expires, purge_at = min(purge_at, excluded.expires)
"""
# All new rows of a call share fence, claimant, lease_ends, now and expires. Each has its own key, payload and source.
_PUT_NEW: Final = f"INSERT INTO semel_ledger ({_COLUMNS}, purge_at) VALUES"
_NEW_ROW: Final = "(?{}, 'claimed', ?1, 1, ?2, ?3, ?{}, ?{}, x'', NULL, ?4, ?4, ?5, ?5)"
_OURS: Final = "fence = ? AND status = 'claimed' AND expires > ?"
_EXTEND: Final = f"""
    UPDATE semel_ledger SET lease_ends = ?, changed = ?, expires = ?, purge_at = min(purge_at, ?)
    WHERE key = ? AND {_OURS}
"""
_EXTEND_MANY: Final = f"""
    UPDATE semel_ledger SET lease_ends = ?, changed = ?, expires = ? WHERE purge_at <= ? AND {_OURS} AND key IN
"""
_RECORD: Final = f"""
    UPDATE semel_ledger SET status = ?, result = ?, notes = NULL, lease_ends = 0, changed = ?, expires = ?,
        purge_at = min(purge_at, ?)
    WHERE key = ? AND {_OURS}
"""
_RECORD_MANY: Final = f"""
    UPDATE semel_ledger SET status = ?, result = ?, notes = NULL, lease_ends = 0, changed = ?, expires = ?
    WHERE purge_at <= ? AND {_OURS} AND key IN
"""
_RELEASE: Final = f"""
    UPDATE semel_ledger SET status = 'free', claimant = '', lease_ends = 0, attempt = attempt - ?, changed = ?,
        expires = ?, purge_at = min(purge_at, ?)
    WHERE key = ? AND {_OURS}
"""
_NOTES: Final = f"SELECT notes, lease_ends FROM semel_ledger WHERE key = ? AND {_OURS}"
_NOTE: Final = f"""
    UPDATE semel_ledger SET notes = ?, changed = ?, expires = ?, purge_at = min(purge_at, ?) WHERE key = ? AND {_OURS}
"""
_FORGET: Final = """
    UPDATE semel_ledger SET status = 'free', attempt = 0, claimant = '', lease_ends = 0, payload = '', source = '',
        result = x'', notes = NULL, changed = ?, expires = ?, purge_at = min(purge_at, ?)
    WHERE key = ? AND expires > ?
"""
_DUE: Final = "SELECT rowid, fence, expires FROM semel_ledger WHERE purge_at <= ? ORDER BY purge_at LIMIT ?"
_REMOVE: Final = "DELETE FROM semel_ledger WHERE rowid = ?"
_LATER: Final = "UPDATE semel_ledger SET purge_at = ? WHERE rowid = ?"
# The highest fence of all removed keys. New keys start above it, so that the fence of a key that comes back still
# grows.
_FLOOR: Final = "SELECT value FROM semel_meta WHERE name = 'floor'"
_RAISE_FLOOR: Final = "UPDATE semel_meta SET value = max(value, ?) WHERE name = 'floor'"

_STATUSES: Final = frozenset(status.value for status in Status)
_TEXT, _NUMBER = (str,), (int, float)
# The types of the columns, in order.
_TYPES: Final = (
    *(_TEXT, _TEXT, (int,), (int,), _TEXT, _NUMBER, _TEXT, _TEXT, (bytes,), (bytes, type(None))),
    *(_NUMBER, _NUMBER, _NUMBER),
)
_CLAIMED: Final = Status.CLAIMED.value  # the driver binds a plain string faster than an enum member
_FEW: Final = 8  # up to this many kinds of records in a call are written with one statement each
_LOOKED_AT: Final = 500  # rows that one transaction of a purge looks at, which takes a few milliseconds
_AT_ONCE: Final = 256  # rows of one statement, so that it has fewer than the 999 parameters that an old SQLite allows


class Row(NamedTuple):
    """One row of the table, with its columns in order; `notes` is still packed."""

    key: str
    status: str
    fence: int
    attempt: int
    claimant: str
    lease_ends: float
    payload: str
    source: str
    result: bytes = b""
    notes: bytes | None = None
    first_seen: float = 0.0
    changed: float = 0.0
    expires: float = 0.0


class Terms(NamedTuple):
    """What all requests of one claim call have in common."""

    claimant: str
    lease: float
    now: float
    expires: float

    @classmethod
    def of(cls, claimant: str, lease: float, now: float, retention: float) -> Self:
        # A claim whose lease is not over never expires.
        return cls(claimant, lease, now, now + max(retention, lease))


def claim(db: sqlite3.Cursor, requests: Sequence[ClaimRequest], terms: Terms) -> list[ClaimResult]:
    floor = _floor(db)
    fence, lease = floor + 1, terms.lease
    common = [fence, terms.claimant, terms.now + lease, terms.now, terms.expires]
    # Most keys are new: insert all of them, and only if some were there already find out which.
    new = 0
    for part in _parts(requests):
        values = common.copy()
        for request in part:
            values += (request.key, request.payload, request.source)
        new += db.execute(_put_new(len(part)), values).rowcount
    if new == len(requests):
        return [Won(Claim(request.key, fence), lease) for request in requests]
    return _claim_known(db, requests, terms, floor)


def _claim_known(db: sqlite3.Cursor, requests: Sequence[ClaimRequest], terms: Terms, floor: int) -> list[ClaimResult]:
    """Claim keys of which some were known. The new ones were just inserted for this claimant, so it wins them again
    unchanged."""
    rows = find(db, [request.key for request in requests])
    results: list[ClaimResult] = []
    written: dict[str, Row] = {}
    for request in requests:
        row = written.get(request.key)
        # If a key occurs again in the same call, its first occurrence counts as another claimant.
        claimant = terms.claimant if row is None else ""
        row = row or rows.get(request.key)
        decision = decide(request, row, claimant=claimant, now=terms.now)
        if not isinstance(decision, Winning):
            results.append(decision)
            continue
        won = _won(decision, request, row, terms, floor)
        written[request.key] = won
        taken_over = decision is Winning.TAKEOVER
        claim = Claim(won.key, won.fence)
        results.append(Won(claim, terms.lease, won.attempt, taken_over, unpacked(won.notes)))
    db.executemany(_PUT, written.values())
    return results


def _won(how: Winning, request: ClaimRequest, row: Row | None, terms: Terms, floor: int) -> Row:
    """The row of a key that is won."""
    now, ends = terms.now, terms.now + terms.lease
    if row is None or how in (Winning.NEW, Winning.REDRIVE):
        fence = (row.fence if row else floor) + 1
        first_seen = row.first_seen if row and how is Winning.REDRIVE else now
        # fmt: off
        return Row(request.key, _CLAIMED, fence, 1, terms.claimant, ends, request.payload, request.source,
                   first_seen=first_seen, changed=now, expires=terms.expires)
        # fmt: on
    if how is not Winning.AGAIN:
        # The source is that of the latest winner, because a rejection would be about that one.
        row = row._replace(fence=row.fence + 1, attempt=row.attempt + 1, source=request.source)
    return row._replace(
        status=_CLAIMED,
        claimant=terms.claimant,
        lease_ends=ends,
        payload=row.payload or request.payload,
        changed=now,
        expires=terms.expires,
    )


def extend(db: sqlite3.Cursor, claims: Sequence[Claim], lease: float, now: float, retention: float) -> list[bool]:
    ends, expires = now + lease, now + max(retention, lease)
    keys: dict[int, list[str]] = {}
    for claim in claims:
        keys.setdefault(claim.fence, []).append(claim.key)
    if _update(db, _EXTEND_MANY, [((ends, now, expires, expires, fence, now), them) for fence, them in keys.items()]):
        return [True] * len(claims)
    db.executemany(_EXTEND, [(ends, now, expires, expires, claim.key, claim.fence, now) for claim in claims])
    rows = find(db, [claim.key for claim in claims])
    return [_holds(rows.get(claim.key), claim, Status.CLAIMED, now) for claim in claims]


def record(db: sqlite3.Cursor, completions: Sequence[Completion], now: float, retention: float) -> list[bool]:
    def values(status: str, result: bytes, kept: float | None) -> tuple[str, bytes, float, float, float]:
        expires = now + (retention if kept is None else kept)
        return str(status), result, now, expires, expires

    alike: dict[tuple[str, bytes, float | None, int], list[str]] = {}
    for it in completions:
        alike.setdefault((it.status, it.result, it.retention, it.claim.fence), []).append(it.claim.key)
    if len(alike) <= _FEW:
        groups = [
            ((*values(status, result, kept), fence, now), keys) for (status, result, kept, fence), keys in alike.items()
        ]
        if _update(db, _RECORD_MANY, groups):
            return [True] * len(completions)
    singly = [(*values(it.status, it.result, it.retention), it.claim.key, it.claim.fence, now) for it in completions]
    if db.executemany(_RECORD, singly).rowcount == len(completions):
        return [True] * len(completions)
    # Some were refused, or recorded before. The rows, as they are now, tell the two apart.
    rows = find(db, [it.claim.key for it in completions])
    return [_holds(rows.get(it.claim.key), it.claim, it.status, now) for it in completions]


def _update(db: sqlite3.Cursor, statement: str, groups: Iterable[tuple[tuple[object, ...], list[str]]]) -> bool:
    """Run a statement on the keys of each group. Returns whether it has changed all of them."""
    all_changed = True
    for values, keys in groups:
        changed = sum(db.execute(f"{statement} {marks}", (*values, *part)).rowcount for marks, part in _in(keys))
        all_changed = all_changed and changed == len(keys)
    return all_changed


def _holds(row: Row | None, claim: Claim, status: Status, now: float) -> bool:
    return row is not None and row.fence == claim.fence and row.status == status and row.expires > now


def release(db: sqlite3.Cursor, claims: Sequence[Claim], tried: bool, now: float, retention: float) -> list[bool]:
    back, ends = 0 if tried else 1, now + retention
    return [db.execute(_RELEASE, (back, now, ends, ends, it.key, it.fence, now)).rowcount == 1 for it in claims]


def save_step(db: sqlite3.Cursor, claim: Claim, name: str, value: bytes, now: float, retention: float) -> bool:
    row = db.execute(_NOTES, (claim.key, claim.fence, now)).fetchone()
    if row is None:
        return False
    packed, lease_ends = row
    steps = {**unpacked(packed), name: value}
    size = sum(map(len, steps.values()))
    if size > MAX_RESULT:
        raise LedgerError(
            f"with the step {name!r} the steps of the key {claim.key!r} have {size} bytes, "
            f"the ledger keeps at most {MAX_RESULT} a key: store the results elsewhere and return their addresses"
        )
    expires = max(now + retention, lease_ends)
    db.execute(_NOTE, (_packed(steps), now, expires, expires, claim.key, claim.fence, now))
    return True


def forget(db: sqlite3.Cursor, keys: Iterable[str], now: float, retention: float) -> int:
    db.executemany(_FORGET, [(now, now + retention, now + retention, key, now) for key in dict.fromkeys(keys)])
    return max(db.rowcount, 0)


def purge(db: sqlite3.Cursor, limit: int, now: float) -> tuple[int, bool]:
    """Look at some rows: remove those that have expired, and have the others looked at again when they expire. Returns
    how many were removed, at most `limit`, and whether there may be more rows to look at."""
    due = db.execute(_DUE, (now, _LOOKED_AT)).fetchall()
    if any(_is_other(fence, (int,)) or _is_other(expires, (int, float)) for _, fence, expires in due):
        raise DamagedRow("the row of a key that is due to be removed has other values than a ledger writes")
    gone = [(rowid, fence) for rowid, fence, expires in due if expires <= now][:limit]
    if gone:
        db.execute(_RAISE_FLOOR, (max(fence for _, fence in gone),))
        db.executemany(_REMOVE, [(rowid,) for rowid, _ in gone])
    db.executemany(_LATER, [(expires, rowid) for rowid, _, expires in due if expires > now])
    return len(gone), len(due) == _LOOKED_AT


def find(db: sqlite3.Cursor, keys: Sequence[str]) -> dict[str, Row]:
    """The rows of these keys, including expired ones."""
    return {row[0]: _checked(Row(*row)) for marks, part in _in(keys) for row in db.execute(f"{_FIND} {marks}", part)}


def _checked(row: Row) -> Row:
    """SQLite has no checksums: a row with values that no ledger writes must not decide whether work is done again."""
    if row.status not in _STATUSES or any(map(_is_other, row, _TYPES)):
        raise DamagedRow(f"the row of the key {row.key!r} has other values than a ledger writes")
    return row


def _is_other(value: object, kinds: tuple[type, ...]) -> bool:
    return not isinstance(value, kinds)


def _floor(db: sqlite3.Cursor) -> int:
    rows = db.execute(_FLOOR).fetchall()
    if len(rows) != 1 or type(rows[0][0]) is not int:
        raise DamagedRow("it does not know the fences of the keys that were removed")
    return int(rows[0][0])


def _in(keys: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The right side of IN for these keys, in parts. Their lengths are powers of two, so that the driver finds the
    statements in its cache; the last key is repeated to fill up a part."""
    for start in range(0, len(keys), _AT_ONCE):
        part = keys[start : start + _AT_ONCE]
        size = 1 << (len(part) - 1).bit_length()
        yield f"({'?,' * (size - 1)}?)", [*part, *[part[-1]] * (size - len(part))]


def _parts(requests: Sequence[ClaimRequest]) -> Iterator[Sequence[ClaimRequest]]:
    """The requests, in parts whose lengths are powers of two, for the same reason."""
    start = 0
    while start < len(requests):
        size = min(_AT_ONCE, 1 << (len(requests) - start).bit_length() - 1)
        yield requests[start : start + size]
        start += size


@cache
def _put_new(count: int) -> str:
    first = 6
    rows = ", ".join(_NEW_ROW.format(n, n + 1, n + 2) for n in range(first, first + 3 * count, 3))
    return f"{_PUT_NEW} {rows} ON CONFLICT (key) DO NOTHING"


def entries(db: sqlite3.Cursor, keys: Sequence[str], now: float) -> list[Entry | None]:
    rows = find(db, keys)
    return [_entry(row) if (row := rows.get(key)) is not None and row.expires > now else None for key in keys]


def _entry(row: Row) -> Entry:
    return Entry(
        row.key,
        Status(row.status),
        row.fence,
        row.attempt,
        row.claimant,
        row.lease_ends,
        row.payload,
        row.source,
        row.result,
        unpacked(row.notes),
        row.first_seen,
        row.changed,
        row.expires,
    )


def _packed(steps: Mapping[str, bytes]) -> bytes:
    return orjson.dumps({name: base64.b64encode(value).decode() for name, value in steps.items()})


def unpacked(packed: bytes | None) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(value) for name, value in orjson.loads(packed).items()} if packed else {}
    except (ValueError, TypeError, AttributeError):
        raise DamagedRow("the steps of a key are not as a ledger writes them") from None

"""The ledger's rules over SQLite rows: who wins a claim, and which later writes still count.

`decide` is the rule, free of I/O. The rest runs inside a write transaction that its caller has begun, takes `now`, and
changes nothing that it does not report.
"""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import orjson

from semel.ledger.contract import (
    MAX_RESULT,
    Claim,
    ClaimRequest,
    ClaimResult,
    Completion,
    Conflict,
    Done,
    Entry,
    Held,
    LedgerError,
    Status,
    Won,
    check_result,
)

_COLUMNS: Final = (
    "key, status, fence, attempt, claimant, lease_ends, payload, source, result, notes, first_seen, changed, expires"
)
_FIND: Final = f"SELECT {_COLUMNS} FROM semel_ledger WHERE key IN"
_PUT: Final = f"""
    INSERT INTO semel_ledger ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET status = excluded.status, fence = excluded.fence, attempt = excluded.attempt,
        claimant = excluded.claimant, lease_ends = excluded.lease_ends, payload = excluded.payload,
        source = excluded.source, result = excluded.result, notes = excluded.notes, first_seen = excluded.first_seen,
        changed = excluded.changed, expires = excluded.expires
"""
_PUT_NEW: Final = f"""
    INSERT INTO semel_ledger ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING
"""
_OURS: Final = "WHERE key = ? AND fence = ? AND status = 'claimed' AND expires > ?"
_EXTEND: Final = f"UPDATE semel_ledger SET lease_ends = ?, changed = ?, expires = ? {_OURS}"
_RECORD: Final = f"""
    UPDATE semel_ledger SET status = ?, result = ?, notes = NULL, lease_ends = 0, changed = ?, expires = ? {_OURS}
"""
_RELEASE: Final = f"""
    UPDATE semel_ledger SET status = 'free', claimant = '', lease_ends = 0, attempt = attempt - ?, changed = ?,
        expires = ? {_OURS}
"""
_NOTES: Final = f"SELECT notes, lease_ends FROM semel_ledger {_OURS}"
_NOTE: Final = f"UPDATE semel_ledger SET notes = ?, changed = ?, expires = ? {_OURS}"
_FORGET: Final = """
    UPDATE semel_ledger SET status = 'free', attempt = 0, claimant = '', lease_ends = 0, payload = '', source = '',
        result = x'', notes = NULL, changed = ?, expires = ?
    WHERE key = ? AND expires > ?
"""
_EXPIRED: Final = "SELECT key, fence FROM semel_ledger WHERE expires <= ? ORDER BY expires LIMIT ?"
_REMOVE: Final = "DELETE FROM semel_ledger WHERE key = ?"
# No key starts below the fences of those that were removed: a removed key that comes back goes on growing.
_FLOOR: Final = "SELECT value FROM semel_meta WHERE name = 'floor'"
_RAISE_FLOOR: Final = "UPDATE semel_meta SET value = max(value, ?) WHERE name = 'floor'"

_CLAIMED: Final = Status.CLAIMED.value  # the driver binds a plain string faster than a member
_AT_ONCE: Final = 512  # keys in one SELECT


class Row(NamedTuple):
    """One row as the table has it, its columns in their order; `notes` is still packed."""

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


@dataclass(frozen=True, slots=True)
class Asking:
    """What all asks of one claim call have in common."""

    claimant: str
    lease: float
    now: float
    expires: float
    floor: int = 0


def asking(claimant: str, lease: float, now: float, keep: float) -> Asking:
    # A claim whose lease is not over never expires.
    return Asking(claimant, lease, now, now + max(keep, lease))


def decide(row: Row | None, ask: ClaimRequest, asking: Asking) -> tuple[ClaimResult, Row | None]:
    """The verdict on one ask, and the row to write if it won. An expired row is no row, but its fence goes on."""
    if row is None or row.expires <= asking.now:
        return _fresh(ask, asking, row.fence if row else asking.floor)
    differs = bool(ask.payload and row.payload and ask.payload != row.payload)
    match row.status:
        case Status.DONE:
            return (Conflict(ask.key, True) if differs else Done(ask.key, Status.DONE, row.result)), None
        case Status.REJECTED if row.source == ask.source:
            return Done(ask.key, Status.REJECTED, row.result), None
        case Status.REJECTED:
            verdict, fresh = _fresh(ask, asking, row.fence)
            return verdict, fresh._replace(first_seen=row.first_seen)
        case _ if differs:
            return Conflict(ask.key, False), None
        case Status.CLAIMED if row.claimant == asking.claimant:
            return _won(row._replace(payload=row.payload or ask.payload), asking)
        case Status.CLAIMED if row.lease_ends > asking.now:
            return Held(ask.key, row.lease_ends - asking.now), None
    again = row._replace(
        fence=row.fence + 1,
        attempt=row.attempt + 1,
        payload=row.payload or ask.payload,
        source=ask.source,  # of the last winner: that is the one a rejection will be about
    )
    return _won(again, asking, taken_over=row.status == Status.CLAIMED)


def _fresh(ask: ClaimRequest, asking: Asking, last_fence: int) -> tuple[ClaimResult, Row]:
    key, now, lease, fence = ask.key, asking.now, asking.lease, last_fence + 1
    claimant, expires = asking.claimant, asking.expires
    row = Row(key, _CLAIMED, fence, 1, claimant, now + lease, ask.payload, ask.source, b"", None, now, now, expires)
    return Won(Claim(key, fence), lease), row


def _won(row: Row, asking: Asking, *, taken_over: bool = False) -> tuple[ClaimResult, Row]:
    row = row._replace(
        status=_CLAIMED,
        claimant=asking.claimant,
        lease_ends=asking.now + asking.lease,
        changed=asking.now,
        expires=asking.expires,
    )
    notes = unpacked(row.notes)
    return Won(Claim(row.key, row.fence), asking.lease, row.attempt, taken_over, notes), row


def check_finishes(finishes: Sequence[Completion]) -> None:
    for finish in finishes:
        if finish.status not in (Status.DONE, Status.REJECTED):
            raise LedgerError(
                f"the key {finish.claim.key!r} cannot be recorded as {finish.status}: a claim ends as DONE or "
                "REJECTED; to give it back, release it"
            )
        check_result(finish.result, f"the result of the key {finish.claim.key!r}")


def claim(db: sqlite3.Cursor, asks: Sequence[ClaimRequest], asking: Asking) -> list[ClaimResult]:
    ((floor,),) = db.execute(_FLOOR).fetchall()
    asking = replace(asking, floor=floor)
    # Most keys are new: put them all in as such, and only if some were there already look at which.
    fresh = [_fresh(ask, asking, floor) for ask in asks]
    db.executemany(_PUT_NEW, [row for _, row in fresh])
    if db.rowcount == len(asks):
        return [verdict for verdict, _ in fresh]
    return _claim_known(db, asks, asking)


def _claim_known(db: sqlite3.Cursor, asks: Sequence[ClaimRequest], asking: Asking) -> list[ClaimResult]:
    """Those that are new have just been put in by this very claimant, so they are won again as they are."""
    rows = find(db, [ask.key for ask in asks])
    # To its own second place in the call, a key that was just won is held by somebody else.
    others = replace(asking, claimant="")
    verdicts: list[ClaimResult] = []
    written: dict[str, Row] = {}
    for ask in asks:
        again = written.get(ask.key)
        if again is not None:
            verdicts.append(decide(again, ask, others)[0])
            continue
        verdict, row = decide(rows.get(ask.key), ask, asking)
        verdicts.append(verdict)
        if row is not None:
            written[ask.key] = row
    db.executemany(_PUT, written.values())
    return verdicts


def extend(db: sqlite3.Cursor, claims: Sequence[Claim], lease: float, now: float, keep: float) -> list[bool]:
    ends, expires = now + lease, now + max(keep, lease)
    db.executemany(_EXTEND, [(ends, now, expires, claim.key, claim.fence, now) for claim in claims])
    if db.rowcount == len(claims):
        return [True] * len(claims)
    rows = find(db, [claim.key for claim in claims])
    return [_holds(rows.get(claim.key), claim, Status.CLAIMED, now) for claim in claims]


def record(db: sqlite3.Cursor, finishes: Sequence[Completion], now: float, keep: float) -> list[bool]:
    db.executemany(
        _RECORD,
        [
            (
                finish.status.value,
                finish.result,
                now,
                now + (keep if finish.keep is None else finish.keep),
                finish.claim.key,
                finish.claim.fence,
                now,
            )
            for finish in finishes
        ],
    )
    if db.rowcount == len(finishes):
        return [True] * len(finishes)
    # Some were refused, or were there before: what stands in the rows now tells the two apart.
    rows = find(db, [finish.claim.key for finish in finishes])
    return [_holds(rows.get(finish.claim.key), finish.claim, finish.status, now) for finish in finishes]


def _holds(row: Row | None, claim: Claim, status: Status, now: float) -> bool:
    return row is not None and row.fence == claim.fence and row.status == status and row.expires > now


def release(db: sqlite3.Cursor, claims: Sequence[Claim], tried: bool, now: float, keep: float) -> list[bool]:
    back = 0 if tried else 1
    return [db.execute(_RELEASE, (back, now, now + keep, it.key, it.fence, now)).rowcount == 1 for it in claims]


def note(db: sqlite3.Cursor, claim: Claim, name: str, value: bytes, now: float, keep: float) -> bool:
    row = db.execute(_NOTES, (claim.key, claim.fence, now)).fetchone()
    if row is None:
        return False
    packed, lease_ends = row
    notes = {**unpacked(packed), name: value}
    size = sum(map(len, notes.values()))
    if size > MAX_RESULT:
        raise LedgerError(
            f"with the note {name!r} the notes of the key {claim.key!r} have {size} bytes, "
            f"the ledger keeps at most {MAX_RESULT} a key: store them elsewhere and note their address"
        )
    db.execute(_NOTE, (_packed(notes), now, max(now + keep, lease_ends), claim.key, claim.fence, now))
    return True


def forget(db: sqlite3.Cursor, keys: Iterable[str], now: float, keep: float) -> int:
    db.executemany(_FORGET, [(now, now + keep, key, now) for key in dict.fromkeys(keys)])
    return max(db.rowcount, 0)


def purge(db: sqlite3.Cursor, limit: int, now: float) -> int:
    gone = db.execute(_EXPIRED, (now, limit)).fetchall()
    if gone:
        db.execute(_RAISE_FLOOR, (max(fence for _, fence in gone),))
        db.executemany(_REMOVE, [(key,) for key, _ in gone])
    return len(gone)


def find(db: sqlite3.Cursor, keys: Sequence[str]) -> dict[str, Row]:
    """The rows of these keys, expired ones too."""
    found: dict[str, Row] = {}
    for start in range(0, len(keys), _AT_ONCE):
        part = keys[start : start + _AT_ONCE]
        # Few lengths, so that the statements are found in the cache; the last key stands in for those too many.
        size = 1 << (len(part) - 1).bit_length()
        query = f"{_FIND} ({'?,' * (size - 1)}?)"
        for values in db.execute(query, [*part, *[part[-1]] * (size - len(part))]):
            found[values[0]] = Row(*values)
    return found


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


def _packed(notes: Mapping[str, bytes]) -> bytes:
    return orjson.dumps({name: base64.b64encode(value).decode() for name, value in notes.items()})


def unpacked(notes: bytes | None) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in orjson.loads(notes).items()} if notes else {}

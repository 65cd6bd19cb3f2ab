"""The queries of the PostgreSQL ledger, each for the items of one or more callers.

Each method gets a connection and the items of one or more callers, and returns results in the same order. The rule: a
statement gets each key once; further items with the same key wait for the next statement.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from semel.ledger.contract import (
    DAY,
    MAX_RESULT,
    Claim,
    ClaimRequest,
    ClaimResult,
    Clock,
    Completion,
    Entry,
    Held,
    OutboxStatus,
    Outgoing,
    Status,
    Won,
    check_result,
)
from semel.ledger.postgres.arrays import ByteStrings, Integers, Numbers, Texts
from semel.ledger.postgres.statements import CODE, STATUS, TAKEN_OVER, Statements
from semel.ledger.rules import Winning, decide

Connection = psycopg.Connection[Any]

SHORTLY: Final = 0.1  # seconds in Held, for a key that changed while it was being decided
LOCKED: Final = 1.0  # seconds in Held, for a key that an open transaction has locked
TRIES: Final = 3
_NOBODY: Final = "\0"  # a claimant that no row has
LONGEST: Final = 365_000 * DAY  # limits an infinite `retention` to a time that a column can hold


class CallerRequest(NamedTuple):
    """One key of one caller's claim."""

    request: ClaimRequest
    claimant: str
    lease: float


Results = list[ClaimResult | None]  # None: not decided yet
Extra = TypeVar("Extra")


class Queries:
    """Every query of one ledger. `idle`: seconds after which the server ends an idle transaction that has recorded."""

    def __init__(self, sql: Statements, *, identity: str, retention: float, clock: Clock, idle: float = 30.0) -> None:
        self.sql = sql
        self._identity = identity
        self._retention = min(retention, LONGEST)
        self._clock = clock
        self._idle = f"{math.ceil(idle * 1000)}ms"

    def _rows(self, connection: Connection, statement: str, parameters: dict[str, Any]) -> list[Any]:
        parameters |= {"now": self._clock(), "retention": self._retention}
        # The connection may be the one of the user's transaction, with the user's row factory.
        with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchall()

    def claim(self, connection: Connection, items: list[CallerRequest]) -> list[ClaimResult]:
        """The first item of each key makes the claim. Later items get their result from the row that it led to."""
        keys = [request.key.encode() for request, _, _ in items]
        firsts: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            firsts.setdefault(key, place)
        results: Results = [None] * len(items)
        open_ = firsts
        for _ in range(TRIES):
            try:
                self._win(connection, open_, items, results)
            except errors.LockNotAvailable:
                self._pass_by(connection, open_, items, results)
            else:
                self._explain(connection, [place for place in open_.values() if not results[place]], items, results)
            open_ = {key: place for key, place in open_.items() if not results[place]}
            if not open_:
                break
        if len(firsts) < len(items):
            later = [place for place, key in enumerate(keys) if firsts[key] != place]
            self._explain(connection, later, items, results)
        return [result or Held(item.request.key, SHORTLY) for result, item in zip(results, items, strict=True)]

    def _win(
        self, connection: Connection, places: dict[bytes, int], items: list[CallerRequest], results: Results
    ) -> None:
        wanted = [items[place] for place in places.values()]
        won = self._rows(
            connection,
            self.sql.claim,
            {
                "keys": ByteStrings.pack(list(places)),
                "payloads": Texts.pack([request.payload for request, _, _ in wanted]),
                "sources": Texts.pack([request.source for request, _, _ in wanted]),
                "claimants": Texts.pack([claimant for _, claimant, _ in wanted]),
                "leases": Numbers.pack([lease for _, _, lease in wanted]),
            },
        )
        raised = self._raised(connection, {row[0]: row[1] for row in won if row[5]})
        for key, fence, attempt, status, steps, _ in won:
            request, _, lease = items[places[key]]
            claim = Claim(request.key, raised.get(key, fence))
            results[places[key]] = Won(claim, lease, attempt, status == TAKEN_OVER, _decoded(steps))

    def _raised(self, connection: Connection, too_low: dict[bytes, int]) -> dict[bytes, int]:
        """The new fences of keys that were purged while they were being claimed."""
        if not too_low:
            return {}
        parameters = {"keys": ByteStrings.pack(list(too_low)), "fences": Integers.pack(list(too_low.values()))}
        return dict(self._rows(connection, self.sql.raise_fences, parameters))

    def _explain(self, connection: Connection, places: list[int], items: list[CallerRequest], results: Results) -> None:
        if not places:
            return
        keys = ByteStrings.pack(list({items[place].request.key.encode() for place in places}))
        rows = {row[0]: row[1:] for row in self._rows(connection, self.sql.why_refused, {"keys": keys})}
        for place in places:
            request = items[place].request
            row = rows.get(request.key.encode())
            results[place] = None if row is None else _refusal(request, *row)

    def _pass_by(
        self, connection: Connection, places: dict[bytes, int], items: list[CallerRequest], results: Results
    ) -> None:
        """Keys that an open transaction has locked are Held; the others can be tried again."""
        keys = {"keys": ByteStrings.pack(list(places))}
        available = {row[0] for row in self._rows(connection, self.sql.available, keys)}
        for (key,) in self._rows(connection, self.sql.known, keys):
            if key not in available:
                results[places[key]] = Held(items[places[key]].request.key, LOCKED)

    def record(self, connection: Connection, completions: Sequence[Completion]) -> list[bool]:
        return self._by_layers(connection, [(it.claim, it) for it in completions], self._record_layer)

    def _record_layer(self, connection: Connection, items: list[tuple[Claim, Completion]]) -> set[bytes]:
        completions = [it for _, it in items]
        recorded = self._written(
            connection,
            self.sql.record,
            items,
            statuses=Integers.pack([CODE[it.status] for it in completions]),
            idle=self._idle,
            results=ByteStrings.pack([it.result for it in completions]),
            retentions=Numbers.pack(
                [None if it.retention is None else min(it.retention, LONGEST) for it in completions]
            ),
        )
        if len(recorded) < len(items):
            missed = {
                key: (claim.fence, CODE[it.status])
                for claim, it in items
                if (key := claim.key.encode()) not in recorded
            }
            rows = self._rows(connection, self.sql.recorded, {"keys": ByteStrings.pack(list(missed))})
            recorded |= {key for key, fence, status in rows if missed[key] == (fence, status)}
        return recorded

    def extend(self, connection: Connection, items: list[tuple[Claim, float]]) -> list[bool]:
        def write(connection: Connection, layer: list[tuple[Claim, float]]) -> set[bytes]:
            return self._written(connection, self.sql.extend, layer, leases=Numbers.pack([lease for _, lease in layer]))

        return self._by_layers(connection, items, write)

    def release(self, connection: Connection, items: list[tuple[Claim, int]]) -> list[bool]:
        def write(connection: Connection, layer: list[tuple[Claim, int]]) -> set[bytes]:
            untried = Integers.pack([untried for _, untried in layer])
            return self._written(connection, self.sql.release, layer, untried=untried)

        return self._by_layers(connection, items, write)

    def _written(
        self, connection: Connection, statement: str, items: Sequence[tuple[Claim, Any]], **columns: bytes | str
    ) -> set[bytes]:
        claims = [claim for claim, _ in items]
        keys = ByteStrings.pack([claim.key.encode() for claim in claims])
        fences = Integers.pack([claim.fence for claim in claims])
        return {row[0] for row in self._rows(connection, statement, {"keys": keys, "fences": fences, **columns})}

    def _by_layers(
        self,
        connection: Connection,
        items: Sequence[tuple[Claim, Extra]],
        write: Callable[[Connection, list[tuple[Claim, Extra]]], set[bytes]],
    ) -> list[bool]:
        """A statement changes each key once; a key that occurs again waits for the next statement."""
        answers = [False] * len(items)
        left = list(range(len(items)))
        while left:
            layer: dict[str, int] = {}
            for place in left:
                layer.setdefault(items[place][0].key, place)
            written = write(connection, [items[place] for place in layer.values()])
            if len(written) == len(items):
                return [True] * len(items)
            for key, place in layer.items():
                answers[place] = key.encode() in written
            left = [place for place in left if layer[items[place][0].key] != place] if len(layer) < len(left) else []
        return answers

    def save_step(self, connection: Connection, items: list[tuple[Claim, str, bytes]]) -> list[bool]:
        answers = []
        for claim, name, value in items:
            parameters = {"key": claim.key.encode(), "fence": claim.fence, "name": name, "value": value}
            (row,) = self._rows(connection, self.sql.note, {**parameters, "most": MAX_RESULT})
            held, written = row
            if held and not written:
                check_result(bytes(MAX_RESULT + 1), f"with the step {name!r}, the key {claim.key!r}")
            answers.append(bool(written))
        return answers

    def forget(self, connection: Connection, keys: list[str]) -> list[int]:
        packed = ByteStrings.pack(list({key.encode() for key in keys}))
        forgotten = {row[0] for row in self._rows(connection, self.sql.forget, {"keys": packed})}
        return [1 if key.encode() in forgotten else 0 for key in keys]

    def purge(self, connection: Connection, limits: list[int]) -> list[int]:
        return [self._rows(connection, self.sql.purge, {"limit": limit})[0][0] for limit in limits]

    def get(self, connection: Connection, keys: list[str]) -> list[Entry | None]:
        packed = ByteStrings.pack(list({key.encode() for key in keys}))
        rows = self._rows(connection, self.sql.look, {"keys": packed})
        entries = {row[0]: row for row in rows}
        return [_entry(key, entries.get(key.encode())) for key in keys]

    def take(self, connection: Connection, items: list[tuple[int, float]]) -> list[list[Outgoing]]:
        return [self._take(connection, limit, lease) for limit, lease in items]

    def _take(self, connection: Connection, limit: int, lease: float) -> list[Outgoing]:
        if not self._rows(connection, self.sql.due, {}):
            return []
        with connection.transaction():
            self._rows(connection, self.sql.taking, {"name": f"semel outbox {self._identity}"})
            rows = self._rows(connection, self.sql.take, {"limit": limit, "lease": lease})
        return [self._outgoing(row) for row in sorted(rows, key=itemgetter(0))]

    def _outgoing(self, row: Any) -> Outgoing:
        number, queue, body, key, delay, group, attributes, attempts, error = row
        return Outgoing(queue, body, key, delay, group, attributes, f"{self._identity}-{number}", attempts, error)

    def outbox_status(self, connection: Connection, items: list[int]) -> list[OutboxStatus]:
        statuses = []
        for limit in items:
            ((waiting, refused),) = self._rows(connection, self.sql.count_outgoing, {})
            rows = self._rows(connection, self.sql.examples, {"limit": limit}) if refused else ()
            statuses.append(OutboxStatus(waiting, refused, tuple(self._outgoing(row) for row in rows)))
        return statuses

    def refused(self, connection: Connection, items: list[tuple[Sequence[str], str, float]]) -> list[None]:
        for ids, error, wait in items:
            parameters = {"ids": self._numbers(ids), "error": error, "wait": wait, "now": self._clock()}
            connection.execute(self.sql.refused.encode(), parameters)
        return [None] * len(items)

    def sent(self, connection: Connection, ids: list[str]) -> list[None]:
        connection.execute(self.sql.sent.encode(), {"ids": self._numbers(ids)})
        return [None] * len(ids)

    def _numbers(self, ids: Sequence[str]) -> Integers:
        ours = (id_.removeprefix(f"{self._identity}-") for id_ in ids if id_.startswith(f"{self._identity}-"))
        return Integers.pack([int(number) for number in ours if number.isdigit()])


class _KnownKey(NamedTuple):
    """The fields of a row that the rule reads. Times count from now."""

    status: Status
    lease_ends: float
    payload: str
    source: str
    result: bytes
    claimant: str = ""
    expires: float = math.inf


def _refusal(
    request: ClaimRequest, status: int, remaining: float, payload: str, source: str, result: bytes | None
) -> ClaimResult | None:
    """Why a key could not be won, according to its row. None: by now it could be won."""
    known = _KnownKey(STATUS[status], remaining, payload, source, result or b"")
    decision = decide(request, known, claimant=_NOBODY, now=0.0)
    return None if isinstance(decision, Winning) else decision


def _entry(key: str, row: Any) -> Entry | None:
    if row is None:
        return None
    _, status, fence, attempt, claimant, lease_ends, payload, source, result, steps, first_seen, changed, expires = row
    return Entry(
        key=key,
        status=STATUS[status],
        fence=fence,
        attempt=attempt,
        claimant=claimant,
        lease_ends=lease_ends,
        payload=payload,
        source=source,
        result=result or b"",
        steps=_decoded(steps),
        first_seen=first_seen,
        changed=changed,
        expires=expires,
    )


def _decoded(steps: dict[str, str] | None) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in steps.items()} if steps else {}

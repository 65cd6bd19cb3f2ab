"""The ledger's rules for DynamoDB: the item of a key, the conditional writes that change it, and what it means.

The rules: no I/O, and every write is conditional. A claim first puts an item, if the key is absent. If the key is
there, the refusal returns its item, the claim is decided from that, and the next item is put only if nothing has
changed since. Every later write is an update whose condition is the fence.

An item has: pk, fence, attempt, payload (if any), claimant, source, first_seen; `expires`, the table's TTL attribute,
in seconds; and `state`, a map that a record replaces as a whole: status, ends (of the lease), changed, until (when it
expires), result, notes (a map, if any), `noted` (the size of the notes in bytes) and `commit` (the transaction that
recorded it). Other times are in milliseconds since 1970, by the clock of the process that writes, because DynamoDB has
no clock that can be asked.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.ledger import rules
from semel.ledger.contract import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Completion,
    Entry,
    Status,
    Won,
)
from semel.ledger.rules import Winning

Item = dict[str, dict[str, Any]]
_LONGEST_LEASE: Final = 12 * 3_600_000


def key_of(key: str) -> Item:
    return {"pk": {"S": f"key#{key}"}}


def milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _typed(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {"S": str(value)}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, bytes):
        return {"B": b64encode(value).decode()}
    return {"M": value}


def _map(**values: object) -> Item:
    return {name: _typed(value) for name, value in values.items()}


def _expires(until: int, stays: int) -> int:
    """An expired item counts as absent, but its fence must go on growing: the table may remove it only later."""
    return -(-(until + min(stays, _LONGEST_LEASE)) // 1000)


# Claims.


@dataclass(frozen=True, slots=True)
class Moment:
    """When and how a claim is made, in milliseconds. `margin`: by how much clocks may differ."""

    now: int
    lease: int
    retention: int
    margin: int
    claimant: str


@dataclass(frozen=True, slots=True)
class ClaimWrite:
    """Put `item` if the key is absent or, if there is one, still has the item that this `replaces`. If the put is made,
    the answer is `won`."""

    item: Item
    won: Won
    replaces: Item | None = None

    def parameters(self) -> dict[str, Any]:
        if self.replaces is None:
            return {"Item": self.item, "ConditionExpression": "attribute_not_exists(pk)"}
        return {
            "Item": self.item,
            "ConditionExpression": "#fence = :fence AND #state = :state",
            "ExpressionAttributeNames": {"#fence": "fence", "#state": "state"},
            "ExpressionAttributeValues": {":fence": self.replaces["fence"], ":state": self.replaces["state"]},
        }


def first_claim(request: ClaimRequest, moment: Moment) -> ClaimWrite:
    """The write that wins a new key. For a known key, the refusal returns the item, which decides the claim."""
    return _claim(request, moment, fence=1, attempt=1, first_seen=moment.now)


def next_claim(item: Item, request: ClaimRequest, moment: Moment) -> ClaimResult | ClaimWrite:
    """What the item of a known key means for a claim: the answer, or the write that may win the key."""
    known = entry_of(request.key, item)
    how = rules.decide(request, known, claimant=moment.claimant, now=moment.now / 1000, margin=moment.margin / 1000)
    if not isinstance(how, Winning):
        return how
    fence = known.fence if how is Winning.AGAIN else known.fence + 1
    first_seen = moment.now if how is Winning.NEW else _number(item, "first_seen")
    if how in (Winning.NEW, Winning.REDRIVE):
        return _claim(request, moment, fence=fence, attempt=1, first_seen=first_seen, replaces=item)
    return _claim(
        request,
        moment,
        fence=fence,
        attempt=known.attempt if how is Winning.AGAIN else known.attempt + 1,
        first_seen=first_seen,
        payload=request.payload or known.payload,
        taken_over=how is Winning.TAKEOVER,
        kept={name: value for name, value in _state(item).items() if name in ("notes", "noted")},
        replaces=item,
    )


def _claim(
    request: ClaimRequest,
    moment: Moment,
    *,
    fence: int,
    attempt: int,
    first_seen: int,
    payload: str | None = None,
    taken_over: bool = False,
    kept: Item | None = None,
    replaces: Item | None = None,
) -> ClaimWrite:
    stays = max(moment.retention, moment.lease)
    until = moment.now + stays
    state = _map(status=Status.CLAIMED, ends=moment.now + moment.lease, changed=moment.now, until=until) | (kept or {})
    item = key_of(request.key) | _map(
        fence=fence,
        attempt=attempt,
        claimant=moment.claimant,
        source=request.source,
        first_seen=first_seen,
        state=state,
        expires=_expires(until, stays),
    )
    if payload := request.payload if payload is None else payload:
        item["payload"] = {"S": payload}
    won = Won(Claim(request.key, fence), moment.lease / 1000, attempt, taken_over, _steps(item) if kept else {})
    return ClaimWrite(item, won, replaces)


# Updates.


class _Expression:
    """An update and its condition. The names (#) and values (:) that they need are found in the text, once."""

    def __init__(self, change: str, condition: str) -> None:
        words = re.findall(r"[#:]\w+", f"{change} {condition}")
        self.names = {word: word[1:] for word in words if word[0] == "#"}
        self.values = tuple({word: word[1:] for word in words if word[0] == ":"}.items())
        self.change, self.condition = change, condition


@dataclass(frozen=True, slots=True)
class Update:
    """One conditional UpdateItem. `names`: the names that are not attributes of ours, such as that of a note."""

    key: str
    expression: _Expression
    values: Mapping[str, Any]
    names: Mapping[str, str] | None = None

    def parameters(self) -> dict[str, Any]:
        expression = self.expression
        return {
            "Key": key_of(self.key),
            "UpdateExpression": expression.change,
            "ConditionExpression": expression.condition,
            "ExpressionAttributeNames": {**expression.names, **self.names} if self.names else expression.names,
            "ExpressionAttributeValues": {word: _typed(self.values[name]) for word, name in expression.values},
        }


_HELD: Final = "#fence = :fence AND #state.#status = :claimed AND #state.#until > :now"
_TOUCH: Final = "#state.#changed = :now, #state.#until = :until, #expires = :expires"
_RELEASE: Final = f"SET #state.#status = :free, #state.#ends = :zero, {_TOUCH}"

_EXTENSION: Final = _Expression(f"SET #state.#ends = :ends, {_TOUCH}", _HELD)
_RECORD: Final = _Expression("SET #state = :state, #expires = :expires", _HELD)
_RELEASED: Final = _Expression(f"{_RELEASE} REMOVE #claimant", _HELD)
_UNTRIED: Final = _Expression(f"{_RELEASE}, #attempt = #attempt - :one REMOVE #claimant", _HELD)
_FORGOTTEN: Final = _Expression(
    "SET #state = :state, #attempt = :zero, #expires = :expires REMOVE #payload, #claimant, #source",
    "attribute_exists(#pk) AND #state.#until > :now",
)
_FEW_NOTES: Final = _Expression(
    f"SET #state.#notes.#name = :value, #state.#noted = #state.#noted + :size, {_TOUCH}",
    f"{_HELD} AND #state.#noted <= :most AND #state.#until <= :until",
)
_FIRST_NOTE: Final = _Expression(
    f"SET #state.#notes = :first, #state.#noted = :total, {_TOUCH}",
    f"{_HELD} AND attribute_not_exists(#state.#noted) AND #state.#until = :seen_until",
)
_NOTE_AS_SEEN: Final = _Expression(
    f"SET #state.#notes.#name = :value, #state.#noted = :total, {_TOUCH}",
    f"{_HELD} AND #state.#noted = :seen AND #state.#until = :seen_until",
)


def _held(claim: Claim, now: int, stays: int) -> dict[str, Any]:
    until = now + stays
    return {
        "now": now,
        "until": until,
        "expires": _expires(until, stays),
        "claimed": Status.CLAIMED,
        "fence": claim.fence,
    }


def extension(claim: Claim, now: int, lease: int, retention: int) -> Update:
    return Update(claim.key, _EXTENSION, _held(claim, now, max(lease, retention)) | {"ends": now + lease})


def record(completion: Completion, now: int, retention: int, *, commit: str = "") -> Update:
    """`commit` names the transaction that this is part of: it shows the outcome if the answer is lost."""
    values = _held(completion.claim, now, retention)
    state = _map(status=completion.status, changed=now, until=values["until"])
    if completion.result:
        state["result"] = _typed(completion.result)
    if commit:
        state["commit"] = {"S": commit}
    values["state"] = state
    return Update(completion.claim.key, _RECORD, values)


def is_recorded(item: Item, completion: Completion, now: int) -> bool:
    return (
        is_live(item, now)
        and _number(item, "fence") == completion.claim.fence
        and _text(_state(item), "status") == completion.status
    )


def release(claim: Claim, now: int, retention: int, *, tried: bool) -> Update:
    values = _held(claim, now, retention) | {"free": Status.FREE, "zero": 0, "one": 1}
    return Update(claim.key, _RELEASED if tried else _UNTRIED, values)


def forgetting(key: str, now: int, retention: int) -> Update:
    until = now + retention
    state = _map(status=Status.FREE, ends=0, changed=now, until=until)
    return Update(key, _FORGOTTEN, {"state": state, "zero": 0, "now": now, "expires": _expires(until, retention)})


def note(claim: Claim, name: str, value: bytes, now: int, retention: int, most: int) -> Update:
    """Its condition holds if there are notes already, they are small, and the key would not expire earlier than before;
    if not, see `note_seen`.

    If a name is noted again, its bytes are counted twice.
    """
    values = _held(claim, now, retention) | {"value": value, "size": len(value), "most": most - len(value)}
    return Update(claim.key, _FEW_NOTES, values, {"#name": name})


def note_seen(claim: Claim, name: str, value: bytes, now: int, retention: int, item: Item) -> tuple[Update, int]:
    """The same update with the exact size in bytes, which is returned too. Its condition holds if the item is still as
    it was seen."""
    total = sum(len(known) for known in (_steps(item) | {name: value}).values())
    state = _state(item)
    until = _number(state, "until")
    values = _held(claim, now, max(retention, until - now)) | {"total": total, "seen_until": until}
    if "noted" not in state:
        return Update(claim.key, _FIRST_NOTE, values | {"first": {name: _typed(value)}}), total
    values |= {"value": value, "seen": _number(state, "noted")}
    return Update(claim.key, _NOTE_AS_SEEN, values, {"#name": name}), total


# Reading.


def is_held(item: Item, claim: Claim, now: int) -> bool:
    return (
        is_live(item, now) and _text(_state(item), "status") == Status.CLAIMED and _number(item, "fence") == claim.fence
    )


def was_committed(item: Item, commit: str) -> bool:
    """Whether this very transaction recorded the item."""
    return bool(item) and _text(_state(item), "commit") == commit


def is_live(item: Item, now: int) -> bool:
    return _number(_state(item), "until") > now


def entry_of(key: str, item: Item) -> Entry:
    state = _state(item)
    return Entry(
        key=key,
        status=Status(state["status"]["S"]),
        fence=_number(item, "fence"),
        attempt=_number(item, "attempt"),
        claimant=_text(item, "claimant"),
        lease_ends=_number(state, "ends") / 1000,
        payload=_text(item, "payload"),
        source=_text(item, "source"),
        result=b64decode(state["result"]["B"]) if "result" in state else b"",
        steps=_steps(item),
        first_seen=_number(item, "first_seen") / 1000,
        changed=_number(state, "changed") / 1000,
        expires=_number(state, "until") / 1000,
    )


def _steps(item: Item) -> dict[str, bytes]:
    return {name: b64decode(value["B"]) for name, value in _state(item).get("notes", {}).get("M", {}).items()}


def _state(item: Item) -> Item:
    state: Item = item["state"]["M"]
    return state


def _number(item: Item, name: str) -> int:
    return int(item.get(name, {}).get("N", 0))


def _text(item: Item, name: str) -> str:
    return str(item.get(name, {}).get("S", ""))

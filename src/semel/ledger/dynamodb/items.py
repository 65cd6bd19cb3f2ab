"""The ledger's rules for DynamoDB: one item for each key, the conditional updates that change it, and what it means.

The rule here: no I/O. An update's condition holds the whole decision, so that the table, not the reader, decides; what
cannot be put in one update is decided from the item that the refused update returned, and is then conditional on it.

An item: pk, status, fence, attempt, payload (if any), first_seen, result, notes (a map, if any) with `noted`, how many
bytes they have; `last`, a map that the last write has left: claimant, source, ends (of the lease), changed, until
(it expires); `was`, the status before the claim; `expires`, the table's TTL attribute, in seconds. Other times are in
milliseconds since 1970, by the clock of the process that writes, as DynamoDB has none to offer.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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

Item = dict[str, dict[str, Any]]
_LONGEST_LEASE: Final = 12 * 3_600_000
_NEW: Final = "new"
_WORDS: Final = re.compile(r"[#:]\w+")


def key_of(key: str) -> Item:
    return {"pk": {"S": f"key#{key}"}}


def milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Update:
    """One conditional UpdateItem; names and values of the expressions are found by their signs # and :."""

    key: str
    change: str
    condition: str
    values: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)  # of what is no attribute of ours

    def parameters(self) -> dict[str, Any]:
        words = set(_WORDS.findall(f"{self.change} {self.condition}"))
        names = {word: word[1:] for word in words if word[0] == "#"} | dict(self.names)
        values = {word: _typed(self.values[word[1:]]) for word in words if word[0] == ":"}
        return {
            "Key": key_of(self.key),
            "UpdateExpression": self.change,
            "ConditionExpression": self.condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


def _typed(value: object) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, str):
        return {"S": str(value)}
    if isinstance(value, int):
        return {"N": str(value)}
    return {"M": value}


def _map(**values: object) -> dict[str, dict[str, Any]]:
    return {name: _typed(value) for name, value in values.items()}


def _lasting(now: int, stays: int) -> dict[str, int]:
    """An expired item counts as absent, but its fence goes on: the table may drop it only some time after."""
    return {"now": now, "until": now + stays, "expires": -(-(now + stays + min(stays, _LONGEST_LEASE)) // 1000)}


@dataclass(frozen=True, slots=True)
class Moment:
    """When and how a claim is made, in milliseconds; `margin` is how far clocks may be apart."""

    now: int
    lease: int
    keep: int
    margin: int
    claimant: str

    def values(self, ask: ClaimRequest) -> dict[str, Any]:
        lasting = _lasting(self.now, max(self.keep, self.lease))
        return {
            **lasting,
            "last": _map(
                claimant=self.claimant,
                source=ask.source,
                ends=self.now + self.lease,
                changed=self.now,
                until=lasting["until"],
            ),
            "claimed": Status.CLAIMED.value,
            "free": Status.FREE.value,
            "new": _NEW,
            "claimant": self.claimant,
            "payload": ask.payload,
            "over": self.now - self.margin,
            "one": 1,
        }


_GO_ON: Final = (
    "SET #was = if_not_exists(#status, :new), #status = :claimed, #first_seen = if_not_exists(#first_seen, :now), "
    "#last = :last, #expires = :expires{payload} ADD #fence :one, #attempt :one"
)
_CAN_GO_ON: Final = (
    "attribute_not_exists(#pk) OR (#last.#until > :now AND (#status = :free OR (#status = :claimed AND "
    "#last.#ends <= :over AND #last.#claimant <> :claimant)){payload})"
)
_AGAIN: Final = "SET #last = :last, #expires = :expires{payload}"
_START_ANEW: Final = (
    "SET #was = :new, #status = :claimed, #attempt = :one, #first_seen = :seen, #last = :last, #expires = :expires"
    "{payload} REMOVE #result, #notes, #noted{no_payload} ADD #fence :one"
)
_KEPT_PAYLOAD: Final = ", #payload = if_not_exists(#payload, :payload)"
_FITTING_PAYLOAD: Final = " AND (attribute_not_exists(#payload) OR #payload = :payload)"


def first_claim(ask: ClaimRequest, moment: Moment) -> Update:
    """Wins a key that is new, free, or whose lease is over; all but the rare cases are decided by this one."""
    change = _GO_ON.format(payload=_KEPT_PAYLOAD if ask.payload else "")
    condition = _CAN_GO_ON.format(payload=_FITTING_PAYLOAD if ask.payload else "")
    return Update(ask.key, change, condition, moment.values(ask))


class Move(enum.Enum):
    """What is to follow when the first update was refused, and the item shows that the key can be won all the same."""

    AGAIN = "again"  # our own claim, whose answer was lost
    NEW_LIFE = "new life"  # it has expired, and the table has not dropped it yet
    BACK = "back"  # it was rejected, and now comes from another source
    GO_ON = "go on"  # it has become free in the meantime


_MOVES: Final = {
    rules.Winning.AGAIN: Move.AGAIN,
    rules.Winning.NEW: Move.NEW_LIFE,
    rules.Winning.REDRIVE: Move.BACK,
}


def decide(item: Item, ask: ClaimRequest, moment: Moment) -> ClaimResult | Move:
    """What an item means for somebody who asks for its key."""
    known, now, margin = entry_of(ask.key, item), moment.now / 1000, moment.margin / 1000
    decision = rules.decide(ask, known, claimant=moment.claimant, now=now, margin=margin)
    return _MOVES.get(decision, Move.GO_ON) if isinstance(decision, rules.Winning) else decision


def next_claim(move: Move, item: Item, ask: ClaimRequest, moment: Moment) -> Update:
    """The update of a move: it holds only if the item is still as it was seen."""
    if move is Move.GO_ON:
        return first_claim(ask, moment)
    values = moment.values(ask) | {"seen_fence": _number(item, "fence"), "seen_changed": _last(item, "changed")}
    condition = "#fence = :seen_fence AND #last.#changed = :seen_changed"
    if move is Move.AGAIN:
        change = _AGAIN.format(payload=_KEPT_PAYLOAD if ask.payload else "")
        condition = "#fence = :seen_fence AND #status = :claimed AND #last.#claimant = :claimant"
    else:
        values["seen"] = moment.now if move is Move.NEW_LIFE else _number(item, "first_seen")
        payload, no_payload = (", #payload = :payload", "") if ask.payload else ("", ", #payload")
        change = _START_ANEW.format(payload=payload, no_payload=no_payload)
        condition += " AND #status = :seen_status"
        values["seen_status"] = _text(item, "status")
    return Update(ask.key, change, condition, values)


def won(key: str, item: Item, lease: float, *, again: bool) -> Won:
    taken_over = not again and item["was"]["S"] == Status.CLAIMED
    return Won(Claim(key, _number(item, "fence")), lease, _number(item, "attempt"), taken_over, _notes(item))


_HELD: Final = "#status = :claimed AND #fence = :fence AND #last.#until > :now"
_TOUCH: Final = "#last.#changed = :now, #last.#until = :until, #expires = :expires"


def _held(claim: Claim, now: int, stays: int) -> dict[str, Any]:
    return _lasting(now, stays) | {"claimed": Status.CLAIMED.value, "fence": claim.fence}


def extension(claim: Claim, now: int, lease: int, keep: int) -> Update:
    return Update(
        claim.key,
        f"SET #last.#ends = :ends, {_TOUCH}",
        _HELD,
        _held(claim, now, max(lease, keep)) | {"ends": now + lease},
    )


def record(finish: Completion, now: int, keep: int, *, commit: str = "") -> Update:
    """`commit` names the transaction that this is part of, so that its outcome can be told when the answer is lost."""
    change = f"SET #status = :status, #result = :result, {_TOUCH}"
    if commit:
        change += ", #commit = :commit"
    values = _held(finish.claim, now, keep)
    values |= {"status": finish.status.value, "result": finish.result, "commit": commit}
    return Update(finish.claim.key, change + " REMOVE #notes, #noted", _HELD, values)


def is_recorded(item: Item, finish: Completion, now: int) -> bool:
    return is_live(item, now) and _number(item, "fence") == finish.claim.fence and item["status"]["S"] == finish.status


def release(claim: Claim, now: int, keep: int, *, tried: bool) -> Update:
    back = "" if tried else ", #attempt = #attempt - :one"
    change = f"SET #status = :free, #last.#ends = :zero, {_TOUCH}{back} REMOVE #last.#claimant"
    return Update(claim.key, change, _HELD, _held(claim, now, keep) | {"free": Status.FREE.value, "zero": 0, "one": 1})


def forgetting(key: str, now: int, keep: int) -> Update:
    change = (
        "SET #status = :free, #attempt = :zero, #last = :last, #expires = :expires "
        "REMOVE #payload, #result, #notes, #noted"
    )
    values: dict[str, Any] = {**_lasting(now, keep), "free": Status.FREE.value, "zero": 0}
    values["last"] = _map(ends=0, changed=now, until=values["until"])
    return Update(key, change, "attribute_exists(#pk) AND #last.#until > :now", values)


def note(claim: Claim, name: str, value: bytes, now: int, keep: int, most: int) -> Update:
    """Holds if there are notes, but few, and the lease is short; if not, see `note_seen`.

    It counts the bytes of a name that is noted again twice.
    """
    change = f"SET #notes.#name = :value, #noted = #noted + :size, {_TOUCH}"
    values = _held(claim, now, keep) | {"value": value, "size": len(value), "most": most - len(value)}
    condition = f"{_HELD} AND #noted <= :most AND #last.#until <= :until"
    return Update(claim.key, change, condition, values, {"#name": name})


def note_seen(claim: Claim, name: str, value: bytes, now: int, keep: int, item: Item) -> tuple[Update, int]:
    """The same with the exact count of bytes, which it also returns, if the item is still as it was seen."""
    notes = _notes(item) | {name: value}
    total = sum(len(known) for known in notes.values())
    values = _held(claim, now, max(keep, _last(item, "until") - now)) | {"total": total}
    values |= {"value": value, "first": {name: _typed(value)}}
    values |= {"seen": _number(item, "noted"), "seen_until": _last(item, "until")}
    change, seen, names = "#notes.#name = :value", "#noted = :seen", {"#name": name}
    if "noted" not in item:
        change, seen, names = "#notes = :first", "attribute_not_exists(#noted)", {}
    condition = f"{_HELD} AND {seen} AND #last.#until = :seen_until"
    return Update(claim.key, f"SET {change}, #noted = :total, {_TOUCH}", condition, values, names), total


def is_held(item: Item, claim: Claim, now: int) -> bool:
    return is_live(item, now) and _text(item, "status") == Status.CLAIMED and _number(item, "fence") == claim.fence


def was_committed(item: Item, commit: str) -> bool:
    """Whether the item was recorded by just this transaction."""
    return _text(item, "commit") == commit


def is_live(item: Item, now: int) -> bool:
    return _last(item, "until") > now


def entry_of(key: str, item: Item) -> Entry:
    last: Item = item["last"]["M"]
    return Entry(
        key=key,
        status=Status(item["status"]["S"]),
        fence=_number(item, "fence"),
        attempt=_number(item, "attempt"),
        claimant=_text(last, "claimant"),
        lease_ends=_number(last, "ends") / 1000,
        payload=_text(item, "payload"),
        source=_text(last, "source"),
        result=bytes(item.get("result", {}).get("B", b"")),
        notes=_notes(item),
        first_seen=_number(item, "first_seen") / 1000,
        changed=_number(last, "changed") / 1000,
        expires=_number(last, "until") / 1000,
    )


def _notes(item: Item) -> dict[str, bytes]:
    return {name: bytes(value["B"]) for name, value in item.get("notes", {}).get("M", {}).items()}


def _last(item: Item, name: str) -> int:
    return _number(item["last"]["M"], name)


def _number(item: Item, name: str) -> int:
    return int(item.get(name, {}).get("N", 0))


def _text(item: Item, name: str) -> str:
    return str(item.get(name, {}).get("S", ""))

"""Reads everything that the processes of a run wrote, as one history.

Sends come from the producers' files, effects from the handlers' rows and files, and deliveries, records and deletes
from the workers' attempt logs. A killed worker loses the last lines of its attempt log, but never those of its effects.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from process_crashes.settings import TRANSACTION_QUEUES
from process_crashes.stores import EffectRow
from semel.verify.history import EventKind, HistoryEvent

_KINDS: Final = {
    "received": EventKind.DELIVER,
    "recorded": EventKind.RECORD,
    "duplicate": EventKind.RECORD,  # the worker saw that it was recorded
    "deleted": EventKind.DELETE,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A line that a handler wrote. `clock` and `lease_ends` are times of the clock with which leases are measured."""

    at: float
    clock: float
    lease_ends: float

    @property
    def within_lease(self) -> bool:
        return self.clock < self.lease_ends


@dataclass(slots=True)
class Turn:
    """One call of a handler without `tx`: which process worked on the key, with which fence, from when until when."""

    queue: str
    id: str
    group: str | None
    place: int | None
    fence: int
    pid: int
    began: Moment
    ended: Moment | None = None  # None: the process died before
    failed: bool = False


@dataclass(slots=True)
class Evidence:
    events: list[HistoryEvent] = field(default_factory=list)  # in the order of their times
    turns: list[Turn] = field(default_factory=list)
    rows: list[EffectRow] = field(default_factory=list)
    accepted: set[tuple[str, str]] = field(default_factory=set)  # queue and id
    steps: Counter[str] = field(default_factory=Counter)  # of the attempt log

    def of_mode(self, *, exactly_once: bool) -> list[HistoryEvent]:
        """Events of the queues whose handlers take `tx`, or of the others, whose effects happen at least once."""
        return [event for event in self.events if (event.queue in TRANSACTION_QUEUES) is exactly_once]

    def write(self, folder: Path) -> None:
        """Write two files for `semel verify`, for example `semel verify --effects exactly-once exactly-once.jsonl`."""
        for exactly_once, name in ((True, "exactly-once.jsonl"), (False, "at-least-once.jsonl")):
            lines = [msgspec.json.encode(event) + b"\n" for event in self.of_mode(exactly_once=exactly_once)]
            (folder / name).write_bytes(b"".join(lines))


def gather(folder: Path, rows: list[EffectRow]) -> Evidence:
    evidence = Evidence(rows=rows)
    evidence.events += [event for file in sorted(folder.glob("producer-*.jsonl")) for event in _sends(file)]
    evidence.accepted = {(event.queue, event.key) for event in evidence.events}
    evidence.turns = [turn for file in sorted(folder.glob("effects-*.jsonl")) for turn in _turns(file)]
    evidence.events += [_effect_of_turn(turn) for turn in evidence.turns]
    evidence.events += [_effect_of_row(row) for row in rows]
    for file in sorted((folder / "attempts").rglob("*attempts-*")):
        for line in _lines(file):
            evidence.steps[line["step"]] += 1
            if line["step"] in _KINDS:
                evidence.events.append(_attempt(line))
    evidence.events.sort(key=lambda event: event.time or 0.0)
    return evidence


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a partial line: its writer was killed, or its disk was full
            continue


def _sends(file: Path) -> Iterator[HistoryEvent]:
    for line in _lines(file):
        if line["what"] == "accepted":
            yield HistoryEvent(
                EventKind.SEND,
                message=line["message_id"],
                key=line["id"],
                time=line["at"],
                queue=line["queue"],
                group=line["group"] or "",
                sequence=line["place"],
                worker=file.stem,
            )


def _turns(file: Path) -> list[Turn]:
    turns: dict[tuple[str, str, int], Turn] = {}
    extra: list[Turn] = []
    for line in _lines(file):
        moment = Moment(line["at"], line["clock"], line["lease_ends"])
        name = (line["queue"], line["id"], line["fence"])
        if line["what"] == "begin":
            turn = Turn(*name[:2], line["group"], line["place"], line["fence"], line["pid"], moment)
            if name in turns:
                extra.append(turns[name])
            turns[name] = turn
        else:
            turns[name].ended, turns[name].failed = moment, line["what"] == "fail"
    return [*turns.values(), *extra]


def _effect_of_turn(turn: Turn) -> HistoryEvent:
    """The event has a fence only if the handler began within its lease. A process that was stopped until after its
    lease has its effect too late, and only the receiver of the effect could refuse it, by its fence."""
    return HistoryEvent(
        EventKind.EFFECT,
        key=turn.id,
        time=turn.began.at,
        queue=turn.queue,
        group=turn.group or "",
        sequence=turn.place,
        worker=str(turn.pid),
        fence=turn.fence if turn.began.within_lease else None,
    )


def _effect_of_row(row: EffectRow) -> HistoryEvent:
    return HistoryEvent(
        EventKind.EFFECT,
        key=row.id,
        time=row.at,
        queue=row.queue,
        group=row.group or "",
        sequence=row.place,
        worker=str(row.pid),
        fence=row.fence,
    )


def _attempt(line: dict[str, Any]) -> HistoryEvent:
    return HistoryEvent(
        _KINDS[line["step"]],
        message=line["message_id"],
        key=line.get("key", ""),
        time=line["at"],
        queue=line["queue"],
        worker=line.get("worker", ""),
        fence=line.get("fence") if line["step"] == "recorded" else None,
        detail=line["step"],
    )

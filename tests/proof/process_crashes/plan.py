"""The plan of a run: which fault happens when, drawn from a seed. Equal seed, length and store give equal plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from process_crashes.disks import MEGABYTE

LEASE: Final = 4  # seconds, for all handlers
MEAN_GAP: Final = 0.6  # seconds from one fault to the next
WORKERS: Final = 3
PRODUCERS: Final = 2


class Kind(StrEnum):
    """A kind of fault. The text is its name in the report."""

    KILL_WORKER = "workers killed"
    PAUSE_WORKER = "workers stopped past their lease and continued"
    KILL_BROKER = "brokers killed"
    PAUSE_BROKER = "brokers stopped and continued"
    KILL_PRODUCER = "producers killed"
    RESTART_STORE = "stores crashed and restarted"
    CUT = "connections cut"
    CUT_IN_ANSWER = "answers cut short"
    STALL = "connections stalled"
    FILL_BROKER_DISK = "broker's disk full"
    FILL_LEDGER_DISK = "ledger's disk full"


class Line(StrEnum):
    """The two ends of a connection that is cut or stalled."""

    WORKER_BROKER = "worker to broker"
    WORKER_STORE = "worker to store"
    PRODUCER_BROKER = "producer to broker"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds from the start. `seconds`: how long it lasts. `victim`: the number of the process that it hits.
    `part`: the part of an answer that still gets through. `leave`: bytes that stay free on the disk."""

    at: float
    kind: Kind
    seconds: float = 0.0
    victim: int = 0
    line: Line | None = None
    part: float = 0.0
    leave: int = 0


_WEIGHTS: Final[Mapping[Kind, int]] = {
    Kind.KILL_WORKER: 6,
    Kind.PAUSE_WORKER: 14,
    Kind.KILL_BROKER: 4,
    Kind.PAUSE_BROKER: 2,
    Kind.KILL_PRODUCER: 4,
    Kind.RESTART_STORE: 6,
    Kind.CUT: 12,
    Kind.CUT_IN_ANSWER: 24,
    Kind.STALL: 6,
    Kind.FILL_BROKER_DISK: 3,
    Kind.FILL_LEDGER_DISK: 5,
}
_SECONDS: Final[Mapping[Kind, tuple[float, float]]] = {
    Kind.KILL_WORKER: (0, 2),
    Kind.PAUSE_WORKER: (LEASE * 1.2, LEASE * 2.5),
    Kind.KILL_BROKER: (0, 2),
    Kind.PAUSE_BROKER: (0.5, LEASE * 1.5),
    Kind.KILL_PRODUCER: (0, 1),
    Kind.RESTART_STORE: (0, 3),
    Kind.STALL: (0.5, LEASE * 2),
    Kind.FILL_BROKER_DISK: (1, 5),
    Kind.FILL_LEDGER_DISK: (1, 5),
}
# Bytes: none, a few pages, and less than the broker keeps in reserve for deletes.
_LEFT_FREE: Final = (0, 0, 8_192, 65_536, MEGABYTE, 16 * MEGABYTE)


def draw(seed: int, seconds: float, *, has_server: bool) -> list[Fault]:
    """All faults of a run. `has_server`: the ledger's store is a server, not a file on a disk of its own."""
    chance = Random(seed)
    without = {Kind.FILL_LEDGER_DISK} if has_server else {Kind.RESTART_STORE}
    kinds = [kind for kind in _WEIGHTS if kind not in without]
    lines = [line for line in Line if has_server or line is not Line.WORKER_STORE]
    faults: list[Fault] = []
    at = chance.uniform(1, 2)
    while at < seconds:
        kind = chance.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        line = chance.choice(lines) if kind in (Kind.CUT, Kind.CUT_IN_ANSWER, Kind.STALL) else None
        of_producer = kind is Kind.KILL_PRODUCER or line is Line.PRODUCER_BROKER
        faults.append(
            Fault(
                at=at,
                kind=kind,
                seconds=chance.uniform(*_SECONDS.get(kind, (0, 0))),
                victim=chance.randrange(PRODUCERS if of_producer else WORKERS),
                line=line,
                part=chance.choice((0.0, chance.random())),
                leave=chance.choice(_LEFT_FREE),
            )
        )
        at += chance.expovariate(1 / MEAN_GAP)
    return faults

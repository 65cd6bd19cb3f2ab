"""A pipeline at one moment, as plain values: what the display draws, `status.json` holds, and /health tells.

Times are seconds since 1970. A count is of this checkpoint's whole life unless it says "run".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import orjson

MAX_REASONS: Final = 50  # more than these are counted together
OTHER: Final = "other reasons"


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # asked to; the batch in hand is being finished
    STOPPED = "stopped"
    DONE = "done"  # --available-now: the backlog is done
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (State.STOPPED, State.DONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Totals:
    """`received`: deliveries by SQS. Dropped as duplicates: `redelivered`, what this pipeline had sealed before;
    `same_key`, by the state store; `in_ledger`, by the ledger. `rows` are in the sink, `rejects` are put aside."""

    batches: int = 0
    received: int = 0
    redelivered: int = 0
    same_key: int = 0
    in_ledger: int = 0
    unconfirmed: int = 0  # deletes that SQS did not confirm: these may come back, and are known then
    rows: int = 0
    bytes: int = 0
    rejects: Mapping[str, int] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())

    @property
    def duplicates(self) -> int:
        return self.redelivered + self.same_key + self.in_ledger

    def since(self, former: Totals) -> Totals:
        """What came on top of `former`; never below 0."""
        plain = {
            one.name: max(0, getattr(self, one.name) - getattr(former, one.name))
            for one in fields(self)
            if one.name != "rejects"
        }
        rejects = {reason: count - former.rejects.get(reason, 0) for reason, count in self.rejects.items()}
        return Totals(**plain, rejects={reason: count for reason, count in rejects.items() if count > 0})


def added(rejects: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Both together; of the reasons, a bounded number by name."""
    sums = dict(rejects)
    for reason, count in more.items():
        name = reason if reason in sums or len(sums) < MAX_REASONS else OTHER
        sums[name] = sums.get(name, 0) + count
    return sums


@dataclass(frozen=True, slots=True)
class LastBatch:
    number: int
    at: float  # when it was committed
    seconds: float  # from its planning to its commit
    rows: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    pipeline: str
    id: str  # of the pipeline: kept in its checkpoint
    sink: str
    state: State
    pid: int
    host: str
    version: str
    started: float
    updated: float
    totals: Totals = Totals()
    run: Totals = Totals()  # of this run alone
    counted: int = -1  # the last batch that is in `totals`
    batch: LastBatch | None = None
    rate: float = 0.0  # rows a second over the last minute
    rates: tuple[float, ...] = ()  # rows a second, second by second, the newest last
    backlog: Mapping[str, int] = field(default_factory=dict)  # messages waiting, by queue
    query: str = ""
    health: str = ""  # where /health and /metrics are
    error: str = ""
    trace: str = ""

    @property
    def lag(self) -> int | None:
        """Messages that wait in the queues; None before anybody has looked."""
        return sum(self.backlog.values()) if self.backlog else None

    @property
    def uptime(self) -> float:
        return max(0.0, self.updated - self.started)

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Fields that another version wrote and this one does not know are left out."""
        found = _known(cls, orjson.loads(data))
        found["state"] = State(found["state"])
        for name in ("totals", "run"):
            found[name] = Totals(**_known(Totals, found.get(name) or {}))
        found["batch"] = LastBatch(**_known(LastBatch, found["batch"])) if found.get("batch") else None
        found["rates"] = tuple(found.get("rates") or ())
        return cls(**found)


def _known(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in found.items() if name in names}

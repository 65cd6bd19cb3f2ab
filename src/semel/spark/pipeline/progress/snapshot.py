"""A pipeline at one moment: what the display shows, `status.json` holds and /health answers.

Times are seconds since 1970. Counts cover the whole life of the checkpoint, except those of `run`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import orjson

from semel import durations

MAX_REASONS: Final = 50
OTHER: Final = "other reasons"


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  # something does not answer; the query is started again at `retry_at`
    STOPPING = "stopping"  # asked to stop; the batch in progress is being finished
    STOPPED = "stopped"
    DONE = "done"  # --exit-when-empty: the backlog is done
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (State.STOPPED, State.DONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Totals:
    """`received` counts deliveries by SQS, `rows` what is in the sink, `rejects` the rejected messages by reason.

    Three counts of dropped duplicates: `redelivered` had been sealed before by this pipeline, `same_key` were known to
    Spark's state store, `in_ledger` to the ledger."""

    batches: int = 0
    received: int = 0
    redelivered: int = 0
    same_key: int = 0
    in_ledger: int = 0
    unconfirmed: int = 0  # deletes that SQS did not confirm; if such a message comes back it is recognised
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
        """The increase since `former`; never below 0."""
        names = [field.name for field in fields(self) if field.name != "rejects"]
        counts = {name: max(0, getattr(self, name) - getattr(former, name)) for name in names}
        rejects = {reason: count - former.rejects.get(reason, 0) for reason, count in self.rejects.items()}
        return Totals(**counts, rejects={reason: count for reason, count in rejects.items() if count > 0})


def added(rejects: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The sums by reason. Beyond MAX_REASONS, further reasons are counted together."""
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
    waiting_for: str = ""  # State.WAITING: what does not answer
    retry_at: float = 0.0  # State.WAITING: when the query is started again

    @property
    def lag(self) -> int | None:
        """Messages waiting in the queues; None before the first count."""
        return sum(self.backlog.values()) if self.backlog else None

    @property
    def outage(self) -> str:
        """What the pipeline waits for, in words; "" if it does not wait."""
        if self.state is not State.WAITING:
            return ""
        pause = durations.text(math.ceil(max(0.0, self.retry_at - self.updated)))
        return f"{self.waiting_for.removesuffix('.')}; next try in {pause}"

    @property
    def uptime(self) -> float:
        return max(0.0, self.updated - self.started)

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Fields that only another version knows are left out."""
        values = _known_fields(cls, orjson.loads(data))
        values["state"] = State(values["state"])
        for name in ("totals", "run"):
            values[name] = Totals(**_known_fields(Totals, values.get(name) or {}))
        values["batch"] = LastBatch(**_known_fields(LastBatch, values["batch"])) if values.get("batch") else None
        values["rates"] = tuple(values.get("rates") or ())
        return cls(**values)


def _known_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}

"""Queues of Semel's own broker, which keeps its own history, so nothing is requested while no page is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import RECENT, QueueFacts, from_broker
from semel.dashboard.views.model import Fault, Series
from semel.sqs import Client
from semel.sqs.client.admin import Admin

_MOMENT: Final = 0.5  # seconds
_SAMPLE: Final = 4.0  # the broker takes a sample every ten seconds


class BrokerSource:
    is_ours = True

    def __init__(self, admin: Admin, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self.admin = admin
        self._client, self._clock = client, clock
        self._facts: TtlCache[list[QueueFacts]] = TtlCache(_MOMENT)
        self._series: TtlCache[Mapping[str, Series]] = TtlCache(_SAMPLE)
        self._manual: bool | None = None

    def now(self) -> float:
        """By the broker's clock, which may be a manual one."""
        if self._manual is None:
            self._manual = bool(self.admin.clock()["manual"])
        return float(self.admin.clock()["now"]) if self._manual else self._clock()

    def facts(self) -> Sequence[QueueFacts]:
        return self._facts.get("", lambda: [self._fact(queue) for queue in self.admin.queues()])

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        # Rounded to the broker's period, so that the next request finds it in the cache.
        start = max(0.0, since // RECENT * RECENT)
        return self._series.get((tuple(names), start), lambda: self._history(names, start))

    def notes(self) -> Sequence[str]:
        return ()

    def forget(self) -> None:
        self._facts.forget()
        self._series.forget()

    def close(self) -> None:
        pass

    def faults(self, queue: str | None = None) -> tuple[Fault, ...]:
        """Every kind of fault, with the settings for this queue and for all queues."""
        answer = self.admin.faults()
        kinds: Mapping[str, str] = answer["kinds"]
        injected = answer["injected"]
        faults = {(kind, None): Fault(kind, text, injected=int(injected.get(kind, 0))) for kind, text in kinds.items()}
        for setting in answer["faults"]:
            kind, target, milliseconds = setting["kind"], setting["queue"], setting.get("milliseconds")
            if target in (None, queue) or queue is None:
                faults[kind, target] = Fault(
                    kind,
                    kinds.get(kind, ""),
                    float(setting["rate"]),
                    target,
                    None if milliseconds is None else int(milliseconds),
                    int(injected.get(kind, 0)),
                )
        return tuple(faults.values())

    def set_fault(self, kind: str, rate: float, queue: str | None, milliseconds: float | None) -> tuple[Fault, ...]:
        self.admin.set_fault(kind, rate, queue=queue, milliseconds=milliseconds)
        return self.faults(queue)

    def clear_faults(self, kind: str | None, queue: str | None = None) -> tuple[Fault, ...]:
        """Clears the faults of one queue, or all if none is named."""
        if queue is None:
            self.admin.clear_faults(kind)
        else:
            for fault in self.faults(queue):
                if fault.queue == queue and kind in (None, fault.kind):
                    self.admin.set_fault(fault.kind, 0, queue=queue)
        return self.faults(queue)

    def _fact(self, row: Mapping[str, Any]) -> QueueFacts:
        account = str(row["arn"]).split(":")[4]
        return QueueFacts(
            name=row["name"],
            url=f"{self._client.endpoint.rstrip('/')}/{account}/{row['name']}",
            arn=row["arn"],
            fifo=bool(row["fifo"]),
            visible=int(row["visible"]),
            in_flight=int(row["in_flight"]),
            delayed=int(row["delayed"]),
            oldest_age=float(row["oldest_age"]),
            attributes=row["attributes"],
        )

    def _history(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        answer = self.admin.history(names, since)
        return {name: from_broker(columns, answer["period"]) for name, columns in answer["queues"].items()}

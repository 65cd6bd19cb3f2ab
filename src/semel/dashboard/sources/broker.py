"""Queues of Semel's own broker: it counts and remembers by itself, so nothing is asked while nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from semel.dashboard.sources import series as past
from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views.model import Fault, Series
from semel.sqs import Client
from semel.sqs.client.admin import Admin

_MOMENT: Final = 0.5  # seconds
_SAMPLE: Final = 4.0  # the broker takes one each ten seconds


class BrokerSource:
    is_ours = True

    def __init__(self, admin: Admin, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self.admin = admin
        self._client, self._clock = client, clock
        self._facts: TtlCache[list[QueueFacts]] = TtlCache(_MOMENT)
        self._series: TtlCache[Mapping[str, Series]] = TtlCache(_SAMPLE)
        self._manual: bool | None = None

    def now(self) -> float:
        """By the broker's clock, which a test may have stopped."""
        if self._manual is None:
            self._manual = bool(self.admin.clock()["manual"])
        return float(self.admin.clock()["now"]) if self._manual else self._clock()

    def facts(self) -> Sequence[QueueFacts]:
        return self._facts.get("", lambda: [self._fact(queue) for queue in self.admin.queues()])

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        # Rounded to the broker's period, so that those who ask a second later get the same answer.
        start = max(0.0, since // past.RECENT * past.RECENT)
        return self._series.get((tuple(names), start), lambda: self._ask(names, start))

    def notes(self) -> Sequence[str]:
        return ()

    def forget(self) -> None:
        self._facts.forget()
        self._series.forget()

    def close(self) -> None:
        pass

    def faults(self, queue: str | None = None) -> tuple[Fault, ...]:
        """Every kind of fault, as it is set for this queue, or for all where there is nothing of its own."""
        told = self.admin.faults()
        kinds: Mapping[str, str] = told["kinds"]
        found: dict[tuple[str, str | None], Fault] = {}
        for kind, meaning in kinds.items():
            found[kind, None] = Fault(kind, meaning, injected=int(told["injected"].get(kind, 0)))
        for one in told["faults"]:
            of = one["queue"]
            if of in (None, queue) or queue is None:
                amount = one.get("milliseconds")
                found[one["kind"], of] = Fault(
                    one["kind"],
                    kinds.get(one["kind"], ""),
                    float(one["rate"]),
                    of,
                    None if amount is None else int(amount),
                    int(told["injected"].get(one["kind"], 0)),
                )
        return tuple(found.values())

    def _fact(self, told: Mapping[str, Any]) -> QueueFacts:
        account = str(told["arn"]).split(":")[4]
        return QueueFacts(
            name=told["name"],
            url=f"{self._client.endpoint.rstrip('/')}/{account}/{told['name']}",
            arn=told["arn"],
            fifo=bool(told["fifo"]),
            visible=int(told["visible"]),
            in_flight=int(told["in_flight"]),
            delayed=int(told["delayed"]),
            oldest_age=float(told["oldest_age"]),
            attributes=told["attributes"],
        )

    def _ask(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        told = self.admin.history(names, since)
        return {name: past.from_broker(columns, told["period"]) for name, columns in told["queues"].items()}

"""Queues of any other endpoint: their attributes, asked for while somebody looks, and once a minute for the past.

The rules: a call costs money, so one look serves all for ten seconds and the list of queues is asked for once a
minute; memory is bounded by queues and by samples. SQS tells no rates: those come from CloudWatch, if it may be asked.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views.model import Series
from semel.sqs import Client, Queue
from semel.sqs.errors import QueueNotFound, SqsError

FRESH: Final = 10.0  # seconds for which one look is good
LISTED: Final = 60.0
EVERY: Final = 60.0  # a sample for the past
KEPT: Final = 24 * 60  # samples of each queue
MOST_QUEUES: Final = 200
_AT_ONCE: Final = 8
_COLUMNS: Final = ("at", "visible", "in_flight", "delayed")
log = logging.getLogger("semel.dashboard")


class Metrics(Protocol):
    """What knows rates and ages that attributes do not tell: CloudWatch."""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]: ...

    def notes(self) -> Sequence[str]: ...


class SqsSource:
    is_ours = False

    def __init__(
        self, client: Client, *, clock: Callable[[], float] = time.time, metrics: Metrics | None = None
    ) -> None:
        self._client, self._clock, self._metrics = client, clock, metrics
        self._listed: TtlCache[list[Queue]] = TtlCache(LISTED)
        self._facts: TtlCache[list[QueueFacts]] = TtlCache(FRESH)
        self._tracks: dict[str, array[float]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="semel-look")
        self._left_out = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        return self._clock()

    def facts(self) -> Sequence[QueueFacts]:
        self._begin()
        return self._facts.get("", self.sample)

    def sample(self) -> list[QueueFacts]:
        """One look at every queue; it is also a sample of the past."""
        queues = self._listed.get("", self._client.queues)
        self._left_out = max(0, len(queues) - MOST_QUEUES)
        chosen = sorted(queues, key=lambda queue: queue.name)[:MOST_QUEUES]
        found = [facts for facts in self._pool.map(self._look, chosen) if facts is not None]
        self._remember(found)
        return self._with_ages(found)

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        if self._metrics is not None:
            known = self._metrics.series(names or [facts.name for facts in self.facts()], since)
            if known:
                return known
        with self._lock:
            chosen = [name for name in (names or self._tracks) if name in self._tracks]
            return {name: _series(self._tracks[name], since) for name in chosen}

    def notes(self) -> Sequence[str]:
        some = [f"{self._left_out} more queues are not shown: {MOST_QUEUES} is the most"] if self._left_out else []
        return [*some, *(self._metrics.notes() if self._metrics is not None else ())]

    def forget(self) -> None:
        self._facts.forget()

    def close(self) -> None:
        self._end.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Inside.

    def _begin(self) -> None:
        """The past is kept from the first look on; nothing is asked of an endpoint that nobody ever looked at."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_on, name="semel-sampling", daemon=True)
                self._thread.start()

    def _keep_on(self) -> None:
        while not self._end.wait(EVERY):
            try:
                self._facts.get("", self.sample)
            except SqsError as error:
                log.info("no sample of the queues: %s", error)
            except RuntimeError:  # the pool is closed: the end
                return

    def _look(self, queue: Queue) -> QueueFacts | None:
        try:
            found = queue.attributes()
        except QueueNotFound:
            return None  # deleted since they were listed
        except SqsError as error:
            return QueueFacts(queue.name, queue.url, fifo=queue.fifo, error=str(error))

        def number(name: str) -> int:
            text = found.get(name, "0")
            return int(text) if text.isdigit() else 0

        return QueueFacts(
            name=queue.name,
            url=queue.url,
            arn=found.get("QueueArn", ""),
            fifo=queue.fifo,
            visible=number("ApproximateNumberOfMessages"),
            in_flight=number("ApproximateNumberOfMessagesNotVisible"),
            delayed=number("ApproximateNumberOfMessagesDelayed"),
            attributes=found,
        )

    def _with_ages(self, found: list[QueueFacts]) -> list[QueueFacts]:
        if self._metrics is None:
            return found
        from dataclasses import replace

        known = self._metrics.series([facts.name for facts in found], self._clock() - 900)
        ages = {
            name: next((age for age in reversed(series.oldest_age) if age is not None), None)
            for name, series in known.items()
        }
        return [replace(facts, oldest_age=ages.get(facts.name)) for facts in found]

    def _remember(self, found: Sequence[QueueFacts]) -> None:
        now, width = self._clock(), len(_COLUMNS)
        with self._lock:
            for name in self._tracks.keys() - {facts.name for facts in found}:
                del self._tracks[name]
            for facts in found:
                if facts.error is None:
                    track = self._tracks.setdefault(facts.name, array("d"))
                    track.extend((now, facts.visible, facts.in_flight, facts.delayed))
                    if len(track) > (KEPT + KEPT // 8) * width:
                        del track[: len(track) - KEPT * width]


def _series(track: array[float], since: float) -> Series:
    width = len(_COLUMNS)
    ats = track[::width]
    first = next((place for place, at in enumerate(ats) if at > since), len(ats))
    columns = {name: tuple(track[first * width + place :: width]) for place, name in enumerate(_COLUMNS)}
    nothing = (None,) * len(columns["at"])
    return Series(
        **columns,
        sent=nothing,
        received=nothing,
        deleted=nothing,
        empty_receives=nothing,
        dead_lettered=nothing,
        oldest_age=nothing,
        source="sampled",
        period=EVERY,
    )

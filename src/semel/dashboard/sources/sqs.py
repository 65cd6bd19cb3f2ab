"""Queues of any other endpoint. Their attributes are read for requests and, from the first one on, once a minute for
the history.

Calls cost money, so attributes are cached for ten seconds and the list of queues for a minute. Memory is bounded: there
are maximum numbers of queues and of samples. SQS reports no rates; they come from CloudWatch, if it is enabled.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Protocol

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.sources.facts import COUNTED, QueueFacts
from semel.dashboard.views.model import Series
from semel.sqs import Client, Queue
from semel.sqs.errors import QueueNotFound, SqsError

FACTS_SECONDS: Final = 10.0
LIST_SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 60.0
MAX_SAMPLES: Final = 24 * 60  # of each queue
MAX_QUEUES: Final = 200
_THREADS: Final = 8
_COLUMNS: Final = ("at", "visible", "in_flight", "delayed")
log = logging.getLogger("semel.dashboard")


class Metrics(Protocol):
    """Where rates and ages come from, which queue attributes do not contain: CloudWatch."""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]: ...

    def notes(self) -> Sequence[str]: ...


class SqsSource:
    is_ours = False

    def __init__(
        self, client: Client, *, clock: Callable[[], float] = time.time, metrics: Metrics | None = None
    ) -> None:
        self._client, self._clock, self._metrics = client, clock, metrics
        self._listed: TtlCache[list[Queue]] = TtlCache(LIST_SECONDS)
        self._facts: TtlCache[list[QueueFacts]] = TtlCache(FACTS_SECONDS)
        self._tracks: dict[str, array[float]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="semel-attributes")
        self._left_out = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        return self._clock()

    def facts(self) -> Sequence[QueueFacts]:
        self._begin()
        return self._with_ages(self._facts.get("", self.sample))

    def sample(self) -> list[QueueFacts]:
        """Reads every queue, and adds a sample to the history. CloudWatch, which is billed, is not read for this."""
        queues = self._listed.get("", self._client.queues)
        self._left_out = max(0, len(queues) - MAX_QUEUES)
        chosen = sorted(queues, key=lambda queue: queue.name)[:MAX_QUEUES]
        all_facts = [facts for facts in self._pool.map(_facts, chosen) if facts is not None]
        self._add_samples(all_facts)
        return all_facts

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        if self._metrics is not None:
            known = self._metrics.series(names or [facts.name for facts in self.facts()], since)
            if known:
                return known
        with self._lock:
            chosen = [name for name in (names or self._tracks) if name in self._tracks]
            return {name: _series(self._tracks[name], since) for name in chosen}

    def notes(self) -> Sequence[str]:
        left_out = f"{self._left_out} more queues are not shown: the maximum is {MAX_QUEUES}" if self._left_out else ""
        return [*filter(None, [left_out]), *(self._metrics.notes() if self._metrics is not None else ())]

    def forget(self) -> None:
        self._facts.forget()

    def close(self) -> None:
        self._end.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """The history starts at the first request: without one, SQS is never called."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample_regularly, name="semel-sampling", daemon=True)
                self._thread.start()

    def _sample_regularly(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            try:
                self._facts.get("", self.sample)
            except SqsError as error:
                log.info("no sample of the queues: %s", error)
            except RuntimeError:  # the pool is closed: the end
                return

    def _with_ages(self, all_facts: list[QueueFacts]) -> list[QueueFacts]:
        if self._metrics is None:
            return all_facts
        known = self._metrics.series([facts.name for facts in all_facts], self._clock() - 900)
        ages = {
            name: next((age for age in reversed(series.oldest_age) if age is not None), None)
            for name, series in known.items()
        }
        return [replace(facts, oldest_age=ages.get(facts.name)) for facts in all_facts]

    def _add_samples(self, all_facts: Sequence[QueueFacts]) -> None:
        now, width = self._clock(), len(_COLUMNS)
        with self._lock:
            for name in self._tracks.keys() - {facts.name for facts in all_facts}:
                del self._tracks[name]
            for facts in all_facts:
                if facts.error is None:
                    track = self._tracks.setdefault(facts.name, array("d"))
                    track.extend((now, facts.visible, facts.in_flight, facts.delayed))
                    if len(track) > (MAX_SAMPLES + MAX_SAMPLES // 8) * width:
                        del track[: len(track) - MAX_SAMPLES * width]


def _facts(queue: Queue) -> QueueFacts | None:
    try:
        attributes = queue.attributes()
    except QueueNotFound:
        return None  # deleted since they were listed
    except SqsError as error:
        return QueueFacts(queue.name, queue.url, fifo=queue.fifo, error=str(error))

    def number(name: str) -> int:
        text = attributes.get(name, "0")
        return int(text) if text.isdigit() else 0

    return QueueFacts(
        name=queue.name,
        url=queue.url,
        arn=attributes.get("QueueArn", ""),
        fifo=queue.fifo,
        visible=number("ApproximateNumberOfMessages"),
        in_flight=number("ApproximateNumberOfMessagesNotVisible"),
        delayed=number("ApproximateNumberOfMessagesDelayed"),
        attributes=attributes,
    )


def _series(track: array[float], since: float) -> Series:
    width = len(_COLUMNS)
    ats = track[::width]
    first = next((place for place, at in enumerate(ats) if at > since), len(ats))
    columns = {name: tuple(track[first * width + place :: width]) for place, name in enumerate(_COLUMNS)}
    unknown: dict[str, Any] = dict.fromkeys((*COUNTED, "oldest_age"), (None,) * len(columns["at"]))
    return Series(**columns, **unknown, source="sampled", period=SAMPLE_SECONDS)

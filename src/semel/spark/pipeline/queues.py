"""A pipeline's own calls to SQS: it looks up the retention of its queues and counts waiting messages. On request it
creates dead-letter queues.

The number of waiting messages is for people only: it is looked up now and then, and nothing depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from semel.errors import SemelError
from semel.messages.dead_letter_queue import create_dead_letter_queue
from semel.spark.pipeline.config import Pipeline, RejectTo, SourceSpec
from semel.spark.source.deduplication import RETENTION
from semel.sqs.client import Client

_log: Final = logging.getLogger("semel.spark")
BUSY: Final = 3.0  # seconds between two counts of the backlog while it changes or batches run
IDLE: Final = 300.0  # and while nothing happens
_RETENTION: Final = "MessageRetentionPeriod"
_WAITING: Final = "ApproximateNumberOfMessages"
_END: Final = 0.2  # seconds
_PATIENCE: Final = 2.0  # seconds for an answer that nothing depends on


def retention(source: SourceSpec) -> int:
    """For how long SQS may deliver a message again: the longest retention of the queues, in seconds."""
    with Client(source.endpoint_url, source.region, source.profile) as client:
        answers = [client.queue(name).attributes(_RETENTION) for name in source.queues]
    return max(int(attributes.get(_RETENTION, RETENTION)) for attributes in answers)


def look_up(source: SourceSpec) -> None:
    """Raises QueueNotFound for a queue that is not there, before Spark is started."""
    with Client(source.endpoint_url, source.region, source.profile) as client:
        for name in source.queues:
            _ = client.queue(name).url


def create_dead_letter_queues(pipeline: Pipeline) -> None:
    """Creates dead-letter queues for queues without one, if rejected messages go there, as `semel run --create-dlq`."""
    if pipeline.rejects.to is not RejectTo.DEAD_LETTER_QUEUE:
        return
    source = pipeline.source
    with Client(source.endpoint_url, source.region, source.profile) as client:
        for queue in map(client.queue, source.queues):
            if "RedrivePolicy" not in queue.attributes("RedrivePolicy"):
                create_dead_letter_queue(client, queue, _log)


class Backlog:
    """Counts the waiting messages of each queue, again and again in its own thread, and passes them to `on_count`."""

    def __init__(self, source: SourceSpec, on_count: Callable[[dict[str, int]], None]) -> None:
        self._source, self._on_count = source, on_count
        self._known: dict[str, int] = {}
        self._end = False
        self._changed = threading.Condition()
        self._batches = False  # whether a batch was committed since the last look
        self._client = Client(
            source.endpoint_url,
            source.region,
            source.profile,
            connect_timeout=_PATIENCE,
            read_timeout=_PATIENCE,
            max_attempts=1,
        )

    @property
    def is_known(self) -> bool:
        return bool(self._known)

    def look(self) -> bool:
        """Counts once, now. Returns whether something has changed. Without an answer, the last counts stay."""
        try:
            answers = {name: self._client.queue(name).attributes(_WAITING) for name in self._source.queues}
            counts = {name: int(attributes.get(_WAITING, 0)) for name, attributes in answers.items()}
        except (SemelError, ValueError):
            return False
        former, self._known = self._known, counts
        if self._end:
            return False
        self._on_count(self._known)
        return former != self._known

    def wake(self) -> None:
        """Called when a batch was committed."""
        with self._changed:
            self._batches = True
            self._changed.notify_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="semel-backlog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._end = True
                self._changed.notify_all()
            thread.join(_END)  # a missing answer must not delay the end

    def _watch(self) -> None:
        with self._client:
            self._look_on()

    def _look_on(self) -> None:
        pause = BUSY
        while True:
            changed = self.look()
            # While messages wait and nothing changes, count less and less often: groups may be blocked, or a batch is
            # long.
            pause = BUSY if changed else min(IDLE, 2 * pause) if any(self._known.values()) else IDLE
            with self._changed:
                if self._changed.wait_for(lambda: self._end, BUSY):
                    return
                self._changed.wait_for(lambda: self._end or self._batches, pause - BUSY)
                if self._end:
                    return
                if self._batches:
                    self._batches, pause = False, BUSY

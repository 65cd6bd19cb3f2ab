"""What a pipeline itself asks SQS about its queues: their retention, and how many messages wait; and the dead-letter
queues that it creates if it is told to.

The number of waiting messages is for people only: it is asked now and then, and nothing depends on the answer.
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
EVERY: Final = 3.0  # seconds between two looks at the backlog
_RETENTION: Final = "MessageRetentionPeriod"
_WAITING: Final = "ApproximateNumberOfMessages"
_PATIENCE: Final = 2.0  # seconds for an answer that nothing depends on


def retention(source: SourceSpec) -> int:
    """For how long SQS may deliver a message again: the longest retention of the queues, in seconds."""
    with Client(source.endpoint_url, source.region, source.profile) as client:
        found = [client.queue(name).attributes(_RETENTION) for name in source.queues]
    return max(int(one.get(_RETENTION, RETENTION)) for one in found)


def look_up(source: SourceSpec) -> None:
    """Raises QueueNotFound for a queue that is not there, before Spark is started."""
    with Client(source.endpoint_url, source.region, source.profile) as client:
        for name in source.queues:
            _ = client.queue(name).url


def create_dead_letter_queues(pipeline: Pipeline) -> None:
    """For the queues that have none, if rejected messages go there; as `semel run --create-dlq` does it."""
    if pipeline.rejects.to is not RejectTo.DEAD_LETTER_QUEUE:
        return
    source = pipeline.source
    with Client(source.endpoint_url, source.region, source.profile) as client:
        for queue in map(client.queue, source.queues):
            if "RedrivePolicy" not in queue.attributes("RedrivePolicy"):
                create_dead_letter_queue(client, queue, _log)


class Backlog:
    """How many messages wait, by queue, told to `tell` again and again by a thread of its own."""

    def __init__(self, source: SourceSpec, tell: Callable[[dict[str, int]], None]) -> None:
        self._source, self._tell = source, tell
        self._end = threading.Event()
        self._client = Client(
            source.endpoint_url,
            source.region,
            source.profile,
            connect_timeout=_PATIENCE,
            read_timeout=_PATIENCE,
            max_attempts=1,
        )

    def look(self) -> None:
        """Once, now. An answer that does not come leaves the last one standing."""
        try:
            found = {name: self._client.queue(name).attributes(_WAITING) for name in self._source.queues}
            self._tell({name: int(one.get(_WAITING, 0)) for name, one in found.items()})
        except (SemelError, ValueError):
            pass

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="semel-backlog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
            self._client.close()

    def _watch(self) -> None:
        self.look()
        while not self._end.wait(EVERY):
            self.look()

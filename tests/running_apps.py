"""Apps that run on threads, with a broker in the same process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from semel import App, Client
from semel.broker import EmbeddedBroker
from semel.consumer.queue_consumer import QueueConsumer
from semel.consumer.run_report import Report
from semel.consumer.runtime import Runtime
from semel.sqs import Entry, Queue


def client_of(broker: EmbeddedBroker) -> Client:
    return Client(broker.url, "us-east-1", access_key="test", secret_key="test")


def send(queue: Queue, bodies: list[str], group: Callable[[int], str] | None = None) -> None:
    entries = [
        Entry(body, group=group(place) if group else None, dedup=str(place) if group else None)
        for place, body in enumerate(bodies)
    ]
    for outcome in queue.send_many(entries):
        assert hasattr(outcome, "message_id"), outcome


class Running:
    """A running app. `stop()` drains it and returns its report."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._report: Report | None = None

    def consumer(self, place: int = 0) -> QueueConsumer:
        return self.runtime.consumers[place]

    def threads(self, role: str, place: int = 0) -> list[threading.Thread]:
        """The running threads of this app's consumer, without those of other apps in the process."""
        return self.consumer(place).threads.of(role)

    @property
    def deleted(self) -> int:
        return sum(consumer.metrics.deleted.count for consumer in self.runtime.consumers)

    def stop(self) -> Report:
        if self._report is None:
            self.runtime.stop()
            self._report = self.runtime.finish()
        return self._report


@contextmanager
def running_app(app: App, **how: Any) -> Iterator[Running]:
    with ExitStack() as stack:
        running = Running(app.start(stack, **how))
        try:
            yield running
        finally:
            running.stop()
            for place in range(len(running.runtime.consumers)):
                for thread in running.threads("receive", place):
                    thread.join(10)

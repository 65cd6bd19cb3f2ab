"""An environment to drive workers in: a broker, its clock, and methods to inspect its queues and the ledger.

Broker, workers and ledger share a clock that moves only with `advance`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledger.stores import Shift
from semel.broker import EmbeddedBroker, running
from semel.consumer.app import App
from semel.consumer.context import Context
from semel.consumer.queue_consumer import QueueConsumer
from semel.ledger.contract import ClaimRequest, Entry, Ledger, LedgerUnavailable, Won
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages.keys import scoped
from semel.sqs import Client, Queue
from semel.testing.driver import Driver

LEASE = 30
ACCESS = {"access_key": "test", "secret_key": "test"}


class Clock(Shift):
    """The broker's clock, without a request for each read. A ledger can use it too."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        super().__init__()
        self._broker = broker
        self._now = broker.clock.now()

    def __call__(self) -> float:
        return self._now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._broker.clock.advance(seconds)
        self._now = self._broker.clock.now()


class Place:
    """Queues, and workers that come and go. All workers share `ledger`, unless one gets its own."""

    def __init__(self, broker: EmbeddedBroker, client: Client, clock: Clock, ledger: Ledger) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock
        self.ledger = ledger

    # Queues.

    def queue(self, name: str = "orders", *, dlq: str | None = None, receives: int = 100, **attributes: Any) -> Queue:
        """Create a queue, and a dead-letter queue named `dlq` if it is given."""
        wanted = {"VisibilityTimeout": str(LEASE)} | {key: str(value) for key, value in attributes.items()}
        if name.endswith(".fifo"):
            wanted["FifoQueue"] = "true"
        if dlq is not None:
            target = self.client.create_queue(dlq, {"FifoQueue": "true"} if dlq.endswith(".fifo") else None)
            wanted["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target.arn, "maxReceiveCount": receives})
        return self.client.create_queue(name, wanted)

    def send(self, body: Any, queue: str = "orders", **options: Any) -> str:
        """Returns the message's id."""
        text = body if isinstance(body, str) else json.dumps(body)
        if queue.endswith(".fifo"):
            options = {"group": "g", "dedup": f"{time.time_ns()}"} | options
        return self.client.queue(queue).send(text, **options).message_id

    def messages(self, queue: str = "orders", state: str | None = None) -> list[dict[str, Any]]:
        return self.broker.peek(queue, state)

    def bodies(self, queue: str = "orders", state: str | None = None) -> list[Any]:
        return [json.loads(message["Body"]) for message in self.messages(queue, state)]

    def is_empty(self, queue: str = "orders") -> bool:
        return not self.messages(queue)

    def hidden_for(self, queue: str = "orders") -> float:
        """Seconds until the only message in the queue can be received again."""
        (message,) = self.messages(queue, "in_flight")
        return float(message["VisibleAt"]) - self.clock.now()

    def redrive(self, dead_letters: str, queue: str = "orders") -> None:
        """Redrive as an operator does: SQS moves the messages, and they get new ids. SQS knows the source queue only of
        messages that it dead-lettered itself, so the destination is given."""
        arns = {"SourceArn": self.client.queue(dead_letters).arn, "DestinationArn": self.client.queue(queue).arn}
        self.client.call("StartMessageMoveTask", arns)
        self.clock.advance(1)

    # Workers.

    def worker(
        self,
        app: App,
        *,
        crash_at: str | None = None,
        ledger: Ledger | None = None,
        chance: float = 0.5,
        **options: Any,
    ) -> Driver:
        now = self.clock.now
        driver = Driver(app, self.broker, self.client, ledger or self.ledger, chance=lambda: chance, now=now, **options)
        driver.crash_at(crash_at)
        return driver

    def entry(self, key: str, queue: str = "orders") -> Entry | None:
        (entry,) = self.ledger.get([self.ledger_key(key, queue)])
        return entry

    def take_over(self, key: str, queue: str = "orders") -> None:
        """Let somebody else claim the key, for one lease."""
        name = self.ledger_key(key, queue)
        self.ledger.forget([name])
        (verdict,) = self.ledger.claim([ClaimRequest(name)], claimant=f"somebody/{time.time_ns()}", lease=LEASE)
        assert isinstance(verdict, Won)

    def ledger_key(self, key: str, queue: str = "orders") -> str:
        return scoped(self.client.queue(queue).scope, key)

    def known(self, key: str, queue: str = "orders") -> Entry:
        entry = self.entry(key, queue)
        assert entry is not None, f"the ledger does not know {key} of {queue}"
        return entry


def take(driver: Driver, queue: str = "orders") -> QueueConsumer:
    """Let the worker receive and claim, but not start the handler yet."""
    consumer = driver.consumer(queue)
    driver.worker.receive(consumer)
    return consumer


def ledger_away(monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
    """Let these calls of every SQLite ledger fail as in an outage, until `monkeypatch.undo()`."""

    def away(*_arguments: object, **_options: object) -> None:
        raise LedgerUnavailable("away")

    for call in calls:
        monkeypatch.setattr(SqliteLedger, call, away)


def dead_letter_details(message: dict[str, Any]) -> dict[str, str]:
    """The attributes that Semel wrote to a dead-letter message, as plain strings."""
    return {
        name.removeprefix("semel-"): value["StringValue"]
        for name, value in message["MessageAttributes"].items()
        if "StringValue" in value
    }


def logged(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if about in record.getMessage()]


@contextlib.contextmanager
def place_of(
    broker: EmbeddedBroker, open_ledger: Callable[[Clock], Ledger] | None = None, **client: Any
) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        clock = Clock(broker)
        ledger = open_ledger(clock) if open_ledger else SqliteLedger(":memory:", clock=clock)
        stack.enter_context(ledger)
        options: dict[str, Any] = {"sleep": lambda _seconds: None} | ACCESS | client
        sqs_client = Client(broker.url, broker.region, **options)
        stack.callback(sqs_client.close)
        yield Place(broker, sqs_client, clock, ledger)


@contextlib.contextmanager
def new_place(**client: Any) -> Iterator[Place]:
    with running(clock="manual") as broker, place_of(broker, **client) as place:
        yield place


class Calls:
    """Records the calls of a handler. Each call raises the next of `outcomes`; when none is left, it succeeds."""

    def __init__(self, *outcomes: BaseException) -> None:
        self.outcomes = list(outcomes)
        self.attempts: list[tuple[str, int]] = []  # key and attempt

    def __call__(self, ctx: Context) -> None:
        self.attempts.append((ctx.key, ctx.attempt))
        if self.outcomes:
            raise self.outcomes.pop(0)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.attempts]


def shop(calls: Calls, queue: str = "orders", *, key: Any = "$.id", payload: Any = None, **options: Any) -> App:
    """An app with one handler, which does what `calls` says."""
    app = App()

    @app.handler(queue, key=key, payload=payload, **options)
    def ship(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
        calls(ctx)
        return {"shipped": order}

    return app

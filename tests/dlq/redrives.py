"""Redrives in tests: on Semel's broker, and as if the endpoint had no admin interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from driven import ACCESS, Place, new_place
from semel import App, Context, Reject
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.jobs import Job
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import Redriver
from semel.sqs import Client
from semel.sqs.client import admin

BROKER: Final = "broker"
SQS: Final = "sqs"
MODES: Final = (BROKER, SQS)
_TOOLS: Final = ("ledger", "rest", "crash", "monotonic")


class Site:
    """A place with a queue, its dead-letter queue, and a way to redrive."""

    def __init__(self, place: Place, mode: str, client: Client, *, fifo: bool) -> None:
        self.place, self.mode, self.client = place, mode, client
        self.queue = "orders.fifo" if fifo else "orders"
        self.dead = "dead.fifo" if fifo else "dead"
        self.fifo = fifo
        place.queue(self.queue, dlq=self.dead, receives=2)
        self.job: Job | None = None

    # Filling.

    def dead_letter(self, *names: str, error: str = "no such country", **options: Any) -> None:
        """Send messages and dead-letter them as Semel does: receive, reject, copy to the dead-letter queue."""
        for name in names:
            self.send(name, **options)
        app = App()

        @app.handler(self.queue, key="$.name")
        def refuse(order: dict[str, str], ctx: Context) -> None:
            raise Reject(error)

        self.place.worker(app).drain()

    def send(self, name: str, **options: Any) -> str:
        """On FIFO queues, the first character of the name is the group."""
        if self.fifo:
            options = {"group": name[0], "dedup": name[:100]} | options
        return self.place.send({"name": name}, self.queue, **options)

    def moved(self, *names: str, **options: Any) -> list[str]:
        """Send messages and let SQS itself move them to the dead-letter queue, undeleted; returns their ids."""
        ids = [self.send(name, **options) for name in names]
        queue = self.place.client.queue(self.queue)
        while not self.place.is_empty(self.queue):
            while queue.receive(wait=0, visibility=1):
                pass
            self.place.clock.advance(1)
        return ids

    # Seeing.

    def names(self, queue: str | None = None, state: str | None = None) -> list[str]:
        return [body["name"] for body in self.place.bodies(queue or self.queue, state)]

    def dead_names(self, state: str | None = None) -> list[str]:
        return self.names(self.dead, state)

    def attributes(self, queue: str | None = None) -> list[dict[str, str]]:
        """The attributes of each message, as plain strings."""
        return [
            {name: value.get("StringValue", "?") for name, value in message.get("MessageAttributes", {}).items()}
            for message in self.place.messages(queue or self.queue)
        ]

    # Redriving.

    def redriver(self, **options: Any) -> Redriver:
        self.place.clock.advance(1)  # messages that were sent at the moment of the start are not redriven
        tools: dict[str, Any] = {name: options.pop(name) for name in _TOOLS if name in options}
        everything = not ({"where", "ids", "all"} & options.keys())
        wanted: dict[str, Any] = {"queue": self.dead, "all": everything, "canary": 0} | options
        plan = RedrivePlan(**wanted)
        if self.mode == SQS:
            queue = self.client.queue(self.dead)
            tools["access"] = SqsAccess(queue, clock=self.place.clock.now, wait=0)
        return Redriver(plan, self.client, clock=self.place.clock.now, **tools)

    def redrive(self, **options: Any) -> Job:
        job = self.job = Job("redrive", self.dead, clock=self.place.clock.now)
        return job.run(self.redriver(**options).run)

    def processed(self, key: Any = "$.name", **options: Any) -> list[str]:
        """Let a worker process the queue; returns the names in the order of their effects."""
        done: list[str] = []
        app = App()

        @app.handler(self.queue, key=key, **options)
        def ship(order: dict[str, str], ctx: Context) -> None:
            done.append(order["name"])

        driver = self.place.worker(app)
        for _ in range(5):
            driver.drain()
            self.place.clock.advance(31)
        return done


@contextmanager
def site(mode: str = BROKER, *, fifo: bool = False) -> Iterator[Site]:
    with new_place() as place:
        options: dict[str, Any] = {"sleep": lambda _seconds: None} | ACCESS
        with Client(place.broker.url, place.broker.region, **options) as client:
            if mode == SQS:
                admin._known[client] = False
            yield Site(place, mode, client, fifo=fifo)


def at(point: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Call `act` when this crash point is passed for the first time."""
    left = [act]

    def crash(passed: str) -> None:
        if passed == point and left:
            left.pop()()

    return crash


__all__ = ["BROKER", "MODES", "SQS", "Site", "at", "site"]

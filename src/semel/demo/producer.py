"""Sends orders as carelessly as a real producer: some twice, as after a false timeout, and some broken messages.

A seed makes a run repeatable. The audit knows what was sent without asking the queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from semel.errors import SemelError
from semel.sqs import Client, Entry, Failure
from semel.sqs.client import Queue

QUEUE: Final = "orders"
DEAD_LETTERS: Final = "orders-dlq"
AGAIN: Final = 0.02  # share of the orders that are sent twice
POISON: Final = 0.005  # share of the orders that are followed by a broken message
AT_ONCE: Final = 500
_COUNTRIES: Final = ("DE", "FR", "IN", "JP", "US")
_BROKEN: Final = ("not even JSON", '{"id": "%s", "euros": "a lot"}', '{"euros": 12}', '{"id": "%s", "euros": -5}')


@dataclass
class Sent:
    """What was sent so far."""

    ids: set[str] = field(default_factory=set)
    euros: int = 0
    again: int = 0
    poison: int = 0

    @property
    def orders(self) -> int:
        return len(self.ids)

    @property
    def messages(self) -> int:
        return self.orders + self.again + self.poison


def create(client: Client, visibility: int) -> Queue:
    dead = client.create_queue(DEAD_LETTERS, {"MessageRetentionPeriod": 1_209_600})
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 100}
    return client.create_queue(QUEUE, {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": visibility})


def send(queue: Queue, count: int, sent: Sent, seed: int = 7) -> Iterator[None]:
    """Sends `count` orders, with repetitions and broken messages, in pages, and adds them to `sent`."""
    random = Random(seed)
    page: list[str] = []
    for number in range(count):
        page += _messages(number, random, sent)
        if len(page) >= AT_ONCE or number == count - 1:
            failures = [
                result for result in queue.send_many([Entry(body) for body in page]) if isinstance(result, Failure)
            ]
            if failures:
                raise SemelError(f"{len(failures)} of {len(page)} messages could not be sent: {failures[0].message}")
            page = []
            yield


def _messages(number: int, random: Random, sent: Sent) -> Iterator[str]:
    id_, euros = f"o-{number:06d}", random.randint(1, 500)
    order = {"id": id_, "euros": euros, "country": random.choice(_COUNTRIES)}
    sent.ids.add(id_)
    sent.euros += euros
    yield json.dumps(order)
    if random.random() < AGAIN:
        sent.again += 1
        yield json.dumps(order)
    if random.random() < POISON:
        sent.poison += 1
        yield random.choice(_BROKEN).replace("%s", id_)  # with the key of a valid order

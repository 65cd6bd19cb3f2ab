"""Redrive of 10,000 messages that match a filter, out of 100,000, on a broker in its own process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from semel.dlq.jobs import Job, State
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import Redriver
from semel.errors import SemelError
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client, Entry

QUEUE: Final = "bench-orders"
DEAD: Final = "bench-orders-dlq"
WHERE: Final = 'error ~ "timeout" and $.order.total > 100'
_ERRORS: Final = ("KeyError: 'country'", "ValueError: no such product", "ConnectionError: the shop is closed")


@dataclass(frozen=True, slots=True)
class Redriven:
    messages: int
    matched: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.matched / self.seconds


def fill(client: Client, total: int, matching: int) -> None:
    """Create a dead-letter queue of `total` messages, of which `matching`, evenly spread, match WHERE."""
    target = client.create_queue(DEAD)
    policy = {"deadLetterTargetArn": target.arn, "maxReceiveCount": 5}
    client.create_queue(QUEUE, {"RedrivePolicy": policy})
    every = total // matching
    for begin in range(0, total, 1_000):
        target.send_many([_message(n, matches=n % every == 0) for n in range(begin, min(total, begin + 1_000))])


def _message(n: int, *, matches: bool) -> Entry:
    error = f"TimeoutError: timeout after {n % 90} s" if matches else _ERRORS[n % len(_ERRORS)]
    body = f'{{"order": {{"id": {n}, "total": {500 if matches else 50}, "customer": "customer-{n % 1_000}"}}}}'
    message = own_attributes.DeadLetterDetails(f"order-{n}", "failed", error, 5, f"m-{n}", QUEUE)
    return Entry(body, own_attributes.attributes(message, {}, len(body)))


def measure(client: Client, total: int = 100_000, matching: int = 10_000) -> Redriven:
    """Fill the queue, and measure the whole redrive from start to end."""
    fill(client, total, matching)
    job = Job("redrive", DEAD)
    begun = time.perf_counter()
    job.run(Redriver(RedrivePlan(queue=DEAD, where=WHERE, canary=0), client).run)
    seconds = time.perf_counter() - begun
    if job.state is not State.DONE or job.counts.deleted != matching:
        raise SemelError(f"the redrive ended as {job.state} with {job.counts}: {job.reason}")
    return Redriven(total, matching, seconds)

"""A shop with an hour of history: busy queues, dead-letter messages with several errors, workers that are running.

The history is created with a broker whose clock starts an hour ago and is advanced step by step. Then the clock follows
the wall clock, and real workers with a real ledger take over, on a broker with faults, so that there are duplicates.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest import mock

from semel.broker import EmbeddedBroker, clock, running
from semel.messages.dead_letter_attributes import DeadLetterDetails, attributes
from semel.sqs import Client, Entry, Queue

HOUR: Final = 3_600.0
STEP: Final = 10.0
# name, mean number of messages in ten seconds, maxReceiveCount (0: no dead-letter queue), retention in days
QUEUES: Final = (
    ("orders", 88, 5, 4),
    ("payments.fifo", 36, 4, 4),
    ("emails", 120, 6, 4),
    ("invoices", 12, 5, 14),
    ("stock-updates", 40, 0, 1),
    ("webhooks-out", 24, 8, 4),
)
# queue, error type, error text, number of messages, minutes ago when they began and ended
TROUBLES: Final = (
    ("orders", "TimeoutError", "warehouse.internal did not answer within 30 s (request 7f3a{n:04x})", 214, 48, 3),
    ("orders", "ValidationError", "order {n}: unknown currency 'EURO'", 37, 55, 9),
    ("orders", "KeyError", "'shipping_address'", 12, 31, 20),
    ("payments.fifo", "CardDeclined", "card ending {n} was declined: insufficient funds", 26, 52, 6),
    ("payments.fifo", "GatewayError", "502 Bad Gateway from pay.example.com", 9, 21, 15),
    ("emails", "SMTPRecipientsRefused", "550 mailbox unavailable: <customer{n}@example.com>", 63, 57, 2),
)
ACCESS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-west-1"}
TOWNS: Final = ("Lisbon", "Kraków", "Osaka", "Recife", "Tromsø", "Antwerp", "Cork", "Bursa")


class _AnHourAgo:
    """Replaces the module `time` while the broker's clock is created."""

    @staticmethod
    def time_ns() -> int:
        return time.time_ns() - round(HOUR * 1e9)


@dataclass
class Shop:
    broker: EmbeddedBroker
    client: Client
    folder: Path

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder}/ledger.db"

    @property
    def log(self) -> str:
        return str(self.folder / "attempts")

    @property
    def state(self) -> Path:
        return self.folder / "state"


def dead(name: str) -> str:
    return f"{name.removesuffix('.fifo')}-dead{'.fifo' if name.endswith('.fifo') else ''}"


def order(n: int, chance: random.Random) -> dict[str, Any]:
    lines = [
        {"sku": f"SKU-{chance.randrange(1000, 9999)}", "quantity": chance.randrange(1, 5)}
        for _ in range(chance.randrange(1, 4))
    ]
    return {
        "order": {"id": f"o-{n}", "total": round(chance.uniform(9, 480), 2), "currency": "EUR", "lines": lines},
        "customer": {"id": f"c-{chance.randrange(10_000)}", "town": chance.choice(TOWNS), "vip": chance.random() < 0.1},
        "placed_at": "2026-11-16T09:41:00Z",
    }


@contextmanager
def open_shop(folder: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        with mock.patch.object(clock, "time", _AnHourAgo):
            broker = stack.enter_context(running(clock="manual"))
        client = Client(broker.url, "eu-west-1", access_key="test", secret_key="test")
        stack.callback(client.close)
        shop = Shop(broker, client, folder)
        shop.state.mkdir(parents=True, exist_ok=True)
        _queues(client)
        _past(shop)
        stack.enter_context(_keeping_time(broker))
        yield shop


def _queues(client: Client) -> None:
    for name, _, receives, days in QUEUES:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        wanted = {"VisibilityTimeout": "60", "MessageRetentionPeriod": str(days * 86_400)} | fifo
        if receives:
            target = client.create_queue(dead(name), fifo | {"MessageRetentionPeriod": str(14 * 86_400)})
            wanted["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target.arn, "maxReceiveCount": receives})
        client.create_queue(name, wanted)


def _past(shop: Shop) -> None:
    """An hour of trade. It comes in waves, and the workers of two queues are slow for a while."""
    chance, n = random.Random(7), 10_000
    queues = {name: shop.client.queue(name) for name, *_ in QUEUES}
    messages = _dead_letter_messages(chance)
    for step in range(int(HOUR / STEP)):
        minutes_ago = 60 - step * STEP / 60
        for name, mean, *_ in QUEUES:
            wave = 1 + 0.45 * math.sin(step / 31 + mean) + chance.uniform(-0.2, 0.2)
            count = max(0, round(mean * wave * (2.1 if name == "orders" and 26 < minutes_ago < 34 else 1)))
            _send(queues[name], [order(n + place, chance) for place in range(count)])
            n += count
            slow = (name == "webhooks-out" and minutes_ago < 11) or (name == "orders" and 22 < minutes_ago < 36)
            _work(queues[name], round(count * 0.55) if slow else count + (40 if name == "orders" else 12))
        while messages and messages[0][0] >= minutes_ago:
            _, name, entry = messages.pop(0)
            shop.client.queue(dead(name)).send_many([entry])
        shop.broker.clock.advance(STEP)


def _send(queue: Queue, bodies: list[dict[str, Any]]) -> None:
    group = queue.fifo
    queue.send_many(
        [
            Entry(
                json.dumps(body),
                group=body["customer"]["id"] if group else None,
                dedup=body["order"]["id"] if group else None,
            )
            for body in bodies
        ]
    )


def _work(queue: Queue, most: int) -> None:
    count = 0
    while count < most:
        messages = queue.receive(min(10, most - count), wait=0)
        if not messages:
            return
        queue.delete([message.receipt for message in messages])
        count += len(messages)


def _dead_letter_messages(chance: random.Random) -> list[tuple[float, str, Entry]]:
    """(minutes ago, queue, message), oldest first."""
    messages = []
    numbers = iter(chance.sample(range(1_000, 9_999), sum(trouble[3] for trouble in TROUBLES)))
    for name, reason, error, count, began, ended in TROUBLES:
        for n in islice(numbers, count):
            content = order(n, chance)
            if "EURO" in error:
                content["order"]["currency"] = "EURO"
            body = json.dumps(content)
            key = f"o-{n}"
            id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
            message = DeadLetterDetails(key, reason, error.format(n=n), chance.randrange(3, 6), id, name)
            fifo = name.endswith(".fifo")
            entry = Entry(
                body,
                attributes=attributes(message, {}, len(body)),
                group=f"c-{n}" if fifo else None,
                dedup=id if fifo else None,
            )
            messages.append((chance.uniform(ended, began), name, entry))
    return sorted(messages, key=lambda message: -message[0])


@contextmanager
def _keeping_time(broker: EmbeddedBroker) -> Iterator[None]:
    """From now on, the broker's clock follows the wall clock."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.1):
            behind = time.time() - broker.clock.now()
            if behind > 0:
                broker.clock.advance(behind)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def send_one_that_is_stuck(shop: Shop) -> None:
    content = order(499_999, random.Random(5))
    content["customer"]["town"] = "Svalbard"
    _send(shop.client.queue("orders"), [content])


@contextmanager
def worker(shop: Shop) -> Iterator[subprocess.Popen[bytes]]:
    """`semel run` with the warehouse's app, in its own process."""
    command = [sys.executable, "-m", "semel.cli", "run", "warehouse:app", "--endpoint-url", shop.broker.url]
    command += ["--health", "127.0.0.1:0", "--attempt-log", shop.log, "--log-level", "error"]
    places = {"SEMEL_LEDGER": shop.ledger, "SEMEL_STATE": str(shop.state)}
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, env={**os.environ, **ACCESS, **places}, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


class Trade:
    """Customers who keep ordering, sometimes twice, in a thread."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Trade:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        chance, n = random.Random(3), 500_000
        queues = {name: self._shop.client.queue(name) for name, *_ in QUEUES[:3]}
        while not self._over.wait(0.25):
            for name, mean, *_ in QUEUES[:3]:
                bodies = [order(n + place, chance) for place in range(round(mean / 40 * chance.uniform(0.6, 1.4)))]
                n += len(bodies)
                if name == "orders" and bodies and chance.random() < 0.12:
                    bodies.append(bodies[-1])  # the same order again, as another message
                _send(queues[name], bodies)

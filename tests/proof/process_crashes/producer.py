"""A producer process: sends orders, and writes down each one before it is sent and after it was accepted.

An order that was not accepted is sent again with the same id until it is. If the producer is killed, the process that
replaces it reads its file and does the same. A FIFO group has one order under way at a time. When a file
`no-new-orders` appears beside its own, the producer begins no new orders, and ends when all are accepted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from semel import Client, SemelError
from semel.sqs import Entry, Queue, Sent

GROUPS: Final = 10  # of each producer
BATCH: Final = 10
TICK: Final = 0.1
NO_NEW_ORDERS: Final = "no-new-orders"
SENT_TWICE: Final = 0.03  # the share of orders to Standard queues that are sent twice, with the same id


@dataclass(frozen=True, slots=True)
class Order:
    queue: str
    id: str
    group: str | None = None
    place: int | None = None

    def entry(self) -> Entry:
        body = json.dumps({"id": self.id, "group": self.group, "place": self.place})
        return Entry(body, group=self.group, dedup=self.id if self.group else None)


class OrderBook:
    """The file of one producer, and its content: which orders are under way, and which one is next."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self.under_way: dict[tuple[str, str], Order] = {}
        self._number = 0
        self._places: defaultdict[tuple[str, str], int] = defaultdict(int)
        for line in path.read_text().splitlines() if path.exists() else ():
            self._apply(json.loads(line))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _apply(self, line: dict[str, str | int]) -> None:
        queue, id_, group, place = (line[name] for name in ("queue", "id", "group", "place"))
        order = Order(str(queue), str(id_), str(group) if group else None, int(place) if place is not None else None)
        if line["what"] == "accepted":
            self.under_way.pop((order.queue, order.id), None)
            return
        self.under_way[order.queue, order.id] = order
        if order.group is not None and order.place is not None:
            self._places[order.queue, order.group] = order.place + 1
        self._number += 1

    def _write(self, what: str, order: Order, message_id: str | None = None) -> None:
        line = {"what": what, "at": time.time(), **asdict(order), "message_id": message_id}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def begin(self, queue: str, chance: Random) -> None:
        """Begin one more order for a queue. For a FIFO queue, only if one of its groups has no order under way."""
        order = self._next(queue, chance)
        if order is not None:
            self._write("send", order)
            self._apply({"what": "send", **asdict(order)})

    def _next(self, queue: str, chance: Random) -> Order | None:
        if not queue.endswith(".fifo"):
            return Order(queue, f"{self._name}-{self._number}")
        busy = {order.group for order in self.under_way.values() if order.queue == queue}
        free = [group for number in range(GROUPS) if (group := f"{self._name}-group-{number}") not in busy]
        if not free:
            return None
        group = chance.choice(free)
        place = self._places[queue, group]
        return Order(queue, f"{group}-{place}", group, place)

    def accepted(self, order: Order, message_id: str) -> None:
        self._write("accepted", order, message_id)
        self.under_way.pop((order.queue, order.id), None)


class Producer:
    def __init__(self, client: Client, book: OrderBook, queues: list[str], rate: float, end: Path) -> None:
        self._book, self._rate, self._end = book, rate, end
        self._queues: dict[str, Queue] = {name: client.queue(name) for name in queues}
        self._chance = Random()

    def run(self) -> None:
        while not (ending := self._end.exists()) or self._book.under_way:
            if not ending and len(self._book.under_way) < 100:
                for _ in range(max(1, round(self._rate * TICK))):
                    self._book.begin(self._chance.choice(list(self._queues)), self._chance)
            for name, queue in self._queues.items():
                self._send(queue, [order for order in self._book.under_way.values() if order.queue == name])
            time.sleep(TICK)

    def _send(self, queue: Queue, orders: list[Order]) -> None:
        again = [order for order in orders if not order.group and self._chance.random() < SENT_TWICE]
        if not orders:
            return
        try:
            outcomes = queue.send_many([order.entry() for order in (*orders, *again)])
        except SemelError as error:
            print(error, file=sys.stderr, flush=True)
            return
        for order, outcome in zip((*orders, *again), outcomes, strict=True):
            if isinstance(outcome, Sent):
                self._book.accepted(order, outcome.message_id)
            else:
                print(outcome, file=sys.stderr, flush=True)


def main(endpoint: str, path: str, rate: str, *queues: str) -> None:
    client = Client(endpoint, "us-east-1", access_key="test", secret_key="test", read_timeout=5, max_attempts=1)
    file = Path(path)
    with client:
        Producer(client, OrderBook(file, file.stem), list(queues), float(rate), file.with_name(NO_NEW_ORDERS)).run()

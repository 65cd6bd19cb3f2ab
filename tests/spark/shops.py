"""Apps as a user writes them, each in its own module, because Spark's workers import them by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from semel.broker import EmbeddedBroker
from semel.spark.sinks.handlers.executor_app import AppReference
from semel.spark.sinks.handlers.row_messages import NEEDED
from semel.sqs import Client, Entry, Queue, Received, Sent

HEAD = """\
import asyncio, json, os, pathlib, threading, time
from semel import App, Batch, Context, Fixed, Message, Reject, Retry, Transaction

app = App({ledger!r}, retry=Fixed(0))
"""
# Writes each effect to the ledger's own database.
ORDERS = """
@app.handler({queue!r}, key="$.id", {options})
def handle(order: dict, ctx: Context, tx: Transaction):
    if order.get("bad"):
        raise ValueError("a bad order")
    tx.execute("INSERT INTO effects (id, fence) VALUES ({param}, {param})", (order["id"], ctx.fence))
"""


@dataclass
class Shop:
    folder: Path
    broker: EmbeddedBroker
    client: Client
    name: str = ""

    @property
    def database(self) -> Path:
        return self.folder / "ledger.db"

    def app(self, text: str = ORDERS, *, queue: str = "orders", options: str = "", ledger: str = "") -> str:
        """Write a module with the app; returns "module:app"."""
        param = "%s" if ledger.startswith("postgresql") else "?"
        self.name = f"shop_{uuid4().hex[:8]}"
        head = HEAD.replace("{ledger!r}", repr(ledger or f"sqlite:///{self.database}"))
        body = text.replace("{queue!r}", repr(queue)).replace("{options}", options).replace("{param}", param)
        (self.folder / f"{self.name}.py").write_text(head + body)
        if not ledger:
            with sqlite3.connect(self.database) as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, fence INTEGER)"
                )
            connection.close()
        return f"{self.name}:app"

    def place(self, app: str, **options: Any) -> AppReference:
        return AppReference(app, endpoint_url=self.broker.url, folder=str(self.folder), **options)

    def queue(self, name: str = "orders", **attributes: Any) -> Queue:
        """Create a queue with a dead-letter queue."""
        suffix = ".fifo" if name.endswith(".fifo") else ""
        dead = self.client.create_queue(f"{name.removesuffix('.fifo')}-dlq{suffix}")
        policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 3})
        return self.client.create_queue(name, {"RedrivePolicy": policy, **attributes})

    def effects(self) -> list[str]:
        """The ids of the effects, in the order in which they happened."""
        connection = sqlite3.connect(self.database, timeout=30)
        try:
            return [str(id_) for (id_,) in connection.execute("SELECT id FROM effects ORDER BY n")]
        finally:
            connection.close()


def send(queue: Queue, orders: Iterable[Mapping[str, Any]]) -> None:
    entries = [
        Entry(
            json.dumps(order),
            group=str(order["group"]) if queue.fifo else None,
            dedup=uuid4().hex if queue.fifo else None,
        )
        for order in orders
    ]
    assert all(isinstance(sent, Sent) for sent in queue.send_many(entries))


def all_of(queue: Queue) -> list[Received]:
    messages: list[Received] = []
    while received := queue.receive(10, 0, visibility=600):
        messages += received
        queue.delete([message.receipt for message in received])
    return messages


def rows(messages: Iterable[Received], queue: str) -> list[pa.RecordBatch]:
    """Messages as rows of the source."""
    source_rows = [
        {
            "message_id": message.message_id,
            "body": message.body,
            "group_id": message.group,
            "sequence_number": message.sequence,
            "receive_count": message.receive_count,
            "attributes": [(name, str(value.value)) for name, value in message.attributes.items()],
            "queue": queue,
        }
        for message in messages
    ]
    return [pa.RecordBatch.from_pylist(source_rows, NEEDED)] if source_rows else []


def made(orders: Iterable[Mapping[str, Any]], group: str | None = None) -> list[Received]:
    """Messages that were never in a queue."""
    return [
        Received(
            str(order.get("message", f"m-{place}")),
            "",
            json.dumps({name: value for name, value in order.items() if name != "message"}),
            {"SequenceNumber": f"{place:020d}", **({"MessageGroupId": str(order[group])} if group else {})},
        )
        for place, order in enumerate(orders)
    ]

"""Histories of real workers on a queue that delivers twice: a ledger prevents doubles; a plain loop is found out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from running_apps import client_of, running_app
from semel import App, SqliteLedger
from semel.broker import running
from semel.sqs import Queue
from semel.verify import EventKind
from semel.verify.report import HistoryRequest, verify
from verify.events import findings_of
from waiting import until

KEYS = [f"order-{number}" for number in range(12)]


class Shop:
    """A queue with orders, some of them sent twice, and the history of what its application does."""

    def __init__(self, orders: Queue, path: Path) -> None:
        self.orders, self.path = orders, path
        self.effects = 0
        for key in (*KEYS, *KEYS[::3]):
            message = orders.send(json.dumps({"id": key})).message_id
            self.write("send", key, message)

    def write(self, kind: str, key: str, message: str = "") -> None:
        line = {"kind": kind, "key": key, "message": message, "queue": "orders", "time": time.time()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def charge(self, order: dict[str, str]) -> None:
        self.write("effect", order["id"])
        self.effects += 1

    def is_empty(self) -> bool:
        counts = self.orders.attributes()
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return all(counts[name] == "0" for name in names)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running(faults={"duplicate": 0.5}, fault_seed=1) as broker, client_of(broker) as client:
        yield Shop(client.create_queue("orders"), tmp_path / "history.jsonl")


def test_workers_with_a_ledger_lose_and_double_nothing(shop: Shop, tmp_path: Path) -> None:
    log = str(tmp_path / "attempts")
    app = App(SqliteLedger(str(tmp_path / "ledger.db")), client=shop.orders.client, wait=1, attempt_log=log)
    app.handler("orders", key="$.id")(shop.charge)
    with running_app(app):
        until(lambda: shop.effects >= len(KEYS) and shop.is_empty(), "the work")
    report = verify(HistoryRequest((str(shop.path), log)))
    assert report.ok, report.verdict.findings
    counts = report.verdict.counts
    assert (counts.effects, counts.sends) == (12, 16)
    assert counts.duplicate_deliveries >= 4


def test_a_loop_without_a_ledger_is_found_out(shop: Shop) -> None:
    while not shop.is_empty():
        for message in shop.orders.receive(10, wait=0):
            shop.charge(json.loads(message.body))
            shop.orders.delete([message.receipt])
            shop.write("delete", json.loads(message.body)["id"])
    verdict = verify(HistoryRequest((str(shop.path),), logged=tuple(EventKind))).verdict
    assert {kind for kind, _ in findings_of(verdict)} == {"doubled"}
    assert {key for _, key in findings_of(verdict)} >= set(KEYS[::3])

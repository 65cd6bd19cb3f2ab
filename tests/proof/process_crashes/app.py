"""The app that the workers run: `semel run process_crashes.app:app`. Its handlers write down every effect.

With `tx`, an effect is a row in the ledger's own database. The table has no unique key: only the ledger prevents
doubled rows. Without `tx`, an effect is two lines in a file of this process, one when the handler begins and one when
it ends, with key, fence and lease.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from process_crashes.plan import LEASE
from process_crashes.settings import LEASE_QUEUES, TRANSACTION_QUEUES, WorkerSettings, at_work_file
from semel import App, Context, Fixed, Transaction
from semel.consumer.clock import monotonic

_SETTINGS: Final = WorkerSettings.from_environment()
_INSERT: Final = "INSERT INTO effects (queue, id, grp, place, fence, pid, at) VALUES (%s, %s, %s, %s, %s, %s, %s)"


class PassingTrouble(Exception):
    """What a handler raises now and then on its first attempt."""


def work_seconds(id_: str, *, often: float) -> float:
    """How long an order takes. Most take milliseconds. One in three takes `often` seconds, so that it is in progress
    when its process is stopped; one in sixty takes longer than its lease, so that a heartbeat must extend it."""
    draw = crc32(id_.encode())
    if draw % 60 == 0:
        return LEASE * 1.3
    return often if draw % 3 == 0 else draw % 20 / 1000


def fails_at_first(id_: str) -> bool:
    return crc32(id_.encode()) % 50 == 1


app = App(
    _SETTINGS.ledger,
    endpoint_url=_SETTINGS.endpoint,
    region="us-east-1",
    attempt_log=str(_SETTINGS.folder / "attempts"),
    lease=LEASE,
    wait=2,
    concurrency=8,
    retry=Fixed(1),
    drain=10,
)


class EffectFile:
    """The file of this process. Each line is a single write, which a SIGKILL cannot undo."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"effects-{os.getpid()}-{time.time_ns()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, order: dict[str, Any], ctx: Context) -> None:
        line = {
            "what": what,
            "at": time.time(),
            "clock": monotonic(),
            "lease_ends": ctx.deadline,
            "queue": ctx.queue,
            "id": order["id"],
            "group": order.get("group"),
            "place": order.get("place"),
            "fence": ctx.fence,
            "pid": os.getpid(),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


_effects = EffectFile(_SETTINGS.folder)
_is_sqlite = _SETTINGS.ledger.startswith("sqlite")
_insert = _INSERT.replace("%s", "?") if _is_sqlite else _INSERT


@cache
def say_that_it_is_at_work() -> None:
    at_work_file(_SETTINGS.folder, os.getpid()).touch()


def post(order: dict[str, Any], ctx: Context) -> None:
    say_that_it_is_at_work()
    _effects.write("begin", order, ctx)
    time.sleep(work_seconds(order["id"], often=LEASE / 2))
    if ctx.attempt == 1 and fails_at_first(order["id"]):
        _effects.write("fail", order, ctx)
        raise PassingTrouble
    _effects.write("end", order, ctx)


def book(order: dict[str, Any], tx: Transaction, ctx: Context) -> None:
    say_that_it_is_at_work()
    if not _is_sqlite:  # SQLite has one writer, so its transactions must be short
        time.sleep(work_seconds(order["id"], often=LEASE / 10))
    row = (ctx.queue, order["id"], order.get("group"), order.get("place"), ctx.fence, os.getpid(), time.time())
    tx.execute(_insert, row)
    if ctx.attempt == 1 and fails_at_first(order["id"]):
        raise PassingTrouble


for _queue in LEASE_QUEUES:
    app.handler(_queue, key="$.id")(post)
if _SETTINGS.transactions:
    for _queue in TRANSACTION_QUEUES:
        app.handler(_queue, key="$.id")(book)

"""Semel as users start it: `semel run consumer_bench.semel_worker:app`. Every setting has its default.

The ledger's address decides the handler: with SQLite, one message per call; with PostgreSQL, a batch per call whose
records are written in its transaction. Handlers count each message (see effects.py) and do what the condition says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from consumer_bench import effects, sampler
from consumer_bench.options import COMPUTE, SLEEP, Options
from semel import App, Batch, Transaction

Body = dict[str, Any]

options = Options.from_environment()
app = App(ledger=options.ledger, endpoint_url=options.endpoint, region="us-east-1")
counts = effects.counts(options.effects, options.amount)


def nothing(body: Body) -> None:
    counts[int(body["order"])] += 1


def sleep(body: Body) -> None:
    counts[int(body["order"])] += 1
    time.sleep(SLEEP)


def compute(body: Body) -> None:
    """Use the same CPU time on any machine. Time spent waiting for a core or for the GIL does not count."""
    counts[int(body["order"])] += 1
    ends = time.thread_time() + COMPUTE
    while time.thread_time() < ends:
        pass


async def hold(_body: Body) -> None:
    """Never return, so that the heartbeat is the only work."""
    await asyncio.Event().wait()


def nothing_in_batches(batch: Batch[Body], tx: Transaction) -> None:  # noqa: ARG001
    """One transaction per batch: the records are committed with the handler's writes; this handler writes nothing."""
    for body in batch.values:
        counts[int(body["order"])] += 1


HANDLERS: dict[str, Callable[..., object]] = {"nothing": nothing, "sleep": sleep, "compute": compute, "hold": hold}

if options.ledger.startswith("postgresql:"):
    app.batch_handler(options.queue)(nothing_in_batches)
else:
    app.handler(options.queue)(HANDLERS[options.handler])

if options.samples:
    sampler.start(Path(options.samples))

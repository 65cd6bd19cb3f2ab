"""A worker process of the end-to-end proof (`test_once.py`), which is killed at any time.

In transaction mode, its effect is a row in the ledger's own database. In lease mode, it writes a line to a file of its
own before and after the work, with the key and the fence.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.synchronize import Event
from typing import Any

from semel import App, Client, Context, Ledger, Transaction

QUEUE = "work"
WORK_SECONDS = 0.03


def build(mode: str, ledger_url: str, endpoint: str, witness: str) -> App:
    ledger = Ledger.connect(ledger_url)
    client = Client(endpoint, "us-east-1", access_key="test", secret_key="test")
    app = App(ledger, client=client, concurrency=8, lease=6, wait=2)

    if mode == "transaction":

        @app.handler(QUEUE, key="$.n")
        def book(order: dict[str, Any], tx: Transaction, ctx: Context) -> None:
            time.sleep(WORK_SECONDS)
            tx.execute("INSERT INTO effects (n, fence) VALUES (%s, %s)", (order["n"], ctx.fence))

    else:
        file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        @app.handler(QUEUE, key="$.n")
        def work(order: dict[str, Any], ctx: Context) -> None:
            os.write(file, f"begin {order['n']} {ctx.fence} {time.time():.6f}\n".encode())
            time.sleep(WORK_SECONDS)
            os.write(file, f"end {order['n']} {ctx.fence} {time.time():.6f}\n".encode())

    return app


def main(mode: str, ledger_url: str, endpoint: str, witness: str, log: str, can_stop: Event) -> None:
    """`can_stop` is set when SIGTERM has a handler, and no longer kills the process."""
    with open(log, "a") as errors:
        os.dup2(errors.fileno(), 2)
    # The app has its own handler while it runs. A process that is stopped before that has nothing to finish.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    can_stop.set()
    report = build(mode, ledger_url, endpoint, witness).run(drain=5)
    sys.exit(0 if report.clean else 3)

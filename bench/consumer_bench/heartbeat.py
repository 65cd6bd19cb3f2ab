"""What the heartbeat costs with 10,000 messages in flight, as a share of a core.

A handler that never ends keeps all of them in flight, and no slot is free to receive more: what the process then uses
is the heartbeat, at SQS and in the SQLite ledger, and whatever else a full process does. So the figure is an upper
bound. It is taken over more than one lease, at whose end none of the messages may have become visible again.
"""

from __future__ import annotations

import contextlib
import time

from broker_bench import machine
from broker_bench.bench import counts
from broker_bench.targets import Unavailable
from broker_bench.wire import Session
from consumer_bench.contestants import Contestant
from consumer_bench.site import Site, last_words

IN_FLIGHT = 10_000
LEASE = 30  # seconds, as the default
PATIENCE = 120.0  # seconds until all are in flight

HOLDING = Contestant("holding", "Semel, holding", "consumer_bench.holding_worker", needs="sqlite")


def share(site: Site, leases: float) -> float:
    """CPU seconds of the process for each second, over so many leases."""
    site.progress.doing(f"heartbeat of {IN_FLIGHT:,} messages")
    with site.queue(HOLDING, IN_FLIGHT, LEASE) as options, contextlib.closing(Session(site.broker.address)) as session:
        with site.started(HOLDING, options | {"lease": LEASE}) as (process, log):
            began = time.perf_counter()
            while counts(session, options["queue_url"])[1] < IN_FLIGHT:
                if process.poll() is not None:
                    raise Unavailable(f"it ended with code {process.returncode}: {last_words(log)}")
                if time.perf_counter() - began > PATIENCE:
                    there = counts(session, options["queue_url"])[1]
                    raise Unavailable(f"only {there:,} were in flight after {PATIENCE:.0f} s: {last_words(log)}")
                time.sleep(0.2)
            time.sleep(2.0)  # until the last ones are claimed and their handlers have begun
            before, began = machine.cpu_seconds(process.pid), time.perf_counter()
            time.sleep(LEASE * leases)
            used = (machine.cpu_seconds(process.pid) - before) / (time.perf_counter() - began)
            visible, in_flight = counts(session, options["queue_url"])
            if visible or in_flight != IN_FLIGHT or process.poll() is not None:
                raise Unavailable(f"{visible:,} of the messages were let go: {last_words(log)}")
            return used

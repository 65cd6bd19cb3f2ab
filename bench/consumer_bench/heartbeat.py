"""What the heartbeat costs with 10,000 messages in flight, as a share of a core.

A handler that never returns keeps all of them in flight, and no slot is free to receive more. The CPU that the process
then uses is that of the heartbeat, at SQS and in the SQLite ledger, and of anything else that a full process does, so
the figure is an upper bound. It is measured over more than one lease. At the end, no message may have become visible.
"""

from __future__ import annotations

import time

from broker_bench import machine
from broker_bench.targets import Unavailable
from consumer_bench.contestants import DEFAULT_VISIBILITY, Contestant
from consumer_bench.site import Site

IN_FLIGHT = 10_000
LEASES = 1.2
PATIENCE = 120.0  # seconds allowed until all are in flight

HOLDING = Contestant("holding", "Semel, holding", needs="sqlite", arguments=("--concurrency", str(IN_FLIGHT)))


def share(site: Site) -> float:
    """CPU seconds of the process per second."""
    site.progress.doing(f"heartbeat of {IN_FLIGHT:,} messages")
    with site.working(HOLDING, "hold", IN_FLIGHT, latency=0) as worker:
        began = time.perf_counter()
        while (there := worker.counts()[1]) < IN_FLIGHT:
            if time.perf_counter() - began > PATIENCE:
                raise Unavailable(f"only {there:,} were in flight after {PATIENCE:.0f} s: {worker.last_words()}")
            worker.check_running()
            time.sleep(0.2)
        time.sleep(2.0)  # until the last ones are claimed and their handlers have begun
        before, began = machine.cpu_seconds(worker.pid), time.perf_counter()
        time.sleep(DEFAULT_VISIBILITY * LEASES)
        used = (machine.cpu_seconds(worker.pid) - before) / (time.perf_counter() - began)
        worker.check_running()
        visible, in_flight = worker.counts()
        if visible or in_flight != IN_FLIGHT:
            raise Unavailable(f"{visible:,} of the messages became visible again: {worker.last_words()}")
        return used

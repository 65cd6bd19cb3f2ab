"""The same load for every library: N threads that each claim and record new keys, batch after batch, until time is up.

Runs inside each library's own environment, so it uses the standard library only. A key counts when it is recorded.
Keys arrive in bursts, because all threads finish their batches together, so a window lasts for several bursts.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BURSTS = 5  # batches per thread that a window must contain, however slow the store is
LONGEST = 40.0  # seconds

# Claims and records all the keys; calls the function with the number of keys each time some are done.
Step = Callable[[list[str], Callable[[int], None]], None]


@dataclass(frozen=True)
class Options:
    url: str
    store: str
    threads: int
    batch: int
    warm_up: float
    window: float

    @staticmethod
    def read() -> Options:
        return Options(**json.loads(sys.argv[1]))


class Counter:
    """The count of one thread; only that thread writes it."""

    def __init__(self) -> None:
        self.keys = 0

    def add(self, more: int) -> None:
        self.keys += more


def drive(options: Options, step_for: Callable[[int], Step]) -> None:
    """Run the load and print the result as one line of JSON. The first error in a thread ends the run."""
    counters = [Counter() for _ in range(options.threads)]
    errors: list[BaseException] = []
    stop = threading.Event()
    run = uuid.uuid4().hex[:8]

    def work(number: int, counter: Counter) -> None:
        try:
            step = step_for(number)
            made = 0
            while not stop.is_set():
                keys = [f"bench/{run}-{number}-{made + i}" for i in range(options.batch)]
                made += options.batch
                step(keys, counter.add)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=work, args=(number, counter), daemon=True) for number, counter in enumerate(counters)
    ]
    for thread in threads:
        thread.start()
    stop.wait(options.warm_up)
    before = _snapshot(counters)
    stop.wait(options.window)
    after = _snapshot(counters)
    enough = options.threads * options.batch * BURSTS
    while after[0] - before[0] < enough and after[1] - before[1] < LONGEST and not stop.wait(0.02):
        after = _snapshot(counters)
    stop.set()
    for thread in threads:
        thread.join(60)
    if errors:
        raise SystemExit(f"{type(errors[0]).__name__}: {errors[0]}")
    keys, seconds, cpu = (late - early for early, late in zip(before, after, strict=True))
    print(json.dumps({"keys": keys, "seconds": seconds, "cpu": cpu}), flush=True)


def _snapshot(counters: list[Counter]) -> tuple[int, float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return sum(counter.keys for counter in counters), time.perf_counter(), usage.ru_utime + usage.ru_stime


def expect(condition: Any, what: str) -> None:
    if not condition:
        raise AssertionError(what)

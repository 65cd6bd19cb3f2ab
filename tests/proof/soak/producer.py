"""A producer as a process of its own, which sends at a steady rate, or as fast as the workers keep up.

Each message has a number and is sent until it is accepted; the time of the acceptance is written to a file. If the
answer to a send is lost, the message is sent again, so the queue may have a number twice. The number is the key, so
both have one effect.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np

from semel import Client
from semel.errors import Unavailable
from semel.sqs import Entry, Queue, Sent
from soak.effects import RECORD

BATCH: Final = 10
THREADS: Final = 8
LOOK_SECONDS: Final = 0.02


class Pacer:
    """Decides when each batch may be sent: at `rate` messages a second, or while fewer than `backlog` are waiting."""

    def __init__(self, queue: Queue, rate: float, backlog: int, stop: threading.Event) -> None:
        self._queue, self._rate, self._backlog, self._stop = queue, rate, backlog, stop
        self._start = time.monotonic()
        self._open = threading.Event()
        if not rate:
            threading.Thread(target=self._look, daemon=True).start()

    def wait(self, batch: int) -> None:
        """Wait until batch number `batch` may be sent. A producer that is late catches up."""
        if self._rate:
            self._stop.wait(max(0.0, self._start + batch * BATCH / self._rate - time.monotonic()))
        else:
            while not self._open.wait(0.1) and not self._stop.is_set():
                pass

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            if (
                int(self._queue.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"])
                < self._backlog
            ):
                self._open.set()
            else:
                self._open.clear()


class Producer:
    def __init__(self, queue: Queue, pacer: Pacer, first: int, sends: IO[bytes], pad: int) -> None:
        self._queue, self._pacer, self._first, self._sends = queue, pacer, first, sends
        self._pad = "x" * pad
        self._batches = itertools.count()
        self._lock = threading.Lock()
        self.last = first
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._lock:
                batch = next(self._batches)
                self.last = self._first + (batch + 1) * BATCH
            self._pacer.wait(batch)
            start = self._first + batch * BATCH
            self._send(range(start, start + BATCH))

    def _send(self, numbers: Sequence[int]) -> None:
        """Send a batch. Once begun, it is sent completely, even if the producer is to stop meanwhile."""
        while numbers:
            entries = [Entry(json.dumps({"n": number, "pad": self._pad})) for number in numbers]
            try:
                outcomes = self._queue.send_many(entries)
            except Unavailable:
                outcomes = []
            at = time.monotonic()
            accepted = [n for n, outcome in zip(numbers, outcomes, strict=False) if isinstance(outcome, Sent)]
            with self._lock:
                self._sends.write(np.array([(number, at) for number in accepted], RECORD).tobytes())
                self._sends.flush()
                self.refused += len(numbers) - len(accepted)
            numbers = sorted(set(numbers).difference(accepted))
            if numbers:
                time.sleep(0.05)


@contextmanager
def _stopped_by(*numbers: signal.Signals) -> Iterator[threading.Event]:
    stop = threading.Event()
    handler: Callable[[int, object], None] = lambda *_: stop.set()  # noqa: E731
    for number in numbers:
        signal.signal(number, handler)
    yield stop


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--sends", type=Path, required=True, help="file for the number and the time of each message")
    parser.add_argument("--first", type=int, default=0, help="number of the first message")
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second; 0: as the backlog allows")
    parser.add_argument("--backlog", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pad", type=int, default=200, help="bytes of padding in each message")
    options = parser.parse_args(arguments)
    client = Client(options.endpoint, "us-east-1", access_key="test", secret_key="test")
    queue = client.queue(options.queue)
    with _stopped_by(signal.SIGTERM, signal.SIGINT) as stop, options.sends.open("ab") as sends:
        producer = Producer(queue, Pacer(queue, options.rate, options.backlog, stop), options.first, sends, options.pad)
        threads = [threading.Thread(target=producer.run, args=(stop,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        stop.wait(options.seconds)
        stop.set()
        for thread in threads:
            thread.join()
    print(json.dumps({"last": producer.last, "refused": producer.refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

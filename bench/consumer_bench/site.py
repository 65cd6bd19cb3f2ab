"""The place of the race: one durable broker, the stores that contestants need, queues, fills, and the count of deletes.

What counts is what the broker has deleted, by its own metrics, from the first delete that is seen to the last. So the
time that a process takes to start does not count, and neither does what a contestant says of itself.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from broker_bench import machine
from broker_bench.bench import Bench
from broker_bench.bench import Settings as BrokerSettings
from broker_bench.progress import Progress
from broker_bench.targets import DATA, Moto, Semel, Server, Unavailable
from broker_bench.wire import Session
from consumer_bench.contestants import Contestant
from peer_bench.libraries import environment, python_of, run_worker

EVERY = 0.02  # seconds between two looks at the metrics
PATIENCE = 30.0  # seconds without any delete
FILL_LIMIT = 120.0
BODY_BYTES = 100


@dataclass(frozen=True)
class Race:
    """What one contestant did in one round."""

    messages: int
    seconds: float
    cpu: float  # seconds, of the consumer alone
    others: float  # share of a core that went to work that has nothing to do with this
    pause: float  # the longest time without a delete, in seconds

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Look:
    """What is known at one moment: the deletes, and the CPU seconds of the contestant, of all here, of the machine."""

    def __init__(self, at: float, deleted: int, pid: int) -> None:
        self.at, self.deleted = at, deleted
        self.cpu, self.ours, self.busy = (
            machine.cpu_seconds(pid),
            machine.cpu_seconds(os.getpid()),
            machine.busy_seconds(),
        )


class Site:
    def __init__(self, progress: Progress, broker: Server, stores: dict[str, str]) -> None:
        self.progress = progress
        self.broker = broker
        self.stores = stores
        self.endpoint = f"http://{broker.address[0]}:{broker.address[1]}"
        self._filler = Bench(BrokerSettings(pinned=False), [], progress)
        self._admin = http.client.HTTPConnection(*broker.address, timeout=30)
        self._names = itertools.count()

    def race(self, one: Contestant, amount: int, window: float, latency: float) -> Race:
        """Fill a new queue, let the contestant at it until it is empty or `window` seconds are over."""
        with self._answering(), self.queue(one, amount) as options:
            before = self._deleted(options["queue"])  # by the filling: who makes his own messages may try one out
            self._latency(latency)
            try:
                with self.started(one, options) as (process, log):
                    return self._watched(process, log, options["queue"], before, amount, window)
            finally:
                self._latency(0)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """A broker that fails is not the contestant's fault: say so, and what it said last."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._admin.close()  # the next request opens it again
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the broker failed: {reason}; it said: {self.broker.last_words()}") from error

    @contextlib.contextmanager
    def queue(self, one: Contestant, amount: int, visibility: int = 3600) -> Iterator[dict[str, Any]]:
        """A new queue with `amount` messages for the contestant; yields what its worker must be told."""
        name = f"{one.name}-{next(self._names)}"
        with contextlib.closing(Session(self.broker.address)) as session:
            url = session.call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": str(visibility)})[
                "QueueUrl"
            ]
            options = {
                "endpoint": self.endpoint,
                "queue": name,
                "queue_url": url,
                "amount": amount,
                "threads": one.threads,
                "dynamodb": self.stores.get("dynamodb", ""),
                "ledger": self._ledger(one),
            }
            self._fill(one, session, options)
            yield options
            session.call("DeleteQueue", QueueUrl=url)

    def _ledger(self, one: Contestant) -> str:
        if one.needs == "sqlite":  # a new file for each: the last one's keys are no use to it
            return f"{self.stores['sqlite']}-{next(self._names)}.db"
        return self.stores.get(one.needs, "")

    def _fill(self, one: Contestant, session: Session, options: dict[str, Any]) -> None:
        if one.own_messages:
            run_worker(one.library, one.module, options | {"role": "fill"}, FILL_LIMIT)
        else:
            filled = self._filler.fill(
                self.broker, session, options["queue_url"], options["amount"], BODY_BYTES, FILL_LIMIT
            )
            if filled < options["amount"]:
                raise Unavailable(f"the broker took only {filled} of {options['amount']} messages")

    @contextlib.contextmanager
    def started(self, one: Contestant, options: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
        command = [str(python_of(one.library)), "-m", one.module, json.dumps(options | {"role": "consume"})]
        with tempfile.TemporaryFile(dir=DATA) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self.broker.folder,
                start_new_session=True,
            )
            try:
                yield process, log
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _watched(
        self, process: subprocess.Popen[bytes], log: IO[bytes], queue: str, before: int, amount: int, window: float
    ) -> Race:
        start: Look | None = None
        seen, seen_at, pause = 0, time.perf_counter(), 0.0
        while True:
            deleted, now = self._deleted(queue) - before, time.perf_counter()
            if process.poll() is not None:
                raise Unavailable(f"it ended with code {process.returncode}: {last_words(log)}")
            if deleted > seen:
                pause = max(pause, now - seen_at) if start else 0.0
                seen, seen_at = deleted, now
                start = start or Look(now, deleted, process.pid)
            if start and deleted > start.deleted and (deleted >= amount or now - start.at > window):
                break
            if now - seen_at > PATIENCE:
                words = f"it deleted nothing for {PATIENCE:.0f} s, {amount - deleted:,} messages being left"
                raise Unavailable(f"{words}: {last_words(log)}")
            time.sleep(EVERY)
        end = Look(now, deleted, process.pid)
        seconds = end.at - start.at
        others = (end.busy - start.busy - (end.ours - start.ours)) / seconds
        pause = max(pause, end.at - seen_at)
        return Race(end.deleted - start.deleted, seconds, end.cpu - start.cpu, max(0.0, others), pause)

    def _deleted(self, queue: str) -> int:
        text = self._fetch("GET", "/metrics")
        found = re.search(rf'^sqs_NumberOfMessagesDeleted_total{{QueueName="{re.escape(queue)}"}} (\S+)', text, re.M)
        return int(float(found[1])) if found else 0

    def _latency(self, milliseconds: float) -> None:
        if milliseconds:
            setting = {"kind": "latency", "rate": 1, "milliseconds": milliseconds}
            self._fetch("PUT", "/_semel/faults", json.dumps(setting))
        else:
            self._fetch("DELETE", "/_semel/faults")

    def _fetch(self, method: str, path: str, body: str | None = None) -> str:
        self._admin.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._admin.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise Unavailable(f"{method} {path}: {answer.status} {text[:200]}")
        return text

    def close(self) -> None:
        self._admin.close()


def last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return " ".join(log.read().decode(errors="replace").split())[-400:] or "nothing was said"


@contextlib.contextmanager
def opened(progress: Progress, contestants: list[Contestant]) -> Iterator[Site]:
    """The broker, and whatever the contestants need."""
    needs = {one.needs for one in contestants}
    with contextlib.ExitStack() as stack:
        DATA.mkdir(exist_ok=True)
        stores: dict[str, str] = {}
        if "sqlite" in needs:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-", dir=DATA))
            stores["sqlite"] = f"sqlite:///{Path(folder) / 'ledger'}"
        if "postgres" in needs:
            from servers import postgres

            stores["postgres"] = stack.enter_context(postgres.running()).url
        if "dynamodb" in needs:
            moto = Moto()
            moto.prepare(progress.say)
            server = stack.enter_context(Server(moto))
            stores["dynamodb"] = f"http://{server.address[0]}:{server.address[1]}"
        semel = Semel(durable=True)
        semel.prepare(progress.say)
        site = Site(progress, stack.enter_context(Server(semel)), stores)
        stack.callback(site.close)
        yield site

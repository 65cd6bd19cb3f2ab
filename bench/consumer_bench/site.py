"""The environment of the measurements: a durable broker, the stores that contestants need, queues, workers, races.

The rule: the rate is what the broker's own metrics count as deleted, from the end of the warm-up on. So the start of a
process does not count, and neither does what a contestant reports. A race of Semel counts only if every deleted message
was handled exactly once (effects.py).
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
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from broker_bench import machine
from broker_bench.bench import Bench, check_count, counts
from broker_bench.bench import Settings as BrokerSettings
from broker_bench.progress import Progress
from broker_bench.targets import DATA, Moto, Semel, Server, Unavailable, free_port
from broker_bench.wire import Session, WrongAnswer
from consumer_bench import effects
from consumer_bench.conditions import Condition
from consumer_bench.contestants import Contestant
from consumer_bench.numbered import NumberedSends
from consumer_bench.options import VARIABLE
from peer_bench.libraries import environment, python_of, run_worker

EVERY = 0.02  # seconds between two reads of the metrics
PATIENCE = 30.0  # seconds without any delete
STOP_LIMIT = 40.0  # seconds from SIGTERM to the end of a worker
FILL_LIMIT = 120.0
BODY_BYTES = 100
WARM_SHARE, MEASURED_SHARE = 0.1, 0.95  # of the messages: at the start and the end a consumer is not at full speed


@dataclass(frozen=True)
class Race:
    """The result of one contestant in one round."""

    messages: int
    seconds: float
    cpu: float  # seconds, of the consumer alone
    others: float  # share of a core that unrelated work used
    pause: float  # the longest time without a delete, in seconds
    concurrency: int | None = None  # as Semel reports it

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Ended(Unavailable):
    """A worker has ended although it should be running."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"it ended with code {code}: {words}")
        self.code = code


class Look:
    """A snapshot: deletes, and the CPU seconds of the contestant, of this process with its children, of the machine."""

    def __init__(self, at: float, deleted: int, pid: int) -> None:
        self.at, self.deleted = at, deleted
        self.cpu, self.ours, self.busy = (
            machine.cpu_seconds(pid),
            machine.cpu_seconds(os.getpid()),
            machine.busy_seconds(),
        )


class Worker:
    """A contestant's running process on its queue."""

    def __init__(
        self,
        site: Site,
        contestant: Contestant,
        options: dict[str, Any],
        process: subprocess.Popen[bytes],
        log: IO[bytes],
    ) -> None:
        self.contestant = contestant
        self.pid = process.pid
        self.amount: int = options["amount"]
        self.samples = Path(options["samples"])
        self._site, self._options, self._process, self._log = site, options, process, log
        self._before = site.deleted(options["queue"])  # by the fill: some contestants try a message

    def check_running(self) -> None:
        if self._process.poll() is not None:
            raise Ended(self._process.returncode, self.last_words())

    def counts(self) -> tuple[int, int]:
        """The messages in its queue: visible, and in flight."""
        with contextlib.closing(Session(self._site.broker.address)) as session:
            return counts(session, self._options["queue_url"])

    def deleted(self) -> int:
        return self._site.deleted(self._options["queue"]) - self._before

    def warm_up(self, seconds: float) -> Look:
        """Wait for the first delete, then for `seconds` or until a tenth of the messages are deleted."""
        began, first_at = time.perf_counter(), 0.0
        while True:
            self.check_running()
            deleted, now = self.deleted(), time.perf_counter()
            if deleted:
                first_at = first_at or now
                if now - first_at >= seconds or deleted >= self.amount * WARM_SHARE:
                    return Look(now, deleted, self.pid)
            elif now - began > PATIENCE:
                raise Unavailable(f"it deleted nothing for {PATIENCE:.0f} s: {self.last_words()}")
            time.sleep(EVERY)

    def measured(self, start: Look, window: float) -> Race:
        """Watch it for `window` seconds, or until nearly all messages are deleted."""
        previous, previous_at, pause = start.deleted, start.at, 0.0
        while True:
            time.sleep(EVERY)
            self.check_running()
            deleted, now = self.deleted(), time.perf_counter()
            if deleted > previous:
                previous, previous_at, pause = deleted, now, max(pause, now - previous_at)
            if deleted >= self.amount * MEASURED_SHARE or (now - start.at > window and deleted > start.deleted):
                break
            if now - previous_at > PATIENCE:
                words = f"it deleted nothing for {PATIENCE:.0f} s, {self.amount - deleted:,} messages being left"
                raise Unavailable(f"{words}: {self.last_words()}")
        end = Look(now, deleted, self.pid)
        if end.deleted == start.deleted:
            raise Unavailable(f"{self.amount:,} messages are too few to measure it")
        seconds = end.at - start.at
        others = (end.busy - start.busy - (end.ours - start.ours)) / seconds
        concurrency = self._concurrency() if self.contestant.is_semel else None
        pause = max(pause, end.at - previous_at)
        return Race(end.deleted - start.deleted, seconds, end.cpu - start.cpu, max(0.0, others), pause, concurrency)

    def _concurrency(self) -> int:
        with urllib.request.urlopen(f"http://{self._options['health']}/workers", timeout=10) as answer:
            return int(json.load(answer)["queues"][self._options["queue"]]["concurrency"])

    def stop(self) -> None:
        """Let Semel finish what it has begun, then prove that each message was handled exactly once."""
        self._process.terminate()
        try:
            code = self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            raise WrongAnswer(f"it did not stop within {STOP_LIMIT:.0f} s: {self.last_words()}") from None
        if code:
            raise WrongAnswer(f"it stopped with code {code}: {self.last_words()}")
        left = sum(self.counts())
        if fault := effects.fault(Path(self._options["effects"]), self.amount, self.deleted(), left):
            raise WrongAnswer(f"{fault}: {self.last_words()}")

    def last_words(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read().decode(errors="replace").split())[-400:] or "nothing was said"


class Site:
    def __init__(self, progress: Progress, broker: Server, stores: dict[str, str]) -> None:
        self.progress = progress
        self.broker = broker
        self.stores = stores
        self.endpoint = f"http://{broker.address[0]}:{broker.address[1]}"
        self._filler = Bench(BrokerSettings(pinned=False), [], progress)
        self._admin = http.client.HTTPConnection(*broker.address, timeout=30)
        self._names = itertools.count()

    def race(self, contestant: Contestant, condition: Condition, amount: int, warm_up: float, window: float) -> Race:
        """Fill a new queue and let the contestant consume it until it is nearly empty or `window` seconds are over."""
        with self.working(contestant, condition.handler, amount, condition.latency) as worker:
            race = worker.measured(worker.warm_up(warm_up), window)
            if contestant.is_semel:
                worker.stop()
            return race

    @contextlib.contextmanager
    def working(
        self, contestant: Contestant, handler: str, amount: int, latency: float, samples: str = ""
    ) -> Iterator[Worker]:
        """Runs the contestant on a new queue with `amount` messages until the block ends. `samples`: a folder for the
        files of the sampler, or empty."""
        with self._answering(), self._queue(contestant, amount) as options:
            self._latency(latency)
            try:
                with self._started(contestant, options | {"handler": handler, "samples": samples}) as worker:
                    yield worker
            finally:
                self._latency(0)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Report a failure of the broker as such, with its last output, because it is not the contestant's fault."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._admin.close()  # the next request opens it again
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the broker failed: {reason}; it said: {self.broker.last_words()}") from error

    @contextlib.contextmanager
    def _queue(self, contestant: Contestant, amount: int) -> Iterator[dict[str, Any]]:
        """A new queue with `amount` messages for the contestant; yields the options of its worker."""
        name = f"{contestant.name}-{next(self._names)}"
        visibility = {"VisibilityTimeout": str(contestant.visibility)}
        with (
            contextlib.closing(Session(self.broker.address)) as session,
            tempfile.TemporaryDirectory(prefix="effects-", dir=DATA) as folder,
        ):
            url = session.call("CreateQueue", QueueName=name, Attributes=visibility)["QueueUrl"]
            options = {
                "endpoint": self.endpoint,
                "queue": name,
                "queue_url": url,
                "amount": amount,
                "threads": contestant.threads,
                "dynamodb": self.stores.get("dynamodb", ""),
                "ledger": self._ledger(contestant),
                "effects": folder,
                "health": f"127.0.0.1:{free_port()}",
            }
            self._fill(contestant, session, options)
            yield options
            session.call("DeleteQueue", QueueUrl=url)

    def _ledger(self, contestant: Contestant) -> str:
        if contestant.needs == "sqlite":  # a new file for each race: keys of earlier races are useless
            return f"{self.stores['sqlite']}-{next(self._names)}.db"
        return self.stores.get(contestant.needs, "")

    def _fill(self, contestant: Contestant, session: Session, options: dict[str, Any]) -> None:
        if contestant.own_messages:
            run_worker(contestant.library, contestant.module, options | {"role": "fill"}, FILL_LIMIT)
            return
        work = NumberedSends(session.requests, options["queue_url"], BODY_BYTES, options["amount"])
        self._filler.through(self.broker, work, FILL_LIMIT)
        if work.messages < options["amount"]:
            raise Unavailable(f"the broker took only {work.messages} of {options['amount']} messages")
        check_count(session, options["queue_url"], work.messages)

    @contextlib.contextmanager
    def _started(self, contestant: Contestant, options: dict[str, Any]) -> Iterator[Worker]:
        options_json = json.dumps(options | {"role": "consume"})
        if contestant.is_semel:
            semel = Path(sys.executable).parent / "semel"
            command = [
                str(semel),
                "run",
                f"{contestant.module}:app",
                "--health",
                options["health"],
                *contestant.arguments,
            ]
        else:
            command = [str(python_of(contestant.library)), "-m", contestant.module, options_json]
        with tempfile.TemporaryFile(dir=DATA) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**{VARIABLE: options_json, "SEMEL_STATE": str(self.broker.folder / "state")}),
                cwd=self.broker.folder,
                start_new_session=True,
            )
            try:
                yield Worker(self, contestant, options, process, log)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def deleted(self, queue: str) -> int:
        text = self._fetch("GET", "/metrics")
        match = re.search(rf'^sqs_NumberOfMessagesDeleted_total{{QueueName="{re.escape(queue)}"}} (\S+)', text, re.M)
        return int(float(match[1])) if match else 0

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


@contextlib.contextmanager
def opened(progress: Progress, contestants: list[Contestant]) -> Iterator[Site]:
    """The broker, and whatever the contestants need."""
    needs = {contestant.needs for contestant in contestants}
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
            moto.prepare(progress.report)
            server = stack.enter_context(Server(moto))
            stores["dynamodb"] = f"http://{server.address[0]}:{server.address[1]}"
        semel = Semel(durable=True)
        semel.prepare(progress.report)
        site = Site(progress, stack.enter_context(Server(semel)), stores)
        stack.callback(site.close)
        yield site

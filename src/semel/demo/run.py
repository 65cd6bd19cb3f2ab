"""The demo from start to end. Each part runs as a user would run it: `semel serve`, `semel pipeline run`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from semel.demo.audit import Audit, audit, told
from semel.demo.producer import DEAD_LETTERS, QUEUE, Sent, create, send
from semel.demo.show import Screen
from semel.errors import SemelError
from semel.sqs import Client

FAULTS: Final = {"duplicate": 0.05, "lost-delete": 0.05}
VISIBILITY: Final = 10
PATIENCE: Final = 240.0
HANDS_FULL: Final = 500
PIPELINE: Final = """\
name = "orders"
checkpoint = "{folder}/checkpoint"

[source]
queues = ["{queue}"]
key = "$.id"
dedup = "key"                     # each order once, whoever sent or delivered it twice
endpoint_url = "{endpoint}"
region = "us-east-1"
visibility = {visibility}
max_seconds_per_batch = 3
max_messages_per_batch = 4_000

[schema]
ddl = "id STRING NOT NULL, euros BIGINT NOT NULL, country STRING"

[[schema.constraints]]
name = "euros are positive"
field = "euros"
check = "euros > 0"

[rejects]
to = "dead-letter-queue"

[sink]
type = "parquet"
path = "{folder}/orders"
"""


def run(orders: int = 20_000, *, folder: Path | None = None, as_json: bool = False) -> Audit:
    """Raises SemelError if a part of it does not come up, or the pipeline does not get to its end."""
    screen = Screen(quiet=as_json)
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-demo-")))
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise SemelError(f"{place} is not empty: the demo needs a folder of its own")
        endpoint = stack.enter_context(broker(place))
        percent = {name: f"{rate:.0%}" for name, rate in FAULTS.items()}
        screen.say(f"SQS in the box on {endpoint}: delivers {percent['duplicate']} of the messages twice,")
        screen.say(f"says of {percent['lost-delete']} of the deletes that they were done, and does not do them.")
        found = Demo(orders, place, endpoint, screen).run(stack)
    screen.say()
    for line in told(found):
        screen.say(line)
    screen.say()
    if as_json:
        print(json.dumps(found.plain()))
    return found


class Demo:
    def __init__(self, orders: int, place: Path, endpoint: str, screen: Screen) -> None:
        self.orders, self.place, self.endpoint, self.screen = orders, place, endpoint, screen
        self.client = Client(endpoint, "us-east-1", access_key="demo", secret_key="demo")
        self.sent = Sent()
        self.file = place / "orders.toml"

    def run(self, stack: contextlib.ExitStack) -> Audit:
        stack.callback(self.client.close)
        queue = create(self.client, VISIBILITY)
        values = {"folder": self.place, "queue": QUEUE, "endpoint": self.endpoint, "visibility": VISIBILITY}
        self.file.write_text(PIPELINE.format(**values))
        producer = threading.Thread(target=send, args=(queue, self.orders, self.sent), daemon=True)
        producer.start()
        self.screen.say(
            f"A producer sends {self.orders:,} orders, some of them twice, and some messages that are none.\n"
        )
        self.screen.say("semel pipeline run orders.toml          SQS -> Spark -> a Parquet table, each order once")
        with self.pipeline() as first:
            self.watch(first, until=self.orders // 2)
            self.wait_for_hands_full()
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        self.screen.say(f"kill -9, with {self.rows():,} rows in the table; and again:")
        self.screen.say("semel pipeline run orders.toml")
        with self.pipeline() as second:
            self.watch(second)
            second.send_signal(signal.SIGTERM)
            second.wait(60)
        producer.join()
        return self.audited()

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.place / "pipeline.log").open("ab") as log:
            process = subprocess.Popen(
                [*SEMEL, "pipeline", "run", str(self.file), "--cores", "2", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def watch(self, process: subprocess.Popen[bytes], until: int | None = None) -> None:
        """Until so many rows are in the table, or the queue has nothing left to deliver."""
        began, empty = time.monotonic(), 0
        while True:
            if process.poll() is not None:
                raise SemelError(f"the pipeline ended with code {process.returncode}: {self.last_words()}")
            if time.monotonic() - began > PATIENCE:
                raise SemelError(f"the pipeline did not get there in {PATIENCE:.0f} s: {self.last_words()}")
            rows = self.rows()
            self.screen.progress(rows, self.orders, self.figures(rows))
            if until is not None and rows >= until:
                return
            if until is None and self.sent.done:
                empty = empty + 1 if self.waiting() == 0 else 0
                if empty >= 4:
                    return
            time.sleep(0.25)

    def wait_for_hands_full(self) -> None:
        """Until the pipeline has received some messages that it has not yet sealed."""
        idle, deadline = self.in_flight(), time.monotonic() + 10
        while self.in_flight() < idle + HANDS_FULL and time.monotonic() < deadline:
            time.sleep(0.01)

    def in_flight(self) -> int:
        return int(self.client.queue(QUEUE).attributes(IN_FLIGHT)[IN_FLIGHT])

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.place / "checkpoint" / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def rows(self) -> int:
        return int(self.status().get("totals", {}).get("rows", 0))

    def figures(self, rows: int) -> str:
        found = self.status()
        totals = found.get("totals", {})
        dropped = sum(totals.get(name, 0) for name in ("redelivered", "same_key", "in_ledger"))
        rejects = sum(totals.get("rejects", {}).values())
        text = f"{rows:,} rows, {dropped:,} duplicates dropped, {rejects:,} rejected"
        return text if rows else "Spark starts ..."

    def waiting(self) -> int:
        found = self.client.queue(QUEUE).attributes()
        return sum(int(found[name]) for name in (VISIBLE, IN_FLIGHT))

    def audited(self) -> Audit:
        faults = json.loads(self.fetch("/_semel/faults"))["injected"]
        dead = int(self.client.queue(DEAD_LETTERS).attributes()[VISIBLE])
        return audit(self.sent, self.place / "orders", self.delivered(), faults, dead)

    def delivered(self) -> int:
        found = re.search(rf'NumberOfMessagesReceived_total{{QueueName="{QUEUE}"}} (\d+)', self.fetch("/metrics"))
        return int(found[1]) if found else 0

    def fetch(self, path: str) -> str:
        with urlopen(self.endpoint + path, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def last_words(self) -> str:
        lines = (self.place / "pipeline.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


# A short run is mostly Spark's start: its compiler need not try hard.
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
}
SEMEL: Final = (sys.executable, "-m", "semel.cli")
VISIBLE: Final = "ApproximateNumberOfMessages"
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"


@contextlib.contextmanager
def broker(place: Path) -> Iterator[str]:
    faults = [part for name, rate in FAULTS.items() for part in ("--fault", f"{name}={rate}")]
    process = subprocess.Popen(
        [*SEMEL, "serve", "--port", "0", "--data", str(place / "queue"), *faults],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SemelError("the broker did not start; `semel serve` says why")
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)

"""`semel demo pipeline`: a faulty queue, a careless producer, a Spark pipeline that is killed, and the audit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from semel.demo.display import Screen
from semel.demo.processes import CREDENTIALS, Broker, Processes, last_line
from semel.demo.producer import DEAD_LETTERS, QUEUE, Sent, create, send
from semel.demo.table_audit import Audit, audit, lines, table_rows
from semel.errors import SemelError
from semel.extras import require
from semel.spark import java
from semel.sqs import Client

ORDERS: Final = 20_000
FAULTS: Final = {"duplicate": 0.05, "lost-delete": 0.05}
SEED: Final = 0
VISIBILITY: Final = 10
PATIENCE: Final = 240.0
STOPPING: Final = 90.0  # seconds for the batch in progress after SIGTERM
BATCHES: Final = 5  # the minimum number of batches for all orders
MOST_IN_A_BATCH: Final = 4_000
PIPELINE: Final = """\
name = "orders"
checkpoint = {checkpoint}

[source]
queues = ["{queue}"]
key = "$.id"
dedup = "key"                     # each order once, whoever sent or delivered it twice
endpoint_url = "{endpoint}"
region = "us-east-1"
visibility = {visibility}
max_seconds_per_batch = 3
max_messages_per_batch = {batch}

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
path = {table}
"""
VISIBLE: Final = "ApproximateNumberOfMessages"
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"


def check_installation() -> None:
    """Called before any work. Raises SemelError, which says what to install, if Spark or Java is missing."""
    require("semel demo pipeline", "pyspark", "pyarrow", "pandas", extra="spark")
    java.find()


def run(orders: int = ORDERS, *, folder: Path | None = None, screen: Screen) -> Audit:
    """Raises SemelError if a part does not start or the pipeline does not finish."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="semel-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        processes = stack.enter_context(Processes())
        broker = Broker(processes, folder, FAULTS, SEED)
        screen.write(f"A queue that behaves as SQS may: it delivers {FAULTS['duplicate']:.0%} of the messages twice,")
        screen.write(f"and {FAULTS['lost-delete']:.0%} of the deletes get lost.")
        client = stack.enter_context(Client(broker.url, "us-east-1", access_key="demo", secret_key="demo"))
        audit = Demo(orders, folder.resolve(), broker, client, processes, screen).run()
    screen.write()
    for line in lines(audit):
        screen.write(line)
    screen.write()
    return audit


class Demo:
    def __init__(
        self, orders: int, folder: Path, broker: Broker, client: Client, processes: Processes, screen: Screen
    ) -> None:
        self.orders, self.folder, self.broker = orders, folder, broker
        self.client, self.processes, self.screen = client, processes, screen
        self.batch = min(MOST_IN_A_BATCH, orders // BATCHES)
        self.file, self.log, self.table = folder / "orders.toml", folder / "pipeline.log", folder / "orders"

    def run(self) -> Audit:
        sent = self.send()
        self.file.write_text(
            PIPELINE.format(
                checkpoint=json.dumps(str(self.folder / "checkpoint")),
                table=json.dumps(str(self.table)),
                queue=QUEUE,
                endpoint=self.broker.url,
                visibility=VISIBILITY,
                batch=self.batch,
            )
        )
        self.screen.write("\nsemel pipeline run orders.toml      SQS -> Spark -> a Parquet table")
        first = self.start()
        self.watch_until_unfinished(first)
        self.processes.kill(first)
        at_kill = len(table_rows(self.table))
        unfinished = "" if at_kill < self.orders else ": the kill came too late"
        self.screen.write(f"kill -9 of the driver, with {at_kill:,} of {self.orders:,} orders in the table{unfinished}")
        self.screen.write("semel pipeline run orders.toml      again")
        second = self.start()
        self.watch_until_empty(second)
        code = self.processes.end(second, "the pipeline", STOPPING)
        if code:
            raise SemelError(f"the pipeline ended with code {code}: {last_line(self.log)}")
        return audit(
            sent,
            table_rows(self.table),
            rows_at_kill=at_kill,
            delivered=self.broker.deliveries(QUEUE),
            received=self.total("received"),
            dead_letters=int(self.client.queue(DEAD_LETTERS).attributes(VISIBLE)[VISIBLE]),
        )

    def send(self) -> Sent:
        queue, sent = create(self.client, VISIBILITY), Sent()
        for _ in send(queue, self.orders, sent):
            self.screen.progress(sent.orders, self.orders, f"{sent.messages:,} messages sent")
        self.screen.write(
            f"A producer sends {sent.orders:,} orders, {sent.again:,} of them twice, "
            f"and {sent.poison:,} broken messages."
        )
        return sent

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return self.processes.start(
                *("pipeline", "run", str(self.file), "--cores", "2", "--output", "jsonl"),
                output=output,
                environment={**CREDENTIALS, **self.spark()},
            )

    def spark(self) -> dict[str, str]:
        """A short run is mostly Spark's start, so the JVM uses its fast compiler only. Temporary files go to the demo's
        folder, as a killed driver does not remove its own."""
        scratch = self.folder / "spark"
        scratch.mkdir(exist_ok=True)
        options = f'-XX:TieredStopAtLevel=1 -Djava.io.tmpdir="{scratch}"'
        return {"SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch)}

    def watch_until_unfinished(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until some batches are in the table and the next one has begun to receive."""
        deadline = time.monotonic() + PATIENCE
        while self.total("rows") < self.orders // 4:
            self.check(process, deadline)
            time.sleep(0.05)
        received, soon = self.broker.deliveries(QUEUE), time.monotonic() + 10
        while self.broker.deliveries(QUEUE) == received and time.monotonic() < soon:
            time.sleep(0.002)

    def watch_until_empty(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until the queue has been empty for a second. Hidden messages count, as they may come back."""
        deadline, empty_since = time.monotonic() + PATIENCE, None
        while empty_since is None or time.monotonic() < empty_since + 1:
            self.check(process, deadline)
            counts = self.client.queue(QUEUE).attributes(VISIBLE, IN_FLIGHT)
            if any(int(count) for count in counts.values()):
                empty_since = None
            elif empty_since is None:
                empty_since = time.monotonic()
            time.sleep(0.25)

    def check(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        if process.poll() is not None:
            raise SemelError(f"the pipeline ended with code {process.returncode}: {last_line(self.log)}")
        if time.monotonic() > deadline:
            raise SemelError(f"the pipeline was too slow: its time limit is {PATIENCE:.0f} s: {last_line(self.log)}")
        rows, duplicates = self.total("rows"), sum(map(self.total, ("redelivered", "same_key", "in_ledger")))
        text = f"{rows:,} rows, {duplicates:,} duplicates dropped"
        self.screen.progress(rows, self.orders, text if rows else "Spark starts ...")

    def total(self, name: str) -> int:
        """A total from the pipeline's own status, over all finished batches."""
        try:
            status: dict[str, Any] = json.loads((self.folder / "checkpoint" / "status.json").read_text())
        except (OSError, ValueError):  # not written yet
            return 0
        return int(status.get("totals", {}).get(name, 0))

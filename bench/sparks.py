"""SQS through Spark: `make bench-spark`.

Runs one broker in its own process and one Spark at a time, with two cores, which is started for each work and stopped
after it. The queue is filled beforehand. Rates are measured from the end of the warm-up batches, in which Java compiles
its code, to the end of the last batch. The source alone has four batches, the first of which does not count; a pipeline
has three times as many messages in six batches of the default size, the first two of which do not count. The broker,
Spark and its Python workers share the two cores. The broker's CPU is measured over the whole work, from the end of the
fill to the end of Spark, and divided by the number of messages; by then each has been received and deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the servers that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, at_least, at_most
from broker_bench.targets import DATA, Semel, Server, Unavailable
from peer_bench.arguments import names
from peer_bench.libraries import run_worker
from peer_bench.tables import Table, as_markdown, bars_table, laid_out
from semel.sqs import Client, Entry
from spark_bench.worker import body

EXAMPLE = """\
example:
  python bench/sparks.py                          everything, about 25 minutes
  python bench/sparks.py --works noop,parquet --messages 100000
  python bench/sparks.py --durable                the broker syncs every change to disk
"""
WARM = 1  # batches that do not count
PATIENCE = 900.0
SCHEMA = 'ddl = "id STRING NOT NULL, cents BIGINT NOT NULL, country STRING, note STRING"'


@dataclass(frozen=True)
class Measured:
    """`rate`: messages/s from the end of the warm-up to the end. `cpu`: µs per message, of Spark and its workers only.
    `broker`: µs per message of the broker's CPU."""

    rate: float
    cpu: float
    broker: float = 0.0
    batches: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Amount:
    """The number of messages, and of messages in a batch. The first `warm` batches do not count."""

    messages: int
    per_batch: int
    warm: int = WARM


class Site:
    def __init__(self, broker: Server, postgres: str, messages: int, progress: Progress) -> None:
        self.broker, self.postgres, self.progress = broker, postgres, progress
        self.endpoint = endpoint = f"http://{broker.address[0]}:{broker.address[1]}"
        self.source = Amount(messages, messages // 4)
        self.through = Amount(3 * messages, messages // 2, 2)
        self.client = Client(endpoint, "us-east-1", access_key="test", secret_key="test")
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def place(self, messages: int) -> Iterator[dict[str, Any]]:
        """A filled queue and an empty folder."""
        name = f"bench-{next(self._numbers)}"
        queue = self.client.create_queue(name, {"MessageRetentionPeriod": 345_600})
        for start in range(0, messages, 1_000):
            queue.send_many([Entry(body(start + place)) for place in range(min(1_000, messages - start))])
        folder = Path(tempfile.mkdtemp(prefix="spark-", dir=DATA))
        try:
            yield {"endpoint": self.endpoint, "queue": name, "folder": str(folder)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            queue.drop()

    def noop(self, amount: Amount | None = None, **more: Any) -> Measured:
        amount = amount or self.source
        with self.place(amount.messages) as settings:
            return steady(self.work("noop", settings, per_batch=amount.per_batch, **more), amount.warm)

    def pipeline(self, sink: str, source: str = "", amount: Amount | None = None) -> Measured:
        amount = amount or self.through
        with self.place(amount.messages) as settings:
            settings |= {"toml": self.toml(settings, sink, source, amount.per_batch)}
            return steady(self.work("pipeline", settings), amount.warm)

    def ceiling(self, files: Path, sink: str, source: str = "") -> Measured:
        with self.place(0) as settings:
            settings |= {"toml": self.toml(settings, sink, source, self.through.per_batch), "files": str(files)}
            return steady(self.work("pipeline", settings), self.through.warm)

    def latency(self, seconds: float, rate: float) -> list[float]:
        with self.place(0) as settings:
            settings |= {
                "toml": self.toml(settings, PARQUET, "", self.through.per_batch),
                "seconds": seconds,
                "rate": rate,
            }
            latencies: list[float] = self.work("latency", settings)["latencies"]
            return latencies

    def state(self, sizes: list[int], amount: int) -> list[dict[str, Any]]:
        with self.place(0) as settings:
            phases: list[dict[str, Any]] = self.work(
                "state", settings, per_batch=self.through.per_batch, sizes=sizes, amount=amount
            )["phases"]
            return phases

    def toml(self, settings: dict[str, Any], sink: str, source: str, per_batch: int) -> str:
        text = f"""
            name = "bench"
            checkpoint = "{settings["folder"]}/checkpoint"
            [source]
            queues = ["{settings["queue"]}"]
            endpoint_url = "{self.endpoint}"
            region = "us-east-1"
            key = "$.id"
            max_messages_per_batch = {per_batch}
            {source or 'dedup = "segments"'}
            [schema]
            {SCHEMA}
            metadata = ["sent_at"]
            [rejects]
            table = "{settings["folder"]}/rejects"
            [sink]
            {sink.format(folder=settings["folder"], postgres=self.postgres)}
        """
        return "\n".join(line.strip() for line in text.splitlines())

    def work(self, name: str, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
        before = self.broker.cpu()
        result = run_worker(None, "spark_bench.worker", {"work": name, **settings, **more}, PATIENCE)
        return result | {"broker": self.broker.cpu() - before}


PARQUET = 'type = "parquet"\npath = "{folder}/out"'
DELTA = 'type = "delta"\npath = "{folder}/out"'
POSTGRES = 'type = "postgres"\ndsn = "{postgres}"\ntable = "bench_rows"\nmode = "upsert"\nkey = ["id"]'


def steady(result: dict[str, Any], warm: int) -> Measured:
    batches = [batch for batch in result["batches"] if batch["rows"]]
    if len(batches) <= warm:
        raise Unavailable(f"{len(batches)} batches, of which {warm} do not count: give it more --messages")
    counted = batches[warm:]
    rows = sum(batch["rows"] for batch in counted)
    seconds = counted[-1]["at"] - batches[warm - 1]["at"]
    cpu = counted[-1]["cpu"] - batches[warm - 1]["cpu"]
    broker = result["broker"] / sum(batch["rows"] for batch in batches)
    return Measured(rows / seconds, cpu / rows * 1e6, broker * 1e6, batches)


@contextlib.contextmanager
def opened(durable: bool, messages: int, progress: Progress) -> Iterator[Site]:
    from servers import postgres

    DATA.mkdir(exist_ok=True)
    with Server(Semel(durable=durable)) as broker, postgres.running() as database:
        yield Site(broker, database.url, messages, progress)


def written_files(site: Site, folder: Path) -> Path:
    """The same rows as Parquet files. Each has as many rows as one receiver gets in a batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from semel.spark.source import columns
    from semel.spark.source.columns import SourceMessage
    from semel.sqs import Received

    target = folder / "files"
    target.mkdir()
    half = site.through.per_batch // 2
    for start in range(0, site.through.messages, half):
        messages = [
            SourceMessage(
                Received(f"{n:032x}", "receipt", body(n), {"SentTimestamp": "1700000000000"}), 1.7e9, 0.0, f"{n:012d}"
            )
            for n in range(start, start + half)
        ]
        table: pa.Table = columns.table(messages, "bench", None).drop_columns(["receipt", "fence"])
        pq.write_table(table, target / f"{start:09d}.parquet")
    return target


WORKS = ("noop", "boto3", "parquet", "key", "postgres", "delta", "ceiling", "fixed", "latency", "receivers", "state")
THROUGH_BROKER = ("noop", "parquet", "key", "postgres", "delta")  # works for which the broker's CPU has a bar


def measure(site: Site, works: list[str]) -> dict[str, Any]:
    measurements: dict[str, Any] = {}

    def take(name: str, call: Any) -> None:
        if name.partition(" ")[0] in works:
            site.progress.doing(name)
            try:
                measurements[name] = call()
            except Unavailable as error:
                site.progress.report(f"{name} failed: {error}")
            value = measurements.get(name)
            site.progress.step(f"{name}: {in_short(value)}")

    take("noop", site.noop)
    take("boto3", lambda: site.noop(Amount(60_000, 15_000), boto3=True))
    take("parquet", lambda: site.pipeline(PARQUET))
    take("key", lambda: site.pipeline(PARQUET, 'dedup = "key"'))
    take("postgres", lambda: site.pipeline(POSTGRES))
    take("delta", lambda: site.pipeline(DELTA))
    if "ceiling" in works:
        with tempfile.TemporaryDirectory(dir=DATA) as folder:
            files = written_files(site, Path(folder))
            take("ceiling parquet", lambda: site.ceiling(files, PARQUET))
            take("ceiling key", lambda: site.ceiling(files, PARQUET, 'dedup = "key"'))
    take("fixed", lambda: site.pipeline(PARQUET, amount=Amount(20_000, 1_000)))
    take("latency", lambda: site.latency(30.0, 100.0))
    take("receivers 1", lambda: site.noop(options={"receivers": 1}))
    take("receivers 4", lambda: site.noop(options={"receivers": 4}))
    take("state", lambda: site.state([1_000_000, 10_000_000], 100_000))
    return measurements


def in_short(value: Any) -> str:
    if not isinstance(value, Measured):
        return "done"
    return f"{value.rate:,.0f}/s, {value.cpu:,.0f} µs CPU, broker {value.broker:,.0f} µs"


def bars(measurements: dict[str, Any]) -> list[tuple[str, Bar]]:
    def rate(name: str) -> float | None:
        return measurements[name].rate if name in measurements else None

    def part(name: str, other: str) -> float | None:
        return (
            measurements[name].rate / measurements[other].rate
            if name in measurements and other in measurements
            else None
        )

    every = "messages/s"
    result = [
        ("SQS → no-op", at_least("≥ 15,000 messages/s", 15_000, rate("noop"), every)),
        ("SQS → no-op", at_least("≥ 5 × the same over boto3", 5, part("noop", "boto3"), "×")),
        ("SQS → Parquet, dedup=segments", at_least("≥ 12,000 messages/s", 12_000, rate("parquet"), every)),
        ("SQS → Parquet, dedup=key", at_least("≥ 10,000 messages/s", 10_000, rate("key"), every)),
        ("SQS → PostgreSQL, upsert", at_least("≥ 8,000 messages/s", 8_000, rate("postgres"), every)),
        ("SQS → Delta", at_least("≥ 8,000 messages/s", 8_000, rate("delta"), every)),
        ("of the ceiling: Parquet files → Parquet", at_least("≥ 0.5", 0.5, part("parquet", "ceiling parquet"), "")),
        ("of the ceiling, dedup=key", at_least("≥ 0.5", 0.5, part("key", "ceiling key"), "")),
    ]
    broker = max((measurements[name].broker for name in THROUGH_BROKER if name in measurements), default=None)
    result.append(("the broker's CPU a message, where it is highest", at_most("≤ 35 µs", 35, broker, "µs")))
    fixed = measurements.get("fixed")
    result.append(("a batch of 1,000", at_most("≤ 1.5 s", 1.5, between(fixed) if fixed else None, "s")))
    latency = measurements.get("latency")
    result.append(
        ("from send to row, p50", at_most("≤ 3 s", 3.0, statistics.median(latency) if latency else None, "s"))
    )
    if "receivers 1" in measurements and "receivers 4" in measurements:
        pair = (measurements["receivers 1"].cpu, measurements["receivers 4"].cpu)
        text = "CPU a message with 4 receivers ÷ with 1"
        result.append((text, at_most("≤ 1.3 ×", 1.3, max(pair) / min(pair), "×")))
    if "state" in measurements:
        few, many = (phase["cpu"] / phase["rows"] for phase in measurements["state"])
        text = "CPU a message with 10 million keys ÷ with 1 million"
        result.append((text, at_most("≤ 1.3 ×", 1.3, many / few, "×")))
    return result


def between(measurement: Measured) -> float:
    """The median time from the end of a batch to the end of the next one."""
    ends: list[float] = [batch["at"] for batch in measurement.batches[WARM:]]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def figures(measurements: dict[str, Any]) -> Table:
    lines: Table = [("work", "messages/s", "CPU µs a message", "broker's CPU µs a message")]
    for name, value in measurements.items():
        if isinstance(value, Measured):
            broker = "–" if name.startswith("ceiling") else f"{value.broker:,.0f}"  # it reads files, not the queue
            lines.append((name, f"{value.rate:,.0f}", f"{value.cpu:,.0f}", broker))
    if measurements.get("latency"):
        ordered = sorted(measurements["latency"])
        shares = {share: ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99)}
        text = ", ".join(f"p{share * 100:g} {value:.2f} s" for share, value in shares.items())
        lines.append((f"latency at 100 messages/s: {text}", "", "", ""))
    for phase in measurements.get("state", ()):
        cpu = phase["cpu"] / phase["rows"] * 1e6
        lines.append((f"{phase['keys']:,} keys in the state", "", f"{cpu:,.0f}", ""))
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/sparks.py",
        description="Measure SQS through Spark.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--works", type=names(WORKS), default=list(WORKS), help=f"a subset of {','.join(WORKS)}")
    parser.add_argument(
        "--messages",
        type=int,
        default=200_000,
        metavar="N",
        help="messages for the source alone; pipelines get three times as many (200,000)",
    )
    parser.add_argument("--durable", action="store_true", help="let the broker sync every change to disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress()
    progress.expect(len(options.works) + 2)
    try:
        with opened(options.durable, options.messages, progress) as site:
            measurements = measure(site, options.works)
    except KeyboardInterrupt:
        progress.report("interrupted; everything is stopped")
        return 130
    except Unavailable as error:
        progress.report(f"bench-spark: {error}")
        return 2
    finally:
        progress.finish()
    head = [f"{name}: {value}" for name, value in machine.description().items()]
    durable = "durable" if options.durable else "in memory"
    head.append(f"broker: semel serve, {durable}")
    head.append(f"messages: {options.messages:,} for the source, {3 * options.messages:,} for each pipeline")
    parts = [("Figures", figures(measurements)), ("Bars", bars_table(bars(measurements)))]
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    if options.markdown:
        text = ["# SQS through Spark", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        options.markdown.write_text("\n\n".join(text) + "\n")
    if options.json:
        plain = {name: asdict(value) if isinstance(value, Measured) else value for name, value in measurements.items()}
        options.json.write_text(json.dumps(plain, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One measurement in its own Spark: `python -m spark_bench.worker OPTIONS`. Prints its result as JSON.

Every work returns a list of batches: when each was finished, with how many rows, and the CPU that this process, Spark
and all workers had used by then. The first batches warm Spark up and do not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from broker_bench import machine
from semel.sqs import Client, Entry


class Sampler:
    """CPU seconds of this process and its children, sampled over time."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._samples.append((time.time(), machine.cpu_seconds(os.getpid())))

    def at(self, moment: float) -> float:
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1] if self._samples else 0.0

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    sampler = Sampler()
    result = WORKS[settings["work"]](settings)
    for batch in result["batches"]:
        batch["cpu"] = sampler.at(batch["at"])
    sampler.close()
    print(json.dumps(result), flush=True)
    os._exit(0)  # skips Spark's shutdown, which is not measured


def source(settings: dict[str, Any], spark: Any) -> Any:
    from semel.spark.source.datasource import register

    register(spark)
    name = "sqs"
    if settings.get("boto3"):
        from spark_bench.boto3_source import Boto3Source

        spark.dataSource.register(Boto3Source)
        name = Boto3Source.name()
    options = {
        "queue": settings["queue"],
        "endpointUrl": settings["endpoint"],
        "segments": f"{settings['folder']}/checkpoint/segments",
        "maxMessagesPerBatch": settings["per_batch"],
        **settings.get("options", {}),
    }
    return spark.readStream.format(name).options(**options).load()


def noop(settings: dict[str, Any]) -> dict[str, Any]:
    """The source alone, without a sink."""
    from semel.spark.spark_session import session

    spark = session("bench", master="local[2]", **{"spark.sql.streaming.numRecentProgressUpdates": 10_000})
    query = (
        source(settings, spark)
        .writeStream.format("noop")
        .option("checkpointLocation", f"{settings['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"batches": [ended(progress) for progress in query.recentProgress if progress.numInputRows]}


def ended(progress: Any) -> dict[str, Any]:
    began = datetime.fromisoformat(progress.timestamp).timestamp()
    took = progress.durationMs["triggerExecution"] / 1_000
    return {"at": began + took, "rows": progress.numInputRows, "took": took, "parts": dict(progress.durationMs)}


def pipeline(settings: dict[str, Any]) -> dict[str, Any]:
    """A pipeline from its file, as with `semel pipeline run --exit-when-empty`."""
    with observed() as batches:
        if "files" in settings:
            read_files_instead(settings)
        run(settings, exit_when_empty=True)
    return {"batches": batches}


def run(settings: dict[str, Any], **how: Any) -> None:
    from semel.spark.pipeline.config_file import load
    from semel.spark.pipeline.runner import run as run_pipeline

    file = Path(settings["folder"]) / "pipeline.toml"
    file.write_text(settings["toml"])
    report = run_pipeline(load(file), cores=2, show="none", **how)
    if report.error is not None:
        raise SystemExit(str(report.error))


@contextlib.contextmanager
def observed() -> Iterator[list[dict[str, Any]]]:
    """Records when each batch was in the table."""
    from semel.spark.pipeline.streaming_query import PipelineQuery

    batches: list[dict[str, Any]] = []
    original = PipelineQuery._committed

    def committed(self: Any, number: int, began: float, outcomes: Any) -> None:
        batches.append({"at": time.time(), "rows": sum(outcome.rows for outcome in outcomes), "number": number})
        original(self, number, began, outcomes)

    PipelineQuery._committed = committed  # type: ignore[method-assign]
    yield batches


def read_files_instead(settings: dict[str, Any]) -> None:
    """The ceiling: the same rows from Parquet files, by Spark's own source. Everything after the source is the same."""
    from semel.spark.source import column_types as sqs

    files = settings["files"]

    class Reader:
        def __init__(self, spark: Any) -> None:
            self._spark = spark

        def options(self, **_: Any) -> Reader:
            return self

        def load(self) -> Any:
            stream = self._spark.readStream.schema(sqs.ddl()).option("maxFilesPerTrigger", 2)
            return stream.parquet(files)

    from pyspark.sql.streaming.readwriter import DataStreamReader

    known = DataStreamReader.format

    def chosen(self: Any, name: str) -> Any:
        return Reader(self._spark) if name == "sqs" else known(self, name)

    DataStreamReader.format = chosen  # type: ignore[method-assign,assignment]


def latency(settings: dict[str, Any]) -> dict[str, Any]:
    """Latency from send to row: a pipeline runs all the time, and a producer sends a few messages at a time."""
    from semel.spark.pipeline.stop_request import Stop

    stop = Stop()
    with observed() as batches:
        thread = threading.Thread(target=produce, args=(settings, batches, stop), daemon=True)
        thread.start()
        run(settings, stop=stop)
    return {"batches": batches, "latencies": latencies(settings, batches)}


def produce(settings: dict[str, Any], batches: list[dict[str, Any]], stop: Any) -> None:
    queue = Client(settings["endpoint"]).queue(settings["queue"])
    queue.send(body(0))
    while not batches or not any(batch["rows"] for batch in batches):  # by then Spark is warm
        time.sleep(0.1)
    began = time.monotonic()
    number = 1
    while time.monotonic() - began < settings["seconds"]:
        queue.send_many([Entry(body(number + place)) for place in range(10)])
        number += 10
        time.sleep(10 / settings["rate"])
    while sum(batch["rows"] for batch in batches) < number:
        time.sleep(0.1)
    stop.ask()


def body(number: int) -> str:
    return json.dumps({"id": f"{number:012d}", "cents": number, "country": "FR", "note": "x" * 20})


def latencies(settings: dict[str, Any], batches: list[dict[str, Any]]) -> list[float]:
    import re

    import pyarrow.parquet as pq

    committed = {batch["number"]: batch["at"] for batch in batches}
    seconds = []
    for file in Path(settings["folder"], "out").glob("*.parquet"):
        number = re.search(r"b(\d{6,})", file.name)
        assert number is not None
        table = pq.read_table(file)
        for sent, id_ in zip(table["_sent_at"].to_pylist(), table["id"].to_pylist(), strict=True):
            if int(id_):
                seconds.append(committed[int(number[1])] - sent.timestamp())
    return seconds


def state(settings: dict[str, Any]) -> dict[str, Any]:
    """The cost of known keys: `once` over the queue and over files, which first fill the state with many keys."""
    from pyspark.sql import functions as f

    from semel.spark import once
    from semel.spark.source import column_types as sqs
    from semel.spark.spark_session import session

    spark = session("bench", master="local[2]", **{"spark.sql.shuffle.partitions": 4})
    folder = Path(settings["folder"])
    (folder / "known").mkdir()
    files = spark.readStream.schema(sqs.ddl()).option("maxFilesPerTrigger", 1).parquet(str(folder / "known"))
    batches: list[dict[str, Any]] = []
    rows = once(source(settings, spark).unionByName(files))

    def count(df: Any, _number: int) -> None:
        counts = df.groupBy(f.col("queue")).count().collect()
        fresh = {row["queue"]: row["count"] for row in counts}
        batches.append({"at": time.time(), "rows": fresh.get(settings["queue"], 0), "known": fresh.get("known", 0)})

    query = rows.writeStream.foreachBatch(count).option("checkpointLocation", f"{folder}/checkpoint").start()
    result: list[dict[str, Any]] = []
    made = 0
    for size in settings["sizes"]:
        while made < size:
            more = min(250_000, size - made)
            known_keys(spark, folder / "known", made, more)
            made += more
        query.processAllAvailable()
        await_quiet()
        mark, used = len(batches), machine.cpu_seconds(os.getpid())
        sending = fill(settings, len(result))
        query.processAllAvailable()
        used = machine.cpu_seconds(os.getpid()) - used - sending
        rows = sum(batch["rows"] for batch in batches[mark:])
        result.append({"keys": size, "rows": rows, "cpu": used})
    query.stop()
    return {"batches": batches, "phases": result}


def await_quiet() -> None:
    """Wait until the state store has finished its background work on the keys."""
    quiet = 0
    while quiet < 3:
        before = machine.cpu_seconds(os.getpid())
        time.sleep(1)
        quiet = quiet + 1 if machine.cpu_seconds(os.getpid()) - before < 0.15 else 0


def known_keys(spark: Any, folder: Path, first: int, count: int) -> None:
    from semel.spark.source import column_types as sqs

    names = ["message_id", "key", "queue", "received_at"]
    columns = [
        {
            "message_id": "uuid() AS message_id",
            "key": f"concat('known-', id + {first}) AS key",
            "queue": "'known' AS queue",
            "received_at": "current_timestamp() AS received_at",
        }.get(name, f"CAST(NULL AS {sqs.ddl([name]).split(' ', 1)[1]}) AS {name}")
        for name in sqs.COLUMN_NAMES
    ]
    assert all(name in sqs.COLUMN_NAMES for name in names)
    target = folder.parent / f"making-{first}"
    spark.range(count).selectExpr(*columns).coalesce(1).write.parquet(str(target))
    for file in target.glob("part-*.parquet"):
        file.rename(folder / f"{first}.parquet")


def fill(settings: dict[str, Any], phase: int) -> float:
    """Send messages; returns the CPU seconds of the sending, which are not part of the pipeline's."""
    began = time.thread_time()
    queue = Client(settings["endpoint"]).queue(settings["queue"])
    for start in range(0, settings["amount"], 1_000):
        queue.send_many([Entry(body(phase * settings["amount"] + start + place)) for place in range(1_000)])
    return time.thread_time() - began


WORKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "noop": noop,
    "pipeline": pipeline,
    "latency": latency,
    "state": state,
}

if __name__ == "__main__":
    main()

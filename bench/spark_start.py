"""The time from `semel pipeline run` to the first row: `python bench/spark_start.py`.

A broker in its own process has 1,000 messages. The pipeline is started in a new process, and its table is watched for
the first file. The kinds of deduplication take turns, so that noise affects all of them equally.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from broker_bench import machine
from broker_bench.results import at_most
from broker_bench.targets import Semel, Server, Unavailable
from peer_bench.arguments import names
from peer_bench.tables import Table, bars_table, laid_out
from semel.sqs import Client, Entry
from spark_bench.worker import body

EXAMPLE = """\
example:
  python bench/spark_start.py --rounds 3
  python bench/spark_start.py --dedup key --rounds 5 --json FILE

exit codes: 0 measured; 1 a pipeline failed; 2 wrong usage
"""
DEDUP = ("segments", "key")
MESSAGES = 1_000
LIMIT = 12.0
PATIENCE = 120.0
PIPELINE = """\
name = "start"
checkpoint = "{folder}/checkpoint"
[source]
queues = ["{queue}"]
endpoint_url = "{endpoint}"
region = "us-east-1"
key = "$.id"
dedup = "{dedup}"
[schema]
ddl = "id STRING NOT NULL, cents BIGINT NOT NULL, country STRING, note STRING"
[rejects]
table = "{folder}/rejects"
[sink]
type = "parquet"
path = "{folder}/table"
"""
PHASES = (
    ("python", "Python up"),
    ("java asked for", "imports, checks, sinks open"),
    ("java up", "Java up"),
    ("session", "session"),
    ("source", "until the source is loaded"),
    ("query", "query started"),
    ("planned", "first batch planned"),
    ("tasks", "its tasks"),
    ("row", "commit: the first row"),
)


def start(endpoint: str, queue: str, dedup: str, folder: Path) -> dict[str, float]:
    """Seconds from the start of the process to each moment."""
    (folder / "start.toml").write_text(PIPELINE.format(folder=folder, queue=queue, endpoint=endpoint, dedup=dedup))
    driver = [sys.executable, "-m", "spark_bench.start_driver"]
    command = [*driver, str(folder / "moments"), str(folder / "start.toml"), "--output", "jsonl"]
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    with (folder / "log").open("wb") as output:
        began = time.time()
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        moments = {"row": first_row(folder / "table", process) - began, "cpu": machine.cpu_seconds(process.pid)}
    except Unavailable as error:
        raise Unavailable(f"{error}: {(folder / 'log').read_text()[-2_000:]}") from None
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    for line in (folder / "moments").read_text().splitlines():
        name, moment = line.rsplit(" ", 1)
        moments[name] = float(moment) - began
    return moments


def first_row(table: Path, process: subprocess.Popen[bytes]) -> float:
    ends = time.monotonic() + PATIENCE
    while not any(table.glob("[!_.]*.parquet")):
        if process.poll() is not None:
            raise Unavailable(f"the pipeline ended with {process.returncode}")
        if time.monotonic() > ends:
            raise Unavailable(f"no row within {PATIENCE:.0f} s")
        time.sleep(0.005)
    return time.time()


def measure(rounds: int, kinds: list[str]) -> dict[str, list[dict[str, float]]]:
    runs_by_kind: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with Server(Semel(durable=False)) as broker:
        endpoint = f"http://{broker.address[0]}:{broker.address[1]}"
        client = Client(endpoint, "us-east-1", access_key="test", secret_key="test")
        for turn in range(rounds):
            for kind in kinds:
                queue = client.create_queue(f"start-{kind}-{turn}")
                queue.send_many([Entry(body(number)) for number in range(MESSAGES)])
                with tempfile.TemporaryDirectory(prefix="spark-start-") as folder:
                    moments = start(endpoint, queue.name, kind, Path(folder))
                runs_by_kind[kind].append(moments)
                print(f"{kind}: first row after {moments['row']:.2f} s, CPU {moments['cpu']:.2f} s", file=sys.stderr)
    return runs_by_kind


def phases(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each phase, from the end of the previous one."""
    result, before = {}, "began"
    for name, label in PHASES:
        result[label] = statistics.median(run[name] - run.get(before, 0.0) for run in runs)
        before = name
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/spark_start.py",
        description="Measure how long a pipeline takes to its first row.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="starts of each kind (3)")
    parser.add_argument("--dedup", type=names(DEDUP), default=list(DEDUP), help=f"a subset of {','.join(DEDUP)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all moments as JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        runs_by_kind = measure(options.rounds, options.dedup)
    except KeyboardInterrupt:
        return 130
    except Unavailable as error:
        print(f"spark_start: {error}", file=sys.stderr)
        return 1
    split = {kind: phases(runs) for kind, runs in runs_by_kind.items()}
    table: Table = [("phase, median seconds", *runs_by_kind)]
    table += [(label, *(f"{split[kind][label]:.2f}" for kind in runs_by_kind)) for _, label in PHASES]
    rows = {kind: statistics.median(run["row"] for run in runs) for kind, runs in runs_by_kind.items()}
    cpu = {kind: statistics.median(run["cpu"] for run in runs) for kind, runs in runs_by_kind.items()}
    table.append(("total", *(f"{rows[kind]:.2f}" for kind in runs_by_kind)))
    table.append(("CPU of the driver, Java and workers", *(f"{cpu[kind]:.2f}" for kind in runs_by_kind)))
    bars = [(f"first row, dedup={kind}", at_most(f"≤ {LIMIT:g} s", LIMIT, rows[kind], "s")) for kind in runs_by_kind]
    head = "\n".join(f"{name}: {value}" for name, value in machine.description().items())
    print(head, laid_out(table), laid_out(bars_table(bars)), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps(runs_by_kind, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

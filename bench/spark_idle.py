"""What an idle pipeline costs: `python bench/spark_idle.py --seconds 60`.

Runs `semel pipeline run` (dedup=key, Parquet) on an empty queue. After a warm-up it measures the CPU of Java and Python
as a share of one core, SQS requests per hour by action, and how long single messages take from the send to the
committed row. The broker and the proxy that counts requests run in this process, which is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from semel.broker import running
from semel.sqs import Client

FILE = """\
name = "idle"
checkpoint = "{folder}/checkpoint"

[source]
queues = ["orders"]
key = "$.id"
dedup = "key"
endpoint_url = "{endpoint}"

[schema]
ddl = "id STRING NOT NULL"

[rejects]
table = "{folder}/rejects"

[sink]
type = "parquet"
path = "{folder}/table"
"""
PATIENCE = 240.0
_ACTION = re.compile(rb"AmazonSQS\.([A-Za-z]+)")


class CountingProxy:
    """A proxy to the broker that counts the SQS actions in the requests."""

    def __init__(self, target: str) -> None:
        self.counts: Counter[str] = Counter()
        self._target = urlsplit(target)
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._target.hostname, self._target.port)
        await asyncio.gather(self._pass(reader, there[1], count=True), self._pass(there[0], writer, count=False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if count:
                    self.counts.update(action.decode() for action in _ACTION.findall(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class CpuMeter:
    """CPU seconds of a process and its descendants, by program, including processes that end while it watches."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._first: dict[int, float] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self._look(at_start=True)

    def watch(self, seconds: float) -> dict[str, float]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
            self._look()
        used = {"java": 0.0, "python": 0.0}
        for pid, (program, total) in self._last.items():
            used[program] += total - self._first[pid]
        return used

    def _look(self, *, at_start: bool = False) -> None:
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                program = "java" if "java" in process.name() else "python"
            except psutil.Error:
                continue
            total = times.user + times.system
            self._first.setdefault(process.pid, total if at_start else 0.0)
            self._last[process.pid] = (program, total)


def rows_in(folder: Path) -> int:
    status = folder / "checkpoint" / "status.json"
    try:
        return int(json.loads(status.read_text())["totals"]["rows"])
    except (OSError, ValueError, KeyError):
        return 0


def latency(client: Client, folder: Path, id_: str) -> float:
    """Seconds from the send of one message to its row."""
    before, began = rows_in(folder), time.monotonic()
    client.queue("orders").send(json.dumps({"id": id_}))
    while rows_in(folder) == before:
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"the message did not become a row within {PATIENCE:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (default: 60)")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of warm-up before that (default: 20)")
    parser.add_argument("--messages", type=int, default=5, help="single messages for the latency (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running() as broker, Client(broker.url) as client:
        folder, proxy = Path(name), CountingProxy(broker.url)
        client.create_queue("orders")
        (folder / "idle.toml").write_text(FILE.format(folder=folder, endpoint=proxy.url))
        command = [str(Path(sys.executable).with_name("semel")), "pipeline", "run", str(folder / "idle.toml")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as pipeline:
            try:
                latency(client, folder, "first")  # now Spark has started and has compiled the code of a batch
                time.sleep(options.warm_up)
                counted = proxy.counts.copy()
                used = CpuMeter(psutil.Process(pipeline.pid)).watch(options.seconds)
                requests = proxy.counts - counted
                waits = [latency(client, folder, f"m{n}") for n in range(options.messages)]
            finally:
                pipeline.terminate()
                pipeline.wait(60)
    for program in ("java", "python"):
        print(f"{program:8} {used[program] / options.seconds:7.2%} of a core")
    for action, count in sorted(requests.items()):
        print(f"{action:28} {count * 3600 / options.seconds:7.0f} an hour ({count} counted)")
    print(f"a single message is a row after {statistics.median(waits):.2f} s (median), at most {max(waits):.2f} s")


if __name__ == "__main__":
    main()

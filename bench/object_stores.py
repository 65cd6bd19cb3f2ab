"""What a call to the object store costs: latency and this process's CPU, with moto's server in another process.

python bench/object_stores.py
"""

from __future__ import annotations

import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from spark.sinks_support import s3_server

FIRST_CALL = """
import time; began, cpu = time.perf_counter(), time.process_time()
from semel.spark.segments.storage import open_store
open_store("s3://bucket/first").read("nothing")
print(time.perf_counter() - began, time.process_time() - cpu)
"""
CALLS = 300


def measured(name: str, call: Callable[[int], object], calls: int = CALLS) -> None:
    took, cpu = [], time.process_time()
    for number in range(calls):
        began = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - began)
    used = (time.process_time() - cpu) / calls
    print(f"| {name} | {statistics.median(took) * 1e3:.2f} ms | {used * 1e3:.2f} ms |")


def main() -> None:
    storage = importlib.import_module("semel.spark.segments.storage")
    with s3_server():
        starts = [subprocess.check_output([sys.executable, "-c", FIRST_CALL], text=True).split() for _ in range(5)]
        wall, cpu = (statistics.median(float(start[index]) for start in starts) for index in (0, 1))
        print(
            f"| | median | CPU |\n|---|--:|--:|\n| import and first read | {wall * 1e3:.0f} ms | {cpu * 1e3:.0f} ms |"
        )
        store, data = storage.open_store("s3://bucket/bench"), bytes(100_000)
        measured("put_if_absent, 100 kB", lambda number: store.put_if_absent(f"b/{number:04}", data))
        measured("read, 100 kB", lambda number: store.read(f"b/{number:04}"))
        store.delete(store.names("b")[100:])
        measured("names of 100 files", lambda _: store.names("b"), 50)
        measured("delete of one", lambda number: store.delete([f"b/{number:04}"]), 100)


if __name__ == "__main__":
    main()

"""The Spark world with the real Parquet sink, in a bucket: tasks write files that readers see at once, and the commit
is another file. So rows and commit are separate steps, and the process may die at any call in between."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from semel.spark.segments.model import Content
from semel.spark.sinks.contract import Writer
from semel.spark.sinks.parquet import sink as parquet
from semel.spark.sinks.parquet.sink import ParquetSink
from simulation.choices import Choices
from simulation.search import Outcome
from simulation.spark_driver import numbered
from simulation.spark_sink import SimulatedSink
from simulation.spark_store import SINK_COMMITS, Bucket, SimulatedStore, SparkProcess
from simulation.spark_world import SparkWorld, outcome_of

SCHEMA: Final = pa.schema([("key", pa.string())])
PATH: Final = "s3://bucket/table"


class Folder(Bucket):
    """The table, as its readers see it. A committed batch must stay committed."""

    def __init__(self, world: ParquetWorld) -> None:
        super().__init__({})
        self._world = world
        self._keys_of: dict[bytes, list[str]] = {}
        self._committed: set[int] = set()

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        if SINK_COMMITS in name and (number := numbered(name)) not in self._committed:
            self._committed.add(number)
            content = Content.parse(data.decode())
            assert content is not None
            self._world.checks.on_commit("table", self.rows_of(f"-{content.log_batch}-"))
        self._check_commits()

    def delete(self, names: Iterable[str]) -> None:
        super().delete(names)
        self._check_commits()

    def _check_commits(self) -> None:
        newest = max((numbered(name) for name in self.files if SINK_COMMITS in name), default=-1)
        if newest < max(self._committed, default=-1):
            text = f"batch {max(self._committed)} is committed, and now the newest is {newest}"
            self._world.simulator.violate("commit taken back", text)

    def rows_of(self, part: str = "") -> list[str]:
        return [
            key
            for name in self.names("")
            if name.endswith(".parquet") and part in name
            for key in self._decoded(self.files[name])
        ]

    def _decoded(self, data: bytes) -> list[str]:
        if data not in self._keys_of:
            file = pq.ParquetFile(io.BytesIO(data))
            self._keys_of[data] = file.read(use_threads=False).column("key").to_pylist()
        return self._keys_of[data]

    @property
    def rows(self) -> list[str]:
        return self.rows_of()


class ParquetWorld(SparkWorld):
    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        self.folder = Folder(self)
        self.table = cast("Any", self.folder)  # for outages, and for the count of its rows

    def run(self) -> None:
        with patch.object(parquet, "store_at", self.opened):
            super().run()

    def opened(self, _url: str) -> SimulatedStore:
        """A connection of the calling process to the folder."""
        process = cast("SparkProcess", self.simulator.task.process)
        return SimulatedStore(self.folder, process, self.perils, self.store_faults)

    def sinks(self, process: SparkProcess) -> tuple[Any, SimulatedSink]:
        sink = ParquetSink(PATH)
        sink._schema = SCHEMA
        return sink, SimulatedSink(self.rejects, process, self.perils, self.sink_faults)

    def connected(self, writer: Writer, process: SparkProcess) -> Writer:
        return writer if isinstance(writer, parquet.ParquetWriter) else super().connected(writer, process)

    def check_end(self) -> None:
        super().check_end()
        checks, rows = self.checks, Counter(self.folder.rows)
        if checks.older:
            return
        for key, count in sorted(rows.items()):
            if count > 1 and key not in checks.excused | checks.late:
                self.simulator.violate("doubled", f"{key} is in the files {count} times")
        bad = Counter(self.rejects.rows)
        for key in sorted(set(checks.committed) - set(rows) - set(bad) - checks.excused):
            self.simulator.violate("lost", f"{key} is committed, and in no file")


def parquet_world(choices: Choices) -> Outcome:
    return outcome_of(ParquetWorld(choices))

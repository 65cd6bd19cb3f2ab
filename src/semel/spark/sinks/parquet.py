"""A folder of Parquet files that any reader sees each row of once, with no manifest to look at.

The rule: a file's name is that of (pipeline, batch, task), so whoever writes the task's rows again replaces them by the
same rows. On a file system, tasks write hidden files and the driver's commit moves them into place, each atomically. In
S3, which cannot move, the task's own put makes the file appear.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from semel.spark import crash_points
from semel.spark.segments.storage import LocalStore, Store
from semel.spark.sinks.contract import (
    Commit,
    ForeignTable,
    MicroBatch,
    SinkError,
    Written,
    checked,
    is_in,
    short,
    store_at,
    unique,
)
from semel.spark.sinks.parquet_files import check_codec, encode, encode_file, sync_folder
from semel.spark.sinks.table_schema import grown, shaped, sql_name, storable

OURS: Final = "_semel"  # readers of a folder of Parquet files leave out what begins with an underscore
SCHEMA: Final = f"{OURS}/schema.json"
_HIDDEN: Final = f"{OURS}/writing"
_BATCH: Final = re.compile(r"-b(\d+)-t")


@dataclass(frozen=True, slots=True)
class ParquetWriter:
    url: str
    table: str
    prefix: str
    number: int
    schema: pa.Schema
    compression: str
    mark: str

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.table)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name = _file(self.prefix, self.number, task)
        store, rows = store_at(self.url), chain((first,), rows)
        if not isinstance(store, LocalStore):
            if (last := _last(store, self.mark)) is not None and last.number >= self.number:
                return Written(task, attempt, 0, 0)  # the task of a driver that does not know that the batch is in
            data, count = encode(rows, self.schema, self.compression)
            store.put(name, data)
            return Written(task, attempt, count, len(data), {"file": name})
        hidden = f"{name}.{unique(attempt)}"
        try:
            size, count = encode_file(store.root / _HIDDEN / hidden, rows, self.schema, self.compression)
        except OSError as error:
            raise SinkError(f"{self.table}: {error}") from error
        return Written(task, attempt, count, size, {"file": name, "hidden": hidden})


class ParquetSink:
    """`path` is a folder that all executors see, or s3://bucket/folder; `compression` zstd, snappy, gzip, lz4, none.

    Columns that are new appear in the new files only: read with `union_by_name` (DuckDB), `mergeSchema` (Spark) or a
    schema (pyarrow) to see them. A file that was moved away or merged into others does not come back.
    """

    def __init__(self, path: str, compression: str = "zstd", *, prefix: str = "part") -> None:
        check_codec(compression)
        self._store = store_at(path)
        self._compression = compression
        self._prefix = prefix
        self._schema: pa.Schema | None = None

    @property
    def name(self) -> str:
        return f"Parquet table {self._store.url}"

    def open(self, schema: pa.Schema) -> None:
        known = self._known()
        self._schema = self._grown(known, schema)
        if known != self._schema:
            self._store.put(SCHEMA, _written_down(self._schema))

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        if isinstance(self._store, LocalStore) and self._store.root.exists() and not self._store.root.is_dir():
            raise SinkError(f"{self.name}: it is a file; choose a folder")
        if not adopt:
            self.check_owner(pipeline)
        self._grown(self._known(), schema)

    def check_owner(self, pipeline: str | None) -> None:
        own = f"{self._prefix}-{short(pipeline)}" if pipeline is not None else None
        if own is not None and self._store.read(f"{OURS}/{own}.committed") is not None:
            return
        names = [name for name in self._entries() if not name.startswith(("_", "."))]
        if names and not (own is not None and any(name.startswith(own) for name in names)):
            raise ForeignTable(self.name, f"the folder holds {names[0]}{' and more' if len(names) > 1 else ''}")

    def _entries(self) -> list[str]:
        """What is in the folder: for readers, all of it is one table."""
        if not isinstance(self._store, LocalStore):
            return self._store.names()
        try:
            return sorted(entry.name for entry in os.scandir(self._store.root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SinkError(f"{self.name}: {error.strerror}") from None

    def _grown(self, known: pa.Schema | None, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        if known is None:
            return wanted
        way_out = "Give the column its old type back and a new one another name, or write to a new folder."
        return grown(known, wanted, table=self.name, way_out=way_out, may_lack=False)

    def last(self, pipeline: str) -> Commit | None:
        return _last(self._store, self._mark(pipeline))

    def writer(self, batch: MicroBatch) -> ParquetWriter:
        if self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        prefix = f"{self._prefix}-{short(batch.pipeline)}"
        settings = (self._schema, self._compression, self._mark(batch.pipeline))
        return ParquetWriter(self._store.url, self.name, prefix, batch.number, *settings)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        winners = checked(batch, written)
        if is_in(self.name, self.last(batch.pipeline), batch):
            return
        if isinstance(self._store, LocalStore):
            self._place(self._store.root, winners)
        # A dead run of the batch may have had rows for a task that has none now: constraints were changed in between.
        prefix, empty = f"{self._prefix}-{short(batch.pipeline)}", [one.task for one in written if not one.rows]
        self._store.delete([_file(prefix, batch.number, task) for task in empty])
        crash_points.reached("during-commit")
        self._store.put(self._mark(batch.pipeline), orjson.dumps({"number": batch.number, "content": batch.content}))
        if isinstance(self._store, LocalStore):
            self._tidy(self._store.root, batch)

    def close(self) -> None:
        pass

    def _mark(self, pipeline: str) -> str:
        return f"{OURS}/{self._prefix}-{short(pipeline)}.committed"

    def _place(self, root: Path, winners: Sequence[Written]) -> None:
        for one in winners:
            target = root / one.payload["file"]
            try:
                os.replace(root / _HIDDEN / one.payload["hidden"], target)
            except FileNotFoundError:
                # A former commit of the batch moved it, and ended before it was through.
                if not target.exists():
                    raise SinkError(
                        f"{self.name}: what task {one.task} wrote is not there: every executor must see the same "
                        "folder as the driver does; use a shared file system or s3://"
                    ) from None
            except OSError as error:
                raise SinkError(f"{self.name}: {error}") from error
            crash_points.reached("during-commit")
        if winners:
            sync_folder(root)

    def _tidy(self, root: Path, batch: MicroBatch) -> None:
        """Remove what attempts of older batches left behind; nobody can commit those any more."""
        with suppress(FileNotFoundError):
            for entry in os.scandir(root / _HIDDEN):
                found = _BATCH.search(entry.name)
                ours = entry.name.startswith(f"{self._prefix}-{short(batch.pipeline)}-b")
                if ours and found and int(found[1]) < batch.number:
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)

    def _known(self) -> pa.Schema | None:
        """The columns that the folder has: as written down, else as in a file of somebody else's."""
        data = self._store.read(SCHEMA)
        if data is not None:
            return _read_back(data, self.name)
        for name in self._store.names():
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                file = self._store.read(name)
                if file is not None:
                    return storable(pq.read_schema(io.BytesIO(file)))
        return None


def _file(prefix: str, number: int, task: int) -> str:
    return f"{prefix}-b{number:010}-t{task:04}.parquet"


def _last(store: Store, mark: str) -> Commit | None:
    data = store.read(mark)
    if data is None:
        return None
    found = orjson.loads(data)
    return Commit(int(found["number"]), found.get("content", ""))


def _written_down(schema: pa.Schema) -> bytes:
    columns = [{"name": field.name, "type": sql_name(field.type), "nullable": field.nullable} for field in schema]
    arrow = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return orjson.dumps({"columns": columns, "arrow": arrow}, option=orjson.OPT_INDENT_2)


def _read_back(data: bytes, table: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(orjson.loads(data)["arrow"])))
    except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"{table}: {SCHEMA} in it cannot be read ({error}); restore it, or remove it: its columns are then taken "
            "from one of the files"
        ) from error

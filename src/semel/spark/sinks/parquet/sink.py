"""A folder of Parquet files in which any reader sees each row once, without a manifest.

The rule: a file is named for (pipeline, batch of the segment log, task), so a task that is run again replaces its
rows by the same rows, even after a reset. On a file system, tasks write hidden files, and the driver's commit moves
each into place atomically. An object store cannot move files: there the task's own put makes the file visible.
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
from semel.spark.segments.model import Content
from semel.spark.segments.storage import LocalStore, Store
from semel.spark.sinks.commit_log import CommitLog
from semel.spark.sinks.contract import (
    Commit,
    ForeignTable,
    MicroBatch,
    SinkError,
    Written,
    already_committed,
    attempt_name,
    pipeline_tag,
    results_with_rows,
    store_at,
)
from semel.spark.sinks.parquet.encoder import (
    check_codec,
    check_writable,
    encode,
    encode_file,
    file_error,
    sync_folder,
)
from semel.spark.sinks.table_schema import grown, shaped, sql_name, storable

INTERNAL: Final = "_semel"  # readers of a folder of Parquet files skip what begins with an underscore
SCHEMA: Final = f"{INTERNAL}/schema.json"
_HIDDEN: Final = f"{INTERNAL}/writing"
_BATCH: Final = re.compile(r"-b(\d+)-t")


@dataclass(frozen=True, slots=True)
class ParquetWriter:
    """`files`: the prefix of the names of the batch's files, which no other batch has."""

    url: str
    table: str
    prefix: str
    files: str
    number: int
    schema: pa.Schema
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.table)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name = _file_name(self.files, task)
        store, rows = store_at(self.url), chain((first,), rows)
        if not isinstance(store, LocalStore):
            last = _commit_log(store, self.prefix).last()
            if last is not None and last.number >= self.number:
                return Written(task, attempt, 0, 0)  # a late task: another driver has committed the batch
            data, count = encode(rows, self.schema, self.compression)
            store.put(name, data)
            return Written(task, attempt, count, len(data), {"file": name})
        hidden = f"{self.prefix}-b{self.number:010}-t{task:04}.{attempt_name(attempt)}"
        try:
            size, count = encode_file(store.root / _HIDDEN / hidden, rows, self.schema, self.compression)
        except OSError as error:
            raise file_error(self.table, error) from error
        return Written(task, attempt, count, size, {"file": name, "hidden": hidden})


class ParquetSink:
    """`path`: a folder that all executors see, or s3://bucket/folder. `compression`: one of `encoder.CODECS`.

    New columns are in new files only: read with `union_by_name` (DuckDB), `mergeSchema` (Spark) or a schema (pyarrow)
    to see them. Files may be moved away or merged into others: they are not written again.
    """

    def __init__(self, path: str, compression: str = "zstd", *, prefix: str = "part") -> None:
        check_codec(compression)
        self._store = store_at(path)
        self._compression = compression
        self._prefix = prefix
        self._schema: pa.Schema | None = None
        self._leftovers_removed = False

    @property
    def name(self) -> str:
        return f"Parquet table {self._store.url}"

    def open(self, schema: pa.Schema) -> None:
        recorded = self._recorded_schema()
        self._schema = self._extended(recorded, schema)
        if recorded != self._schema:
            self._store.put(SCHEMA, _encode_schema(self._schema))

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        if isinstance(self._store, LocalStore):
            for folder in (self._store.root, self._store.root / _HIDDEN):
                check_writable(self.name, folder)
        if not adopt:
            self.check_owner(pipeline)
        self._extended(self._recorded_schema(), schema)

    def check_owner(self, pipeline: str | None) -> None:
        prefix = None if pipeline is None else self._file_prefix(pipeline)
        if pipeline is not None and self.last(pipeline) is not None:
            return
        names = [name for name in self._entries() if not name.startswith(("_", "."))]
        if names and not (prefix is not None and any(name.startswith(prefix) for name in names)):
            raise ForeignTable(self.name, f"the folder holds {names[0]}{' and more' if len(names) > 1 else ''}")

    def last(self, pipeline: str) -> Commit | None:
        return _commit_log(self._store, self._file_prefix(pipeline)).last()

    def writer(self, batch: MicroBatch) -> ParquetWriter:
        if self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        return ParquetWriter(
            self._store.url,
            self.name,
            self._file_prefix(batch.pipeline),
            self._files(batch, self.last(batch.pipeline)),
            batch.number,
            self._schema,
            self._compression,
        )

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        results, last = results_with_rows(batch, written), self.last(batch.pipeline)
        if already_committed(self.name, last, batch):
            return
        if isinstance(self._store, LocalStore):
            self._publish(self._store.root, results)
        self._remove_leftovers(self._files(batch, last), written)
        crash_points.reached("during-commit")
        _commit_log(self._store, self._file_prefix(batch.pipeline)).record(batch)
        if isinstance(self._store, LocalStore):
            self._remove_hidden(self._store.root, batch)

    def close(self) -> None:
        pass

    def _file_prefix(self, pipeline: str) -> str:
        return f"{self._prefix}-{pipeline_tag(pipeline)}"

    def _files(self, batch: MicroBatch, last: Commit | None) -> str:
        """The prefix of the names of a batch's files. A reset may give the batch another number, but not another place
        in the log. So files that tasks put before a reset are replaced, and do not stay beside those they put now."""
        source = f"b{batch.number:010}" if batch.log_batch is None else str(batch.log_batch)
        content = None if last is None else Content.parse(last.content)
        if content is not None and batch.log_batch is not None and content.log_batch.is_or_follows(batch.log_batch):
            # The files with the usual prefix are committed, and stay. This happens to rejects if a segment was lost
            # after their commit: the reset has announced that they come once more.
            source = f"{source}-again{batch.number:010}"
        return f"{self._file_prefix(batch.pipeline)}-{source}-t"

    def _entries(self) -> list[str]:
        """Everything in the folder: for readers it is one table."""
        if not isinstance(self._store, LocalStore):
            return self._store.names()
        try:
            return sorted(entry.name for entry in os.scandir(self._store.root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise file_error(self.name, error) from None

    def _extended(self, recorded: pa.Schema | None, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        if recorded is None:
            return wanted
        advice = "Keep the old type and give the new column another name, or write to a new folder."
        return grown(recorded, wanted, table=self.name, advice=advice, may_lack=False)

    def _publish(self, root: Path, results: Sequence[Written]) -> None:
        for result in results:
            target = root / result.payload["file"]
            try:
                os.replace(root / _HIDDEN / result.payload["hidden"], target)
            except FileNotFoundError:
                # An earlier commit of the batch has moved it, and did not get to its end.
                if not target.exists():
                    raise SinkError(
                        f"{self.name}: the file of task {result.task} is missing: every executor must see the same "
                        "folder as the driver; use a shared file system or s3://"
                    ) from None
            except OSError as error:
                raise file_error(self.name, error) from error
            crash_points.reached("during-commit")
        if results:
            sync_folder(root)

    def _remove_leftovers(self, files: str, written: Sequence[Written]) -> None:
        """Removes files of an earlier run of the batch that died: for tasks that have no rows now, because constraints
        were changed, and for tasks that the batch does not have now, because that machine had more processors."""
        empty = [_file_name(files, result.task) for result in written if not result.rows]
        if not self._leftovers_removed:  # only the first batch of a run can have been run before
            names = {_file_name(files, result.task) for result in written}
            empty += [name for name in self._store.names_with(files) if name not in names]
            self._leftovers_removed = True
        self._store.delete(empty)

    def _remove_hidden(self, root: Path, batch: MicroBatch) -> None:
        """Remove files of older batches that no attempt can commit any more."""
        prefix = f"{self._file_prefix(batch.pipeline)}-b"
        with suppress(FileNotFoundError):
            for entry in os.scandir(root / _HIDDEN):
                number = _BATCH.search(entry.name)
                if entry.name.startswith(prefix) and number and int(number[1]) < batch.number:
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)

    def _recorded_schema(self) -> pa.Schema | None:
        """The columns of the folder: from schema.json, else from a file that somebody else wrote."""
        data = self._store.read(SCHEMA)
        if data is not None:
            return _decode_schema(data, self.name)
        for name in self._store.names():
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                file = self._store.read(name)
                if file is not None:
                    return storable(pq.read_schema(io.BytesIO(file)))
        return None


def _file_name(files: str, task: int) -> str:
    return f"{files}{task:04}.parquet"


def _commit_log(store: Store, prefix: str) -> CommitLog:
    return CommitLog(store, f"{INTERNAL}/{prefix}.commits", former=f"{INTERNAL}/{prefix}.committed")


def _encode_schema(schema: pa.Schema) -> bytes:
    columns = [{"name": field.name, "type": sql_name(field.type), "nullable": field.nullable} for field in schema]
    arrow = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return orjson.dumps({"columns": columns, "arrow": arrow}, option=orjson.OPT_INDENT_2)


def _decode_schema(data: bytes, table: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(orjson.loads(data)["arrow"])))
    except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"{table}: its {SCHEMA} cannot be read ({error}). Restore it, or remove it: the columns are then taken "
            "from one of the files"
        ) from error

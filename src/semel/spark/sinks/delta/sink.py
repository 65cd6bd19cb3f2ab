"""A Delta table through `deltalake`: executors write the files, the driver's commit adds them to the table's log.

The rule: a commit carries the batch's number as the pipeline's application transaction, and is based on the
snapshot of the table in which the last number was read. If two drivers commit a batch at once, Delta refuses the second
commit.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyarrow import types

from semel.extras import require
from semel.spark import crash_points
from semel.spark.retries import retry
from semel.spark.segments.model import Content
from semel.spark.segments.storage import LocalStore
from semel.spark.sinks.contract import (
    Commit,
    ForeignTable,
    MicroBatch,
    SinkError,
    SinkPermissionDenied,
    SinkUnavailable,
    Written,
    already_committed,
    attempt_name,
    pipeline_tag,
    results_with_rows,
    store_at,
)
from semel.spark.sinks.delta.statistics import Statistics
from semel.spark.sinks.parquet.encoder import AWAY, FULL, check_codec, check_writable, encode_file, encode_to
from semel.spark.sinks.table_schema import grown, shaped, storable

if TYPE_CHECKING:
    from deltalake import DeltaTable

T = TypeVar("T")

# To report an unreachable store soon: by default, deltalake retries for three minutes.
_STORE_OPTIONS: Final = {"retry_timeout": "10s"}
_CONTENT: Final = ("log", "batch", "seals")
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.", "delta.invariants")
_ADVICE: Final = "Keep the old type and give the new column another name, or write to a new table."
# deltalake has no types for the errors of a store, only texts.
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)|code: (\d+)")
_OUTAGE: Final = re.compile(
    r"HTTP error|error sending request|timed? ?out|dns error|connection (closed|reset|refused)|SlowDown|"
    r"\b(429|5\d\d) [A-Z]",
    re.IGNORECASE,
)
_DENIED: Final = re.compile(r"permission denied|AccessDenied|\b40[13] [A-Z]", re.IGNORECASE)
_DECORATION: Final = re.compile(r"\x1b\[\d+m|↳")


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    url: str
    options: Mapping[str, str] = field(repr=False)  # may contain credentials
    table: str
    prefix: str  # of the batch's files
    schema: pa.Schema
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        rows = shaped(batches, self.schema, self.table)
        first = next(rows, None)
        if first is None:
            return Written(task, attempt, 0, 0)
        name = f"{self.prefix}-t{task:04}-{attempt_name(attempt)}.parquet"
        statistics = Statistics(self.schema)
        size, count = self._encode(name, statistics.observe(chain((first,), rows)))
        payload = {"file": name, "stats": statistics.json(), "written_at": int(time.time() * 1000)}
        return Written(task, attempt, count, size, payload)

    def _encode(self, name: str, rows: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        try:
            store = _local_store(self.url)
            if store is not None:
                return encode_file(store.root / name, rows, self.schema, self.compression)
            with _file_system(self.url, self.options).open_output_stream(name) as stream:
                count = encode_to(stream, rows, self.schema, self.compression)
                return stream.tell(), count
        except OSError as error:
            raise _failure(self.table, f"write {name}", error) from error


class DeltaSink:
    """`path`: a folder that all executors see, or an address that deltalake knows (s3://, gs://, abfss://), with its
    `storage_options`. The table is created if it does not exist. Partitioned tables are not supported.

    Files of attempts that lost are removed at the first commit after a start; others are left for VACUUM (with
    deltalake: `vacuum(full=True)`). A table with delta.setTransactionRetentionDuration forgets a pipeline that pauses
    for longer than that.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | None = None, *, compression: str = "zstd"
    ) -> None:
        require("a Delta table", "deltalake", extra="delta")
        check_codec(compression)
        self._local = _local_store(path)
        self._url = path if self._local is None else self._local.url
        self._options = {**({} if self._local else _STORE_OPTIONS), **(storage_options or {})}
        self._compression = compression
        self._schema: pa.Schema | None = None
        self._table: DeltaTable | None = None
        self._leftovers_removed = False

    @property
    def name(self) -> str:
        return f"Delta table {self._url}"

    def open(self, schema: pa.Schema) -> None:
        wanted = self._storable(schema)
        self._retry("open it", lambda: self._open(wanted))
        self._schema = wanted

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        wanted = self._storable(schema)
        if self._local is not None:
            check_writable(self.name, self._local.root)
        if not adopt:
            self.check_owner(pipeline)
        self._retry("read its log", lambda: self._check(wanted))

    def check_owner(self, pipeline: str | None) -> None:
        self._retry("read its log", lambda: self._check_owner(pipeline))

    def last(self, pipeline: str) -> Commit | None:
        return self._retry("read its log", lambda: self._last(pipeline))

    def writer(self, batch: MicroBatch) -> DeltaWriter:
        if self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        return DeltaWriter(self._url, self._options, self.name, _prefix(batch), self._schema, self._compression)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        # A batch without rows is committed, too: the table must not be behind the checkpoint.
        results = results_with_rows(batch, written)
        if self._retry(f"commit batch {batch.number}", lambda: self._commit(batch, results)):
            self._remove_leftovers(batch, results)

    def close(self) -> None:
        self._table = None

    def _storable(self, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        for column in wanted:
            if types.is_time(column.type):
                raise SinkError(f"{self.name}: column {column.name}: Delta has no type TIME; use STRING or TIMESTAMP")
        return wanted

    def _open(self, wanted: pa.Schema) -> None:
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            table = self._latest()
        except TableNotFoundError:
            self._check_no_parquet_files()
            DeltaTable.create(self._url, wanted, mode="ignore", storage_options=self._options)
            table = self._latest()
        if self._needs_columns(table, wanted):
            write_deltalake(table, wanted.empty_table(), mode="append", schema_mode="merge")

    def _check(self, wanted: pa.Schema) -> None:
        from deltalake.exceptions import TableNotFoundError

        try:
            table = self._latest()
        except TableNotFoundError:
            self._check_no_parquet_files()
            return
        self._needs_columns(table, wanted)

    def _check_owner(self, pipeline: str | None) -> None:
        from deltalake.exceptions import TableNotFoundError

        with suppress(TableNotFoundError):
            table = self._latest()
            if (pipeline is None or table.transaction_version(pipeline) is None) and table.file_uris():
                raise ForeignTable(self.name, "it has rows of others")

    def _last(self, pipeline: str) -> Commit | None:
        from deltalake.exceptions import TableNotFoundError

        with suppress(TableNotFoundError):
            return _last(self._latest(), pipeline)
        return None

    def _commit(self, batch: MicroBatch, results: Sequence[Written]) -> bool:
        """Returns whether this call committed the batch. If it fails half-way, the next try finds out how it ended."""
        from deltalake import CommitProperties, Transaction

        table = self._latest()
        if already_committed(self.name, _last(table, batch.pipeline), batch):
            return False
        missing = self._missing_file(results)
        if missing is not None:
            # If another driver has committed the batch meanwhile, it has removed our files.
            if already_committed(self.name, _last(self._latest(), batch.pipeline), batch):
                return False
            raise SinkError(
                f"{self.name}: the file of task {missing.task} is missing: every executor must see the same folder as "
                "the driver; use a shared file system or an object store"
            )
        crash_points.reached("during-commit")
        transactions = [Transaction(app, version) for app, version in _transactions(batch)]
        table.create_write_transaction(
            [_add_action(result) for result in results],
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(app_transactions=transactions),
        )
        return True

    def _needs_columns(self, table: DeltaTable, wanted: pa.Schema) -> bool:
        _check_supported(table, self.name)
        current = storable(pa.schema(table.schema()))
        return bool(grown(current, wanted, table=self.name, advice=_ADVICE, may_lack=True) != current)

    def _latest(self) -> DeltaTable:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(self._url, storage_options=self._options)
        else:
            self._table.update_incremental()
        return self._table

    def _retry(self, what: str, action: Callable[[], T]) -> T:
        """Runs `action`. Retries it if another commit came in between, or if the store did not answer."""

        def transient(error: Exception) -> bool:
            self._table = None
            if isinstance(error, SinkError):
                return False
            return _is_conflict(error) or isinstance(_failure(self.name, what, error), SinkUnavailable)

        try:
            return retry(action, transient)
        except SinkError:
            raise
        except Exception as error:  # deltalake also raises plain Exceptions
            raise _failure(self.name, what, error) from error

    def _check_no_parquet_files(self) -> None:
        if self._local is not None and next(self._local.root.glob("*.parquet"), None) is not None:
            raise SinkError(
                f"{self._url} holds Parquet files but is not a Delta table: convert it with "
                f"deltalake.convert_to_deltalake({self._url!r}), or choose a new folder"
            )

    def _missing_file(self, results: Sequence[Written]) -> Written | None:
        """A result whose file is missing. Only looked for in a local table, where that is cheap."""
        if self._local is None:
            return None
        root = self._local.root
        return next((result for result in results if not (root / result.payload["file"]).exists()), None)

    def _remove_leftovers(self, batch: MicroBatch, results: Sequence[Written]) -> None:
        """Removes other files of the batch: after our commit, they can never get into the table's log."""
        if self._leftovers_removed:
            return
        self._leftovers_removed = True
        keep, prefix = {result.payload["file"] for result in results}, f"{_prefix(batch)}-"
        with suppress(OSError):
            if self._local is not None:
                for path in self._local.root.glob(f"{prefix}*.parquet"):
                    if path.name not in keep:
                        path.unlink(missing_ok=True)
                return
            from pyarrow.fs import FileSelector

            files = _file_system(self._url, self._options)
            for info in files.get_file_info(FileSelector("/", recursive=False)):
                if info.base_name.startswith(prefix) and info.base_name not in keep:
                    files.delete_file(info.path)


def _local_store(url: str) -> LocalStore | None:
    """The folder of a table on this file system; None if it is elsewhere, and deltalake accesses it."""
    store = store_at(url) if "://" not in url or url.startswith("file:") else None
    return store if isinstance(store, LocalStore) else None


def _file_system(url: str, options: Mapping[str, str]) -> Any:
    """The folder of a table as pyarrow's file system, with the options that its log is written with."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(url, dict(options)))


def _prefix(batch: MicroBatch) -> str:
    return f"part-{pipeline_tag(batch.pipeline)}-b{batch.number:010}"


def _transactions(batch: MicroBatch) -> list[tuple[str, int]]:
    """Delta keeps one integer for each application id, so the content of a batch takes three more ids."""
    transactions = [(batch.pipeline, batch.number)]
    content = Content.parse(batch.content)
    if content is not None:
        numbers = (int(content.log, 16), content.batch, int(content.seals, 16))
        transactions += [(f"{batch.pipeline}/{part}", number) for part, number in zip(_CONTENT, numbers, strict=True)]
    return transactions


def _last(table: DeltaTable, pipeline: str) -> Commit | None:
    number = table.transaction_version(pipeline)
    if number is None:
        return None
    log, batch, seals = (table.transaction_version(f"{pipeline}/{part}") for part in _CONTENT)
    if log is None or batch is None or seals is None:
        return Commit(number)
    return Commit(number, str(Content(f"{log:012x}", batch, f"{seals:014x}")))


def _add_action(result: Written) -> Any:
    from deltalake.transaction import AddAction

    payload = result.payload
    return AddAction(payload["file"], result.bytes, {}, payload["written_at"], True, payload["stats"])


def _check_supported(table: DeltaTable, name: str) -> None:
    """Refuse a table with features that need more than adding a file to its log."""
    configuration = table.metadata().configuration
    fields = table.schema().fields
    features = {
        "is partitioned": bool(table.metadata().partition_columns),
        "has column mapping": configuration.get("delta.columnMapping.mode", "none") != "none",
        "has CHECK constraints": any(key.startswith("delta.constraints.") for key in configuration),
        "has row tracking": configuration.get("delta.enableRowTracking") == "true",
        "has computed columns": any(key.startswith(_COMPUTED) for column in fields for key in column.metadata),
    }
    for feature, present in features.items():
        if present:
            raise SinkError(f"{name} {feature}, which this sink does not support; write to a table of its own")


def _is_conflict(error: Exception) -> bool:
    """Whether another commit came first, or another driver created the table at the same moment."""
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

    permanent = (DeltaProtocolError, SchemaMismatchError, TableNotFoundError)
    return isinstance(error, DeltaError) and not isinstance(error, permanent)


def _failure(table: str, what: str, error: Exception) -> SinkError:
    """Turns an error of deltalake or of the store into ours: an outage, or one that waiting does not fix."""
    from deltalake.exceptions import CommitFailedError

    text = " ".join(_DECORATION.sub("", str(error)).split())[:500] or type(error).__name__
    number = getattr(error, "errno", None) or next((int(a or b) for a, b in _OS_ERROR.findall(text)), None)
    if number in FULL:
        return SinkUnavailable(f"{table}: cannot {what}: the disk is full ({text}). Free some space: it is tried again")
    if number in AWAY or isinstance(error, CommitFailedError) or _OUTAGE.search(text):
        return SinkUnavailable(f"{table}: cannot {what}: {text}")
    kind = SinkPermissionDenied if number in (errno.EACCES, errno.EPERM) or _DENIED.search(text) else SinkError
    return kind(f"{table}: cannot {what}: {text}")

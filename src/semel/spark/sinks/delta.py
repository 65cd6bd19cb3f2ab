"""A Delta table through `deltalake`: executors write the files, the driver's commit puts them into the log.

The rule: a commit carries the batch's number as the pipeline's application transaction, and is made on that snapshot of
the table in which the number was looked for. Of two drivers that commit a batch at once, Delta refuses the second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from semel.spark import crash_points
from semel.spark.segments.model import Content
from semel.spark.sinks.contract import Commit, ForeignTable, MicroBatch, SinkError, Written, checked, is_in, short
from semel.spark.sinks.delta_files import DeltaWriter, file_system, local_store
from semel.spark.sinks.parquet_files import check_codec
from semel.spark.sinks.table_schema import grown, storable

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TRIES: Final = 8
_PAUSE: Final = 0.05  # seconds, doubled from try to try: others write to the table too
_CONTENT: Final = ("log", "batch", "seals")
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.", "delta.invariants")
_WAY_OUT: Final = "Give the column its old type back and a new one another name, or write to a new table."


class DeltaSink:
    """`path`: a folder that all executors see, or an address that deltalake knows (s3://, gs://, abfss://), for which
    `storage_options` are handed on. The table is made if it is not there; it may be partitioned by nothing.

    Files of attempts that did not win are removed at the first commit after a start, else left for VACUUM (with
    deltalake: `vacuum(full=True)`). A table with delta.setTransactionRetentionDuration forgets a pipeline that rests
    for longer than that.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | None = None, *, compression: str = "zstd"
    ) -> None:
        _need_deltalake()
        check_codec(compression)
        self._local = local_store(path)
        self._url = path if self._local is None else self._local.url
        self._options = dict(storage_options or {})
        self._compression = compression
        self._schema: pa.Schema | None = None
        self._table: DeltaTable | None = None
        self._tidied = False

    @property
    def name(self) -> str:
        return f"Delta table {self._url}"

    def open(self, schema: pa.Schema) -> None:
        wanted = self._wanted(schema)
        self._persistently("open it", lambda: self._opened(wanted))
        self._schema = wanted

    def check(self, schema: pa.Schema, pipeline: str | None, *, adopt: bool = False) -> None:
        wanted = self._wanted(schema)
        if not adopt:
            self.check_owner(pipeline)
        self._persistently("read its log", lambda: self._checked(wanted))

    def check_owner(self, pipeline: str | None) -> None:
        self._persistently("read its log", lambda: self._check_owner(pipeline))

    def _check_owner(self, pipeline: str | None) -> None:
        from deltalake.exceptions import TableNotFoundError

        with suppress(TableNotFoundError):
            table = self._fresh()
            if (pipeline is None or table.transaction_version(pipeline) is None) and table.file_uris():
                raise ForeignTable(self.name, "it has rows of others")

    def _checked(self, wanted: pa.Schema) -> None:
        from deltalake.exceptions import TableNotFoundError

        try:
            table = self._fresh()
        except TableNotFoundError:
            self._check_empty()
            return
        self._grown(table, wanted)

    def _wanted(self, schema: pa.Schema) -> pa.Schema:
        wanted = storable(schema)
        for field in wanted:
            if types.is_time(field.type):
                raise SinkError(f"{self.name}: column {field.name}: Delta has no type TIME; take STRING or TIMESTAMP")
        return wanted

    def last(self, pipeline: str) -> Commit | None:
        from deltalake.exceptions import TableNotFoundError

        def read() -> Commit | None:
            with suppress(TableNotFoundError):
                return _last(self._fresh(), pipeline)
            return None

        found: Commit | None = self._persistently("read its log", read)
        return found

    def writer(self, batch: MicroBatch) -> DeltaWriter:
        if self._schema is None:
            raise SinkError(f"{self.name} was not opened")
        return DeltaWriter(self._url, self._options, self.name, _prefix(batch), self._schema, self._compression)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        winners = checked(batch, written)  # a batch without rows is noted, too: the table is not behind the checkpoint
        if self._persistently(f"commit batch {batch.number}", lambda: self._added(batch, winners)):
            self._tidy(batch, winners)

    def close(self) -> None:
        self._table = None

    def _added(self, batch: MicroBatch, winners: Sequence[Written]) -> bool:
        """Whether this very call put the batch in. If it fails half-way, the next try finds out how it ended."""
        from deltalake import CommitProperties, Transaction

        table = self._fresh()
        if is_in(self.name, _last(table, batch.pipeline), batch):
            return False
        unseen = self._unseen(winners)
        if unseen is not None:
            if is_in(
                self.name, _last(self._fresh(), batch.pipeline), batch
            ):  # meanwhile: whoever put it in has removed what is ours
                return False
            raise SinkError(
                f"{self.name}: what task {unseen.task} wrote is not there: every executor must see the same folder as "
                "the driver does; use a shared file system or an object store"
            )
        crash_points.reached("during-commit")
        table.create_write_transaction(
            [_action(one) for one in winners],
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, version) for app, version in _transactions(batch)]
            ),
        )
        return True

    def _opened(self, wanted: pa.Schema) -> None:
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            table = self._fresh()
        except TableNotFoundError:
            self._check_empty()
            DeltaTable.create(self._url, wanted, mode="ignore", storage_options=self._options)
            table = self._fresh()
        if self._grown(table, wanted):
            write_deltalake(table, wanted.empty_table(), mode="append", schema_mode="merge")

    def _grown(self, table: DeltaTable, wanted: pa.Schema) -> bool:
        """Whether the table needs more columns."""
        _check_usable(table, self.name)
        known = storable(pa.schema(table.schema()))
        return bool(grown(known, wanted, table=self.name, way_out=_WAY_OUT, may_lack=True) != known)

    def _fresh(self) -> DeltaTable:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(self._url, storage_options=self._options)
        else:
            self._table.update_incremental()
        return self._table

    def _persistently(self, what: str, action: Any) -> Any:
        """Do it, and again if somebody else's commit came in between or the store did not answer."""
        from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

        for attempt in range(_TRIES):
            try:
                return action()
            except SinkError:
                raise
            except (DeltaProtocolError, SchemaMismatchError, TableNotFoundError) as error:
                raise SinkError(f"{self.name}: cannot {what}: {_first_line(error)}") from error
            except (DeltaError, OSError) as error:
                self._table, failure = None, error
            except Exception as error:  # deltalake raises bare ones for what it cannot do
                raise SinkError(f"{self.name}: cannot {what}: {_first_line(error)}") from error
            time.sleep(_PAUSE * 2**attempt)
        raise SinkError(f"{self.name}: cannot {what}: {_first_line(failure)}") from failure

    def _check_empty(self) -> None:
        if self._local is not None and next(self._local.root.glob("*.parquet"), None) is not None:
            raise SinkError(
                f"{self._url} holds Parquet files and is no Delta table: convert it with "
                f"deltalake.convert_to_deltalake({self._url!r}), or choose a new folder"
            )

    def _unseen(self, winners: Sequence[Written]) -> Written | None:
        """A result whose file is not there, as far as that is cheap to tell."""
        if self._local is None:
            return None
        root = self._local.root
        return next((one for one in winners if not (root / one.payload["file"]).exists()), None)

    def _tidy(self, batch: MicroBatch, winners: Sequence[Written]) -> None:
        """After our own commit of the batch, no other files of it can ever get into the log."""
        if self._tidied:
            return
        self._tidied = True
        kept = {one.payload["file"] for one in winners}
        with suppress(OSError):
            if self._local is not None:
                for path in self._local.root.glob(f"{_prefix(batch)}-*.parquet"):
                    if path.name not in kept:
                        path.unlink(missing_ok=True)
            else:
                self._tidy_remotely(_prefix(batch), kept)

    def _tidy_remotely(self, prefix: str, kept: set[str]) -> None:
        from pyarrow.fs import FileSelector

        files = file_system(self._url, self._options)
        for info in files.get_file_info(FileSelector("/", recursive=False)):
            if info.base_name.startswith(f"{prefix}-") and info.base_name not in kept:
                files.delete_file(info.path)


def _need_deltalake() -> None:
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise SinkError(f"a Delta table needs the package {error.name}: pip install 'semel[delta]'") from None


def _prefix(batch: MicroBatch) -> str:
    return f"part-{short(batch.pipeline)}-b{batch.number:010}"


def _transactions(batch: MicroBatch) -> list[tuple[str, int]]:
    """All that Delta keeps of an application is a whole number, so what a batch is made of takes three more of them."""
    found = [(batch.pipeline, batch.number)]
    content = Content.parse(batch.content)
    if content is not None:
        numbers = (int(content.log, 16), content.batch, int(content.seals, 16))
        found += [(f"{batch.pipeline}/{part}", number) for part, number in zip(_CONTENT, numbers, strict=True)]
    return found


def _last(table: DeltaTable, pipeline: str) -> Commit | None:
    number = table.transaction_version(pipeline)
    if number is None:
        return None
    log, batch, seals = (table.transaction_version(f"{pipeline}/{part}") for part in _CONTENT)
    if log is None or batch is None or seals is None:
        return Commit(number)
    return Commit(number, str(Content(f"{log:012x}", batch, f"{seals:014x}")))


def _action(one: Written) -> Any:
    from deltalake.transaction import AddAction

    payload = one.payload
    return AddAction(payload["file"], one.bytes, {}, payload["written_at"], True, payload["stats"])


def _check_usable(table: DeltaTable, name: str) -> None:
    """Refuse a table of somebody else's for which a file in the log is not all that a row needs."""
    configuration = table.metadata().configuration
    fields = table.schema().fields
    asks = [
        ("is partitioned", bool(table.metadata().partition_columns)),
        ("has column mapping", configuration.get("delta.columnMapping.mode", "none") != "none"),
        ("has CHECK constraints", any(key.startswith("delta.constraints.") for key in configuration)),
        ("has row tracking", configuration.get("delta.enableRowTracking") == "true"),
        ("has computed columns", any(key.startswith(_COMPUTED) for field in fields for key in field.metadata)),
    ]
    for what, so in asks:
        if so:
            raise SinkError(f"{name} {what}, which this sink does not do; write to a table of its own")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__

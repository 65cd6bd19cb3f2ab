"""One interface to sinks of every kind: tables that successive drivers write, and that are read as users read them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
from psycopg.rows import dict_row

from semel.spark.segments.model import Content
from semel.spark.sinks.contract import MicroBatch, Sink, Writer, Written
from semel.spark.sinks.delta.sink import DeltaSink
from semel.spark.sinks.parquet.sink import ParquetSink
from semel.spark.sinks.postgres.sink import PostgresSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIPELINE: Final = "0123456789abcdef0123456789abcdef"
ORDERS: Final = pa.schema([pa.field("id", pa.string(), nullable=False), ("amount", pa.int64())])
UTC_TIME: Final = pa.timestamp("us", tz="UTC")
NOON: Final = datetime(2026, 2, 28, 12, 30, 59, 123456, tzinfo=UTC)

Row = dict[str, Any]


@dataclass
class Table:
    """A table under test. `driver()` stands for a driver that has just started: it returns a new, opened sink."""

    make: Callable[[], Sink]
    read: Callable[[], list[Row]]
    sinks: list[Sink] = field(default_factory=list)

    def driver(self, schema: pa.Schema = ORDERS) -> Sink:
        sink = self.make()
        self.sinks.append(sink)
        sink.open(schema)
        return sink

    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self.read())

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def orders(*ids: str, schema: pa.Schema = ORDERS) -> pa.RecordBatch:
    rows = [{"id": id_, "amount": len(id_)} for id_ in ids]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def batch(number: int, pipeline: str = PIPELINE) -> MicroBatch:
    return MicroBatch(pipeline, number)


def log_batch(number: int, place: int, seals: int = 0) -> MicroBatch:
    """The batch that has the number `place` in the segment log. `seals` stands for its segments."""
    content = Content("0123456789ab", place, f"{seals:014x}")
    return MicroBatch(PIPELINE, number, str(content), content.log_batch)


def committed(sink: Sink, batch: MicroBatch) -> bool:
    """Whether the batch is committed."""
    last = sink.last(batch.pipeline)
    return last is not None and last.number >= batch.number


def run(writer: Writer, rows: Sequence[pa.RecordBatch], task: int = 0, attempt: str = "") -> Written:
    """One attempt of a task, as in an executor: the writer and its result are serialised."""
    there: Writer = pickle.loads(pickle.dumps(writer))
    return Written.decode(there.write(iter(rows), task, attempt or uuid4().hex).encode())


def write(sink: Sink, number: int | MicroBatch, *tasks: Sequence[pa.RecordBatch]) -> list[Written]:
    """Run all tasks of a batch once, without committing it."""
    writer = sink.writer(number if isinstance(number, MicroBatch) else batch(number))
    return [run(writer, rows, task) for task, rows in enumerate(tasks)]


def put(sink: Sink, number: int | MicroBatch, *tasks: Sequence[pa.RecordBatch]) -> None:
    """Write and commit a batch."""
    sink.commit(number if isinstance(number, MicroBatch) else batch(number), write(sink, number, *tasks))


def put_by_spark(sink: Sink, number: int, df: DataFrame) -> list[Written]:
    """Write and commit a batch with Spark's own tasks."""
    import warnings

    writer = sink.writer(batch(number))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from uuid import uuid4

        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        written = writer.write(batches, context.partitionId(), uuid4().hex)
        yield pa.RecordBatch.from_pydict({"written": [written.encode()]})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        results = df.mapInArrow(task, "written BINARY").collect()
    written = [Written.decode(bytes(row.written)) for row in results]
    sink.commit(batch(number), written)
    return written


def parquet_table(path: str) -> Table:
    return Table(lambda: ParquetSink(path), lambda: read_parquet(path))


def read_parquet(path: str) -> list[Row]:
    """The folder as pyarrow sees it, with the columns of all files."""
    if path.startswith("s3://"):
        files = pyarrow.fs.S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL_S3"], region="us-east-1")
        path = path.removeprefix("s3://")
    else:
        files = pyarrow.fs.LocalFileSystem()
    dataset = pyarrow.dataset.dataset(path, filesystem=files, format="parquet")
    schema = pa.unify_schemas([part.physical_schema for part in dataset.get_fragments()])
    table = pyarrow.dataset.dataset(path, schema, filesystem=files, format="parquet").to_table()
    return list(table.to_pylist(maps_as_pydicts="strict"))


def delta_table(path: str, **options: str) -> Table:
    from deltalake import DeltaTable

    def read() -> list[Row]:
        table = DeltaTable(path, storage_options=options).to_pyarrow_table()
        return list(table.to_pylist(maps_as_pydicts="strict"))

    return Table(lambda: DeltaSink(path, options), read)


def postgres_table(url: str, name: str, **options: Any) -> Table:
    return Table(lambda: PostgresSink(url, name, **options), lambda: select(url, f'SELECT * FROM "{name}"'))


def select(url: str, query: str) -> list[Row]:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        return cursor.execute(query.encode()).fetchall()


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


# In its own process: deltalake holds the GIL while it writes, so a server in this process could not answer it.
_S3: Final = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3-compatible server with one bucket. The environment variables point to it."""
    from botocore.session import Session

    command = [sys.executable, "-W", "ignore", "-c", _S3]
    before = dict(os.environ)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ.update(
            AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{server.stdout.readline().strip()}",
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_DEFAULT_REGION="us-east-1",
        )
        try:
            client: Any = Session().create_client("s3")
            client.create_bucket(Bucket="bucket")
            yield "s3://bucket"
        finally:
            os.environ.clear()
            os.environ.update(before)
            server.terminate()


def s3_options() -> dict[str, str]:
    """The storage options with which deltalake uses this server."""
    return {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL_S3"], "AWS_ALLOW_HTTP": "true"}


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Inside the block the folder is read-only. Root could still write to it, so root becomes another user there."""
    folder.mkdir(parents=True, exist_ok=True)
    above = [path for path in folder.parents if not os.stat(path).st_mode & 0o001]  # pytest makes these private
    modes = {path: os.stat(path).st_mode for path in (folder, *above)}
    folder.chmod(0o555)
    for path in above:
        path.chmod(modes[path] | 0o055)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        for path, mode in modes.items():
            path.chmod(mode)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


EVERY_TYPE: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("huge", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("at", UTC_TIME),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("prices", pa.list_(pa.decimal128(12, 2))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())]))),
    ]
)
EVERY_ROW: Final[list[Row]] = [
    {
        "id": "full",
        "text": 'a "quoted", line\nwith \\ and é 🎈 \t',
        "flag": True,
        "tiny": -128,
        "small": -32768,
        "int": -(2**31),
        "big": -(2**63),
        "single": 0.5,
        "double": 0.1,
        "price": Decimal("-9999999999.99"),
        "huge": Decimal("1234567890123456789012345678.0123456789"),
        "day": date(2024, 2, 29),
        "at": NOON,
        "local": NOON.replace(tzinfo=None),
        "raw": b"\x00\xff\\x",
        "tags": ["a", "", None, 'b "c" \\ {d}, e', "NULL"],
        "prices": [Decimal("1.20"), None],
        "counts": {"a": 1, "b": None},
        "place": {"city": "Ürümqi", "zip": None},
        "lines": [{"sku": "x", "n": 1}, None],
    },
    dict.fromkeys(EVERY_TYPE.names) | {"id": "empty"},
    dict.fromkeys(EVERY_TYPE.names)
    | {"id": "bare", "text": "", "raw": b"", "tags": [], "prices": [], "counts": {}, "lines": [], "double": -0.0},
    dict.fromkeys(EVERY_TYPE.names) | {"id": "odd", "text": "\\N", "double": float("inf"), "day": date(1, 1, 1)},
]


def every_type() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(EVERY_ROW, schema=EVERY_TYPE)

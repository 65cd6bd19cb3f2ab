"""Logs in a bucket are read where they are, with nothing but pyarrow; what cannot be reached is said in one line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from semel.doctor.errors import DoctorError
from semel.doctor.logs import remote
from semel.doctor.logs import spark_reader as logs
from semel.doctor.logs.mapping import parse
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC


class Bucket:
    """A bucket in moto's S3, and how pyarrow gets there."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name
        self.options = f"region=us-east-1&scheme=http&endpoint_override={client.meta.endpoint_url.partition('//')[2]}"
        client.create_bucket(Bucket=name)

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def url(self, place: str = "") -> str:
        return f"s3://{self.name}/{place}?{self.options}"


@pytest.fixture(scope="module")
def client(credentials: None) -> Iterator[Any]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
    yield client
    client.close()
    server.stop()


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(client, request.node.name.replace("_", "-").partition("[")[0][:60].rstrip("-"))


def line(number: int, **fields: Any) -> bytes:
    known = {"at": NOON + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"}
    return json.dumps(known | fields).encode() + b"\n"


def as_parquet(*rows: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def ids(spark: SparkSession, url: str, **options: Any) -> tuple[list[str], Quality]:
    reading = logs.read(spark, [url], **options)
    found = sorted(row.message_id for row in reading.events.collect())
    return found, reading.quality()


def test_lines_gz_and_parquet_of_a_bucket_are_read_and_what_is_damaged_is_named(
    spark: SparkSession, bucket: Bucket
) -> None:
    bucket.put("log/a.jsonl", line(1) + b"bad\n")
    bucket.put("log/deep/b.jsonl.gz", gzip.compress(line(2)))
    bucket.put("log/c.parquet", as_parquet({**json.loads(line(3)), "receive_count": 2, "more": "columns"}))
    bucket.put("log/half.parquet", as_parquet(json.loads(line(4)))[:-9])
    bucket.put("log/.open.jsonl", line(5))
    bucket.put("log/_x/d.jsonl", line(6))
    bucket.put("log/e.csv", b"x")
    bucket.put("other/f.jsonl", line(7))
    found, quality = ids(spark, bucket.url("log"))
    assert found == ["id-1", "id-2", "id-3"]
    assert (quality.files, quality.lines, quality.malformed, quality.samples) == (4, 4, 1, ("bad",))
    (problem,) = quality.unreadable
    assert problem.startswith(f"s3://{bucket.name}/log/half.parquet: ")


def test_what_the_attempt_log_put_there_comes_back(spark: SparkSession, bucket: Bucket) -> None:
    with AttemptLog.open(bucket.url("prod"), format="parquet", clock=lambda: NOON) as log:
        log.add(Attempt(NOON, Step.RECORDED, "orders", "id-1", "order-1", receive_count=2, seconds=1.5))
        assert log.flush(30)
    reading = logs.read(spark, [bucket.url("prod")], since=NOON)
    (row,) = reading.events.collect()
    assert (row.at, row.step, row.key, row.receive_count, row.seconds) == (NOON, "recorded", "order-1", 2, 1.5)
    assert reading.quality() == Quality(files=1, lines=1, events=1)


def test_one_file_a_glob_and_a_mapping_work_there_too(spark: SparkSession, bucket: Bucket) -> None:
    for day in (14, 15, 16):
        bucket.put(f"log/date=2026-11-{day}/000000", json.dumps({"id": f"id-{day}", "t": NOON}).encode())
    mapping = parse("id=.id,time=.t")
    assert ids(spark, bucket.url("log/date=2026-11-15/000000"), mapping=mapping)[0] == ["id-15"]
    assert ids(spark, bucket.url("log/date=*-1[45]/"), mapping=mapping)[0] == ["id-14", "id-15"]
    assert ids(spark, bucket.url("log"), mapping=mapping, since=NOON)[0] == ["id-16"]


def test_what_cannot_be_reached_is_said_in_one_line(client: Any, bucket: Bucket) -> None:
    bucket.put("a.csv", b"x")
    missing = bucket.url("log").replace(bucket.name, "no-such-bucket")
    with pytest.raises(DoctorError, match=r"--log s3://no-such-bucket/log.*: there is no such bucket$"):
        remote.files(missing, False)
    with pytest.raises(DoctorError, match=r"--log .*: there is no such file or folder$"):
        remote.files(bucket.url("nowhere"), False)
    with pytest.raises(DoctorError, match="a bucket's name takes no star"):
        remote.files("s3://log-*/x", False)
    assert remote.files(bucket.url(), False) == []


def test_a_refusal_names_the_permission() -> None:
    error = OSError("When listing objects under key 'x' in bucket 'y': AWS Error ACCESS_DENIED during ListObjectsV2")
    assert "s3:ListBucket" in remote.why(error)
    assert remote.why(OSError("something\nelse")) == "something"

"""Logs in a bucket are read in place; problems are reported in one line."""

from __future__ import annotations

import gzip
import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from doctor.stories import events_and_quality
from semel.doctor.engine.contract import Engine
from semel.doctor.errors import DoctorError
from semel.doctor.events import STEPS
from semel.doctor.logs import remote_files
from semel.doctor.logs.database import connect
from semel.doctor.logs.discovery import find
from semel.doctor.logs.mapping import own, parse
from semel.doctor.logs.reader import first_records
from semel.doctor.model import Quality
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step

NOON: Final = 1_794_830_400.0  # 2026-11-16 12:00 UTC


class Bucket:
    """A bucket in moto's S3, and its address as the attempt log has it."""

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
    # The engines run the same test against one server: each has a bucket of its own.
    test, _, parameters = request.node.name.replace("_", "-").rstrip("]").partition("[")
    return Bucket(client, re.sub("[^a-z0-9-]", "-", f"{test[:45]}-{parameters[:15]}".lower()).strip("-"))


def line(number: int, **fields: Any) -> bytes:
    known = {"at": NOON + number, "step": "received", "queue": "orders", "message_id": f"id-{number}"}
    return json.dumps(known | fields).encode() + b"\n"


def as_parquet(*rows: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def ids(engine: Engine, url: str, **options: Any) -> list[str]:
    events, _ = events_and_quality(engine, url, **options)
    return sorted(event["message_id"] for event in events)


def test_all_kinds_of_files_in_a_bucket_are_read_and_what_is_damaged_is_named(engine: Engine, bucket: Bucket) -> None:
    bucket.put("log/a.jsonl", line(1) + b"bad\n")
    bucket.put("log/deep/b.jsonl.gz", gzip.compress(line(2)))
    bucket.put("log/c.parquet", as_parquet({**json.loads(line(3)), "receive_count": 2, "more": "columns"}))
    bucket.put("log/e.csv", b"message_id,at,step\nid-4,1794830404,received\n")
    bucket.put("log/half.parquet", as_parquet(json.loads(line(5)))[:-9])
    bucket.put("log/torn.jsonl.gz", gzip.compress(line(6))[:-9])
    bucket.put("log/.open.jsonl", line(7))
    bucket.put("log/_x/d.jsonl", line(8))
    bucket.put("log/f.txt", b"x")
    bucket.put("other/f.jsonl", line(9))
    events, quality = events_and_quality(engine, bucket.url("log"))
    assert (
        {"id-1", "id-2", "id-3", "id-4"} <= {event["message_id"] for event in events} <= {f"id-{n}" for n in range(7)}
    )
    place = f"s3://{bucket.name}/log"
    assert (quality.files, quality.samples) == (6, (f"{place}/a.jsonl:2: bad",))
    assert [problem.partition(": ")[0] for problem in quality.unreadable] == [
        f"{place}/half.parquet",
        f"{place}/torn.jsonl.gz",
    ]


def test_what_the_attempt_log_put_there_comes_back(engine: Engine, bucket: Bucket) -> None:
    with AttemptLog.open(bucket.url("prod"), format="parquet", clock=lambda: NOON) as log:
        log.add(Attempt(NOON, Step.RECORDED, "orders", "id-1", "order-1", receive_count=2, seconds=1.5))
        assert log.flush(30)
    (event,), quality = events_and_quality(engine, bucket.url("prod"), since=NOON)
    assert (event["event_time"], STEPS[event["flag"]], event["key"]) == (NOON * 1e6, Step.RECORDED, "order-1")
    assert (event["receive_count"], event["duration"]) == (2, 1_500_000)
    assert quality == Quality(files=1, lines=1, events=1)


def test_one_file_a_glob_and_a_mapping_work_there_too(engine: Engine, bucket: Bucket) -> None:
    for day in (14, 15, 16):
        bucket.put(f"log/date=2026-11-{day}/000000", json.dumps({"id": f"id-{day}", "t": NOON}).encode())
    mapping = parse("id=.id,time=.t")
    assert ids(engine, bucket.url("log/date=2026-11-15/000000"), mapping=mapping) == ["id-15"]
    assert ids(engine, bucket.url("log/date=*-1[45]/"), mapping=mapping) == ["id-14", "id-15"]
    assert ids(engine, bucket.url("log"), mapping=mapping, since=NOON) == ["id-16"]


def test_a_file_that_vanishes_before_it_is_read_is_named(
    duckdb_engine: Engine, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bucket.put("log/a.jsonl", line(1))
    bucket.put("log/b.jsonl", line(2))
    bucket.put("log/c.parquet", as_parquet(json.loads(line(3))))
    files = find([bucket.url("log")]).files
    for name in ("b.jsonl", "c.parquet"):
        bucket.client.delete_object(Bucket=bucket.name, Key=f"log/{name}")
    with closing(connect()) as connection:
        assert first_records(connection, files[::-1]) == [json.loads(line(1))]
    problems = duckdb_engine.read(files, own(), None, None)
    assert duckdb_engine.rows("SELECT message_id FROM log_lines") == [{"message_id": "id-1"}]
    assert sorted(problem.partition(": ")[0] for problem in problems) == [
        f"s3://{bucket.name}/log/{name}" for name in ("b.jsonl", "c.parquet")
    ]
    assert not list(tmp_path.glob("semel-doctor-*.parquet"))


def test_what_cannot_be_reached_is_said_in_one_line(bucket: Bucket) -> None:
    bucket.put("a.txt", b"x")
    missing = bucket.url("log").replace(bucket.name, "no-such-bucket")
    with pytest.raises(DoctorError, match=r"--log s3://no-such-bucket/log.*: there is no such bucket$"):
        remote_files.files(missing, False)
    with pytest.raises(DoctorError, match=r"--log .*nowhere.*: no log file is there; looked for"):
        find([bucket.url("nowhere")])
    with pytest.raises(DoctorError, match="a bucket's name takes no star"):
        remote_files.files("s3://log-*/x", False)
    with pytest.raises(DoctorError, match="no such kind of address; there are s3://"):
        remote_files.files("hdfs://cluster/log", False)
    with pytest.raises(DoctorError, match="the name of the bucket is missing"):
        remote_files.files("s3:///log", False)
    assert remote_files.files(bucket.url(), False) == []


def test_a_server_that_is_not_there_is_said_in_one_line(credentials: None) -> None:
    with pytest.raises(DoctorError, match=r"--log s3://bucket/log.*: it cannot be reached") as refused:
        remote_files.files("s3://bucket/log?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:1", False)
    assert "\n" not in str(refused.value)


def test_a_refusal_names_the_permission() -> None:
    assert "s3:ListBucket" in remote_files.why(OSError("Client error with status 403: <Code>AccessDenied</Code>"))
    assert remote_files.why(OSError("something\nelse")) == "something"

"""Targets for logs, Semel's own and those of other programs, and for the other inputs of the doctor."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, Final

import duckdb
import orjson

from fuzz.damage import damaged
from fuzz.scratch import FOLDER
from semel.doctor.errors import DoctorError
from semel.doctor.inputs import metrics
from semel.doctor.logs import format_detection, mapping
from semel.doctor.logs.database import connect
from semel.doctor.logs.discovery import Kind, LogFile
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.reader import CREATE, LogReader, first_records
from semel.telemetry.message_trail import Trail

GOOD_ID: Final = "the-good-message"
GOOD: Final = {
    "at": 1_790_000_000.5,
    "step": "received",
    "queue": "orders",
    "message_id": GOOD_ID,
    "key": "k",
    "receive_count": 1,
}
GOOD_LINE: Final = orjson.dumps(GOOD)
VERSIONS: Final = 20


@cache
def _database() -> duckdb.DuckDBPyConnection:
    connection = connect(threads=1)
    connection.execute(CREATE)
    return connection


class _Reader(LogReader):
    """Reads in this thread, on one connection: handing a few lines to other threads would take longer than reading
    them. Most of the remaining time, about 15 ms, is DuckDB's planning of a query."""

    def read_texts(self, numbered: Iterator[tuple[int, Any]]) -> None:
        self._local.cursor = self._connection
        for number, text in numbered:
            self._insert(number, text.text, text.first_line, text.bytes)


def fuzz_trail(data: bytes) -> None:
    """Lines of an attempt log: no line causes an error, and the good lines before and after them are found. Every event
    that is found has the id or the key that was asked for."""
    path = FOLDER / "attempts.jsonl"
    path.write_bytes(b"\n".join((GOOD_LINE, data, GOOD_LINE, b"")))
    result = Trail([path]).events(message_id=["m-1", GOOD_ID], key="k-1", most_seconds=60.0)
    assert result.complete, result.reasons
    good = [event for event in result.events if event.message_id == GOOD_ID]
    assert len(good) >= 2
    assert all(event.message_id in ("m-1", GOOD_ID) or event.key == "k-1" for event in result.events)
    assert all(isinstance(event.at, float) and isinstance(event.attempt, int) for event in result.events)


def fuzz_attempt_log(data: bytes) -> None:
    """The same for the doctor: each line that is not blank becomes one row, which is an event or states its problem.
    No good line is lost because of a bad one. One query reads many damaged versions of the input, because planning a
    query takes longer than running it."""
    chance = Random(data)
    versions = [data, *(damaged(data, chance.randbytes(16)) for _ in range(VERSIONS))]
    content = b"\n".join([part for version in versions for part in (GOOD_LINE, version)])
    rows = _rows(content, Kind.LINES, mapping.own())
    assert sum(message_id == GOOD_ID and not problem for problem, message_id in rows) >= len(versions)
    lines = [line for line in content.decode("utf-8", "replace").split("\n") if line.strip(" \t\r")]
    assert len(rows) == len(lines), f"{len(rows)} rows of {len(lines)} lines"


def _rows(data: bytes, kind: Kind, meaning: LogMapping, suffix: str = "") -> list[tuple[int, str]]:
    """Problem and message id of each row of a log."""
    connection = _database()
    connection.execute("DELETE FROM log_lines")
    path = FOLDER / f"log{suffix}"
    path.write_bytes(data)
    reader = _Reader(connection, meaning)
    reader.read([LogFile(str(path), kind, len(data), str(path))])
    assert all(str(path) in problem for problem in reader.problems)
    return connection.execute("SELECT problem, message_id FROM log_lines").fetchall()


def fuzz_foreign_log(data: bytes) -> None:
    """A log of any program, as JSON lines, as CSV, as one JSON document or compressed: it is read, or a DoctorError
    says what is missing. The first byte chooses the format."""
    kinds = ((Kind.LINES, ""), (Kind.CSV, ""), (Kind.LINES, ".gz"), (Kind.LINES, ".bz2"), (Kind.LINES, ".zst"))
    kind, suffix = kinds[data[0] % len(kinds)] if data else kinds[0]
    content = gzip.compress(data[1:], 1)[: len(data) or 1] if suffix == ".gz" else data[1:]
    path = FOLDER / f"foreign{suffix}"
    path.write_bytes(content)
    records = first_records(_database(), [LogFile(str(path), kind, len(content), str(path))])
    try:
        detection = format_detection.detect(records)
    except DoctorError:  # with a mapping from the user, it can still be read
        _rows(content, kind, mapping.parse("id=.id,time=.ts,event=.event,records=.entries"), suffix)
        return
    _rows(content, kind, detection.mapping, suffix)
    if not detection.mapping.is_own:
        option = detection.mapping.as_option()
        assert mapping.parse(option, detection.mapping.as_events_option()).paths == detection.mapping.paths, option


def fuzz_log_mapping(data: bytes) -> None:
    """`--map`, a line feed, and `--events`: they give a mapping that DuckDB can run and that is the same when written
    as options and parsed again, or a DoctorError that names the option."""
    text, _, words = data.decode("utf-8", "replace").partition("\n")
    try:
        meaning = mapping.parse(text, words)
    except DoctorError as error:
        assert "--map" in str(error) or "--events" in str(error)
        return
    again = mapping.parse(meaning.as_option(), meaning.as_events_option())
    assert (again.paths, again.constants, again.pattern) == (meaning.paths, meaning.constants, meaning.pattern)
    assert isinstance(meaning.values({"id": "x", "ts": 1}), dict)
    if meaning.records is None:
        _rows(GOOD_LINE, Kind.LINES, meaning)


def fuzz_metrics_file(data: bytes) -> None:
    """Output of `aws cloudwatch`, or the metrics history of a broker: it gives series of numbers, or a DoctorError."""
    path = FOLDER / "metrics.json"
    path.write_bytes(data)
    notes: list[str] = []
    try:
        all_series = metrics.load(str(path), notes=notes)
    except DoctorError:
        return
    values: list[Any] = [point.at for series in all_series for point in series.points]
    assert all(isinstance(value, float | int) for value in values)
    metrics.merge(all_series)

"""Targets for the dead-letter tools: the filter language, and the files in the state folder."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

import msgspec
import orjson

from fuzz import scratch
from fuzz.complaints import no_error_logged
from fuzz.scratch import FOLDER
from semel.dlq import snapshots
from semel.dlq.audit import FIELDS as AUDIT_FIELDS
from semel.dlq.audit import FILE as AUDIT_FILE
from semel.dlq.audit import Audit, AuditEntry
from semel.dlq.filter.parser import FilterError, parse
from semel.dlq.jobs import Jobs
from semel.dlq.jobs.job_control import ACTIONS, ControlFile
from semel.dlq.messages import DeadLetterMessage, as_json
from semel.dlq.snapshots import SnapshotError
from semel.sqs.client.messages import Attribute
from semel.telemetry import annotation_log, worker_registry
from semel.telemetry.annotation_log import Annotation

NOW: Final = 1_790_000_000.0
MESSAGES: Final = (
    DeadLetterMessage(id="m-1", queue="orders-dlq", body="", sent=0.0, receives=0),
    DeadLetterMessage(
        id="m-2",
        queue="orders-dlq",
        body='{"order": {"id": 7, "total": 1e300, "note": "\\u0000"}, "lines": [null, true]}',
        sent=NOW - 3_600,
        receives=5,
        attributes={"tenant": Attribute("String", "acme"), "raw": Attribute("Binary", b"\xff")},
        source="orders",
        key="k",
        reason="poison",
        error="ValueError: timeout after 5 s",
        attempts=3,
        group="g",
        by_semel=True,
    ),
    DeadLetterMessage(id="m-3", queue="q", body="\ud800 not JSON", sent=NOW + 1e12, receives=-1, error="\ud800"),
)


def fuzz_filter(data: bytes) -> None:
    """A filter: it can be tested against every message, and its text parses as the same filter; or it is refused with
    a FilterError that shows the position."""
    text = data.decode("utf-8", "replace")
    try:
        wanted = parse(text)
    except FilterError as error:
        assert str(error)
        return
    again = parse(str(wanted))
    assert str(again) == str(wanted), f"{again} is not {wanted}"
    for message in MESSAGES:
        assert wanted.matches(message, NOW) is again.matches(message, NOW)
    assert isinstance(wanted.needs_body, bool)
    word = wanted.word
    assert word is None or word == word.lower()
    try:
        parse(text, AUDIT_FIELDS)
    except FilterError:
        return


def fuzz_snapshot(data: bytes) -> None:
    """Lines of an export or a snapshot: they give messages that stay the same when they are written and read again, or
    a SnapshotError that names the line. Only a partial line at the very end is skipped."""
    path = FOLDER / "snapshot.jsonl"
    path.write_bytes(data)
    messages: list[DeadLetterMessage] = []
    try:
        messages.extend(snapshots.messages_in(path))
    except SnapshotError as error:
        assert "line" in str(error)
        return
    assert len(messages) <= data.count(b"\n") + 1
    for message in messages:
        again = snapshots.read(snapshots.line(message, at=NOW))
        assert as_json(again) == as_json(message)
        assert parse("tenant or age > 1h or $.order.id = 7").matches(message, NOW) in (True, False)


_new_folder = cache(scratch.folder)


def fuzz_job_file(data: bytes) -> None:
    """A job file: it gives a job that can be shown, or it is skipped. The other jobs are listed in either case."""
    folder = _new_folder("jobs")
    (folder / "20260101-000000-fuzzed.json").write_bytes(data)
    good = folder / "20260101-000000-good.json"
    if not good.exists():
        good.write_bytes(_GOOD_JOB)
    with no_error_logged():
        jobs = Jobs(folder, clock=lambda: NOW).all()
    assert any(job.id == "20260101-000000-good" for job in jobs)
    for job in jobs:
        msgspec.json.encode(job.to_json())
        assert isinstance(job.state.ended, bool)


_GOOD_JOB: Final = (
    b'{"id":"20260101-000000-good","kind":"redrive","queue":"orders-dlq","plan":{},"state":"done","counts":{},'
    b'"total":null,"created":1.0,"started":1.0,"ended":2.0,"reason":"","messages":[]}'
)


def fuzz_control_file(data: bytes) -> None:
    """Requests to a job: those that can be understood are returned in order, each with a known action. A good one at
    the end is always among them."""
    path = _new_folder("control") / "job.control"
    path.write_bytes(data + b'\n{"action":"cancel","who":"w","at":1.0,"id":"the last"}\n')
    control = ControlFile(path.with_suffix(".json"))
    requests = control.new()
    assert requests[-1].id == "the last"
    assert all(request.action in ACTIONS for request in requests)
    assert control.new() == []


def fuzz_audit_log(data: bytes) -> None:
    """Lines of the audit log: entries are read and other lines are skipped. A good entry behind them is found, and the
    newest comes first."""
    folder = _new_folder("audit")
    (folder / AUDIT_FILE).write_bytes(data)
    audit = Audit.at(folder, clock=lambda: NOW)
    audit.write("me", "redrive", queue="orders")
    entries = list(audit.entries())
    assert entries[0].who == "me"
    assert all(isinstance(entry, AuditEntry) for entry in entries)
    assert list(audit.entries("who = me and age < 1h"))


def fuzz_annotations(data: bytes) -> None:
    """Lines of the annotation log: annotations are read, other lines are skipped, a good one behind them is found."""
    folder = _new_folder("annotations")
    (folder / annotation_log.FILE).write_bytes(data)
    annotation_log.add(folder, "deployed", "me", NOW)
    annotations = annotation_log.since(folder, NOW - 60)
    assert any(annotation.text == "deployed" for annotation in annotations)
    assert all(isinstance(annotation, Annotation) and annotation.at >= NOW - 60 for annotation in annotations)


def fuzz_workers(data: bytes) -> None:
    """An entry of the worker registry: it gives a worker, or it is skipped and left alone. The entry of a running
    worker is found in either case."""
    folder = _new_folder("state") / worker_registry.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "fuzzed.json").write_bytes(data)
    (folder / "good.json").write_bytes(_good_worker())
    workers = worker_registry.workers(folder.parent)
    assert any(worker.id == "good" for worker in workers)
    assert all(isinstance(worker.pid, int) and isinstance(worker.started, float) for worker in workers)


@cache
def _good_worker() -> bytes:
    fields = {"id": "good", "url": "http://localhost:1", "pid": os.getpid(), "host": "h", "started": 1.0, "queues": []}
    return orjson.dumps(fields)

"""The status of a pipeline: its figures, its status file, its checkpoint, its metrics, and its last report."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import pytest

from semel.errors import SemelError
from semel.spark.pipeline.checkpoint import Checkpoint, CheckpointError, Record
from semel.spark.pipeline.config import ParquetSpec, Pipeline, SchemaSpec, SourceSpec
from semel.spark.pipeline.progress import status
from semel.spark.pipeline.progress.metrics import Metrics, health, serve
from semel.spark.pipeline.progress.snapshot import MAX_REASONS, OTHER, Snapshot, State, Totals, added
from semel.spark.pipeline.progress.totals import Progress, Rates, source_totals
from semel.spark.pipeline.query_failures import PipelineFailed, explained, in_one_line
from semel.spark.pipeline.stop_request import Stop
from semel.spark.segments import model
from semel.spark.segments.segment_log import FORMER_COMMITTED, SegmentLog
from semel.spark.segments.storage import LocalStore, open_store

ID = "a" * 32


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def progress(clock: Clock | None = None, former: Snapshot | None = None, id_: str = ID) -> Progress:
    return Progress("orders", id_, "Parquet table /data/orders", former, clock or Clock())


# Counting.


def test_a_batch_is_counted_once_however_often_it_is_run() -> None:
    run = progress()
    for _ in range(2):
        run.committed(7, 999.0, rows=10, size=100, rejects={"not JSON": 1})
    snapshot = run.snapshot()
    assert (snapshot.totals.rows, snapshot.totals.bytes, snapshot.totals.batches) == (10, 100, 1)
    assert snapshot.totals.rejects == {"not JSON": 1}
    assert snapshot.counted == 7


def test_a_batch_that_was_counted_before_a_crash_is_not_counted_after_it() -> None:
    run = progress()
    run.committed(7, 999.0, rows=10, size=100, rejects={})
    former = Snapshot.decode(run.snapshot().encode())
    again = progress(former=former)
    again.committed(7, 999.0, rows=10, size=100, rejects={})
    assert again.snapshot().totals.rows == 10
    assert again.snapshot().run.rows == 0
    again.committed(8, 999.0, rows=5, size=100, rejects={})
    assert again.snapshot().totals.rows == 15
    assert again.snapshot().run.rows == 5


def test_a_batch_that_was_committed_and_not_counted_before_a_crash_is_counted_by_the_run_that_replays_it() -> None:
    again = progress(former=replace(progress().snapshot(), counted=6, totals=Totals(rows=60)))
    again.committed(7, 999.0, rows=10, size=100, rejects={})
    assert again.snapshot().totals.rows == 70


def test_the_figures_of_another_pipeline_are_not_gone_on_with() -> None:
    former = replace(progress().snapshot(), counted=6, totals=Totals(rows=60))
    assert progress(former=former, id_="b" * 32).snapshot().totals.rows == 0


def test_what_the_source_counts_is_a_total_and_not_added() -> None:
    run = progress()
    run.committed(0, 999.0, rows=80, size=0, rejects={"not JSON": 5})
    for _ in range(2):
        run.set_source_totals(
            model.Totals(received=120, rows=100, redelivered=8, duplicates=2, in_ledger=10, unconfirmed=3),
            by_key=True,
        )
    totals = run.snapshot().totals
    assert (totals.received, totals.redelivered, totals.in_ledger, totals.unconfirmed) == (120, 10, 10, 3)
    assert totals.same_key == 15  # 100 rows came out of the source, 85 went through
    assert totals.duplicates == 35
    assert totals.received == totals.rows + totals.rejected + totals.duplicates


def test_reasons_are_bounded() -> None:
    many = added({}, {f"reason {place}": 1 for place in range(MAX_REASONS + 10)})
    assert len(many) == MAX_REASONS + 1
    assert many[OTHER] == 10
    assert added(many, {"reason 3": 2})["reason 3"] == 3


def test_rates_spread_a_batch_over_the_time_it_took() -> None:
    rates = Rates(started=100.0)
    rates.add(100, 110.0, 120.0)
    assert rates.by_second(121.0, 12) == (0.0, *[10.0] * 10, 0.0)
    assert rates.last_minute(120.0) == pytest.approx(5.0)  # twenty seconds since the start
    assert rates.last_minute(300.0) == 0


def test_a_batch_that_took_no_time_at_all_has_a_rate() -> None:
    rates = Rates(started=100.0)
    rates.add(100, 110.0, 110.0)
    assert sum(rates.by_second(111.0, 5)) == pytest.approx(100)


def test_source_totals_are_of_batches_that_are_over_and_of_those_that_are_not(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    log = SegmentLog(store)
    for batch, task in ((3, 0), (4, 0), (4, 1)):
        place = model.SegmentId(batch, task, 0)
        store.put(place.name, b"")
        log.write_ack(
            place, model.SegmentAck("orders", rows=10, received=12, redelivered=2, unconfirmed={"x": 1}, attempt="a")
        )
    committed = model.Committed(3, model.Totals(batches=3, received=36, rows=30, redelivered=6))
    store.put(FORMER_COMMITTED, orjson.dumps({"through": 3, "totals": {"received": 36, "rows": 30, "redelivered": 6}}))
    totals = source_totals(log)
    assert (totals.received, totals.rows, totals.redelivered, totals.unconfirmed) == (60, 50, 10, 2)
    log.finish(committed, None, log.files(3).names)
    assert source_totals(log).received == 60


def test_source_totals_of_a_log_that_is_not_there_are_nothing(tmp_path: Path) -> None:
    assert source_totals(SegmentLog(LocalStore(str(tmp_path / "none")))) == model.Totals()


# The status file.


def test_a_snapshot_comes_back_from_the_file_as_it_was(tmp_path: Path) -> None:
    run = progress()
    run.committed(7, 999.0, rows=10, size=100, rejects={"not JSON": 1})
    run.set_backlog({"orders": 5})
    run.set_state(State.FAILED, PipelineFailed("the disk is full", "a long story"))
    store = LocalStore(str(tmp_path))
    status.StatusFile(store, run).write()
    assert status.read(store) == run.snapshot()
    assert status.read(LocalStore(str(tmp_path / "other"))) is None


def test_a_status_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    snapshot = orjson.loads(progress().snapshot().encode())
    store.put(status.STATUS, orjson.dumps({**snapshot, "mood": "good", "totals": {"rows": 5, "smiles": 7}}))
    read = status.read(store)
    assert read is not None
    assert read.totals == Totals(rows=5)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"state": "dancing"}'])
def test_a_status_that_cannot_be_read_is_no_reason_not_to_run(tmp_path: Path, data: bytes) -> None:
    store = LocalStore(str(tmp_path))
    store.put(status.STATUS, data)
    assert status.read(store) is None


def test_a_status_that_cannot_be_written_is_no_reason_not_to_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    status.StatusFile(LocalStore(str(tmp_path / "file")), progress()).write()
    assert "cannot be written" in caplog.text


def pipeline(folder: Path) -> Pipeline:
    return Pipeline("orders", str(folder), SourceSpec(("orders",)), SchemaSpec(()), ParquetSpec("/data/orders"))


def shown(folder: Path, *, json: bool = False) -> tuple[bool, str]:
    out = io.StringIO()
    return status.show(pipeline(folder), output="json" if json else "table", stream=out), out.getvalue()


def left(folder: Path, state: State, *, pid: int | None = None, error: SemelError | None = None) -> None:
    run = Progress("orders", ID, "Parquet table /data/orders", None)
    run.set_state(state, error)
    snapshot = run.snapshot()
    LocalStore(str(folder)).put(status.STATUS, replace(snapshot, pid=pid or snapshot.pid).encode())


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_status_of_a_pipeline_that_never_ran(tmp_path: Path) -> None:
    healthy, text = shown(tmp_path)
    assert not healthy
    assert "orders has not run yet" in text
    healthy, text = shown(tmp_path, json=True)
    assert (healthy, orjson.loads(text)["state"]) == (False, "never ran")


def test_status_of_one_that_runs(tmp_path: Path) -> None:
    left(tmp_path, State.RUNNING)
    healthy, text = shown(tmp_path)
    assert healthy
    assert text.startswith(f"orders: running (pid {os.getpid()} on ")
    assert "/data/orders" in text
    assert str(tmp_path) in text


@pytest.mark.parametrize("state", [State.STOPPED, State.DONE])
def test_status_of_one_that_ended_well(tmp_path: Path, state: State) -> None:
    left(tmp_path, state, pid=ended_process())
    healthy, text = shown(tmp_path)
    assert healthy
    assert text.startswith(f"orders: {state} 0 s ago")


def test_status_of_one_that_failed_says_why_and_shows_no_stack_trace(tmp_path: Path) -> None:
    left(tmp_path, State.FAILED, error=PipelineFailed("the disk is full", "Traceback (most recent call last):"))
    healthy, text = shown(tmp_path)
    assert not healthy
    assert "error: the disk is full" in text
    assert "Traceback" not in text
    healthy, text = shown(tmp_path, json=True)
    assert orjson.loads(text)["trace"].startswith("Traceback")


def test_status_of_one_that_was_killed(tmp_path: Path) -> None:
    left(tmp_path, State.RUNNING, pid=ended_process())
    healthy, text = shown(tmp_path)
    assert not healthy
    assert "died" in text
    assert "Start it again" in text


def test_a_driver_on_another_machine_is_believed_for_a_minute() -> None:
    snapshot = replace(progress().snapshot(), state=State.RUNNING, host="elsewhere")
    assert status.verdict(snapshot, snapshot.updated + 30, host="here", alive=False).healthy
    late = status.verdict(snapshot, snapshot.updated + 300, host="here", alive=False)
    assert not late.healthy
    assert "has written no status for 5 min" in late.text


def test_status_of_one_that_waits(tmp_path: Path) -> None:
    run = Progress("orders", ID, "PostgreSQL table orders", None)
    run.wait_for("PostgreSQL does not answer: postgresql://me:hunter2@db/x", time.time() + 500.5)
    status.StatusFile(LocalStore(str(tmp_path)), run).write()
    healthy, text = shown(tmp_path)
    assert healthy
    assert text.startswith(f"orders: waiting (pid {os.getpid()} on ")
    assert "  waiting: PostgreSQL does not answer" in text
    assert "next try in 8 min 2" in " ".join(text.split())
    assert "hunter2" not in text
    values = orjson.loads(shown(tmp_path, json=True)[1])
    assert values["state"] == "waiting"
    assert values["waiting_for"].startswith("PostgreSQL does not answer")
    assert values["retry_at"] > values["updated"]


def test_a_pipeline_that_runs_again_waits_no_more() -> None:
    run = progress()
    run.wait_for("SQS does not answer", 1_008.0)
    waiting = run.snapshot()
    assert (waiting.state, waiting.waiting_for, waiting.retry_at) == (State.WAITING, "SQS does not answer", 1_008.0)
    assert Snapshot.decode(waiting.encode()) == waiting
    assert gauge(run, "semel_pipeline_waiting") == 1
    assert gauge(run, "semel_pipeline_running") == 0
    assert health(waiting, 0).details["waiting_for"] == "SQS does not answer"
    run.set_state(State.RUNNING)
    running = run.snapshot()
    assert (running.state, running.waiting_for, running.retry_at) == (State.RUNNING, "", 0)
    assert gauge(run, "semel_pipeline_waiting") == 0


def gauge(run: Progress, name: str) -> float:
    text = Metrics(run.snapshot, ("orders",)).text()
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{"))


# The checkpoint.


def test_one_driver_at_a_time_and_the_second_is_told_which(tmp_path: Path) -> None:
    with Checkpoint(str(tmp_path)).held():
        with pytest.raises(CheckpointError, match=f"in use by pid {os.getpid()} on "):
            with Checkpoint(str(tmp_path)).held():
                pass
    with Checkpoint(str(tmp_path)).held():
        pass


def test_a_killed_driver_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from semel.spark.pipeline.checkpoint import Checkpoint\n"
        "with Checkpoint(sys.argv[1]).held():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    with Checkpoint(str(tmp_path)).held():
        pass


def test_a_record_is_kept_with_its_id(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    assert checkpoint.record() is None
    made = checkpoint.fresh({"queues": ["orders"]})
    checkpoint.keep(made)
    assert Checkpoint(str(tmp_path)).record() == made == Record(made.id, {"queues": ["orders"]}, query=made.query)


@pytest.mark.parametrize("late", ["before", "after the query's id was looked for", "after the record was looked for"])
def test_of_two_drivers_that_begin_a_pipeline_at_once_one_is_refused_and_its_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Wherever the second one is when the first keeps its record."""
    first, second = Checkpoint(str(tmp_path)), Checkpoint(str(tmp_path))
    first_record, second_record = first.fresh({}), second.fresh({})
    refused = []

    def keep(checkpoint: Checkpoint, record: Record) -> None:
        try:
            checkpoint.keep(record)
        except CheckpointError:
            refused.append(record)

    if late == "before":
        keep(first, first_record)
    else:
        name = "query_id" if "query" in late else "record"
        monkeypatch.setattr(second, name, then(getattr(second, name), lambda: keep(first, first_record)))
    keep(second, second_record)
    winner = second_record if refused == [first_record] else first_record
    assert refused == [first_record if winner is second_record else second_record]
    checkpoint = Checkpoint(str(tmp_path))
    assert (checkpoint.record(), checkpoint.query_id()) == (winner, winner.query)


def then(look: Callable[[], Any], act: Callable[[], None]) -> Callable[[], Any]:
    """The same look; after the first one something happens."""
    acts = iter([act])

    def looks() -> Any:
        answer = look()
        for do in acts:
            do()
        return answer

    return looks


def test_the_id_of_the_query_is_known_before_spark_writes_it_and_outlives_a_crash_in_between(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    made = checkpoint.fresh({})
    checkpoint.keep(made)
    assert made.query is not None
    assert checkpoint.query_id() == made.query
    (tmp_path / "pipeline.json").unlink()  # as if it had not been written yet
    assert checkpoint.fresh({}).query == made.query


def test_progress_without_a_record_is_not_gone_on_with(tmp_path: Path) -> None:
    LocalStore(str(tmp_path)).put("query/commits/0", b"")
    with pytest.raises(CheckpointError, match=r"holds the progress of a query but no pipeline\.json"):
        Checkpoint(str(tmp_path)).fresh({})


def test_a_record_that_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    LocalStore(str(tmp_path)).put("pipeline.json", b"{}")
    with pytest.raises(CheckpointError, match="restore this one file"):
        Checkpoint(str(tmp_path)).record()


def test_a_checkpoint_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SemelError, match="choose a folder"):
        with Checkpoint(str(tmp_path / "file")).held():
            pass


def test_spark_is_given_an_address_with_its_scheme(tmp_path: Path) -> None:
    assert Checkpoint(str(tmp_path)).query == f"file://{tmp_path}/query"
    assert Checkpoint("s3://bucket/orders").query == "s3a://bucket/orders/query"


# Stopping.


def test_the_first_wish_is_to_finish_and_the_second_to_stop_at_once() -> None:
    stop = Stop()
    assert not stop.wait(0)
    stop.ask()
    assert stop.asked
    assert not stop.at_once
    stop.ask()
    assert stop.at_once


# Metrics and health.


def metrics() -> Metrics:
    run = progress()
    run.committed(7, 999.0, rows=10, size=100, rejects={'say "no"': 2})
    run.set_source_totals(model.Totals(received=15, rows=13, redelivered=2), by_key=True)
    run.set_backlog({"orders": 5})
    run.set_state(State.RUNNING)
    metrics = Metrics(run.snapshot, ("orders",))
    metrics.batch_seconds.observe(0.3)
    return metrics


def test_metrics_have_the_consumers_names_where_they_mean_the_same() -> None:
    text = metrics().text()
    labels = 'pipeline="orders",queue="orders"'
    assert f"semel_received_total{{{labels}}} 15.0" in text
    assert f"semel_completed_total{{{labels}}} 10.0" in text
    assert f'semel_duplicates_deleted_total{{by="redelivered",{labels}}} 2.0' in text
    assert f'semel_duplicates_deleted_total{{by="key",{labels}}} 1.0' in text
    assert f'semel_rejected_total{{{labels},reason="say \\"no\\""}} 2.0' in text
    assert f"semel_backlog_messages{{{labels}}} 5.0" in text
    assert f'semel_batch_seconds_bucket{{le="0.5",{labels}}} 1.0' in text


def test_prometheus_can_read_the_page() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics().text())}
    assert families["semel_completed"].samples[0].value == 10
    assert families["semel_batch_seconds"].type == "histogram"


def test_health_and_metrics_are_served() -> None:
    run = progress()
    run.set_state(State.RUNNING)
    with serve("127.0.0.1:0", lambda: health(run.snapshot(), 1.0), Metrics(run.snapshot, ("orders",))) as server:
        with urlopen(f"{server.url}/health") as answer:
            assert orjson.loads(answer.read())["details"]["state"] == "running"
        with urlopen(f"{server.url}/metrics") as answer:
            assert b"semel_completed_total" in answer.read()


def test_a_bad_address_for_health_is_refused_by_name() -> None:
    with pytest.raises(SemelError, match=r"\[metrics\] health = 'here'"):
        serve("here", lambda: health(progress().snapshot(), 0), metrics())


@pytest.mark.parametrize(
    ("state", "silence", "live", "ready"),
    [
        (State.STARTING, 0, True, False),
        (State.RUNNING, 0, True, True),
        (State.RUNNING, 1_000, False, False),
        (State.WAITING, 0, True, False),
        (State.WAITING, 1_000, True, False),
        (State.STOPPING, 0, True, False),
        (State.STOPPED, 0, False, False),
        (State.FAILED, 0, False, False),
    ],
)
def test_live_and_ready(state: State, silence: float, live: bool, ready: bool) -> None:
    probe = health(replace(progress().snapshot(), state=state), silence)
    assert (probe.live, probe.ready) == (live, ready)


# Last words.

WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/tasks.py", line 84, in run
    written = self.writer.write(rows, task, attempt)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: 7 is too much

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/writer.py", line 4, in write
    raise SemelError("table x: 7 does not fit")
semel.spark.sinks.contract.SinkError: table x, column n: 7 does not fit; change its type

=== Streaming Query ===
Identifier: try [id = 17de0217-ce40-4fc2-af9a-4115bd951d7c]
Current Committed Offsets: {}
"""
JAVA = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
Caused by: java.io.IOException: cannot read /data/x
\tat java.base/java.io.FileInputStream.open0(Native Method)
\t... 34 more
"""
OTHER_ERROR = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/app/x.py", line 1, in <module>
    import pyarrow as pa
ModuleNotFoundError: No module named 'pyarrow'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKER, "table x, column n: 7 does not fit; change its type"),
        (JAVA, "IOException: cannot read /data/x"),
        (OTHER_ERROR, "ModuleNotFoundError: No module named 'pyarrow'"),
        ("[SOMETHING] is wrong. SQLSTATE: 42K03;\n'Project [a]", "[SOMETHING] is wrong."),
        ("a\n[CONCURRENT_STREAM_LOG_UPDATE] b", "another query is running on the same checkpoint; stop one of the two"),
        ("semel.errors.SemelError: two\n  lines\n", "two\n  lines"),
    ],
)
def test_one_line_out_of_sparks_many(text: str, line: str) -> None:
    assert in_one_line(text) == line


def test_an_error_keeps_its_whole_story_apart_and_without_secrets() -> None:
    failure = explained(RuntimeError(f"{JAVA} postgresql://me:hunter2@db/x"))
    assert isinstance(failure, PipelineFailed)
    assert str(failure) == "IOException: cannot read /data/x"
    assert "DAGScheduler" in failure.trace
    assert "hunter2" not in failure.trace


def test_a_semel_error_stays_what_it_is() -> None:
    error = SemelError("as it is")
    assert explained(error) is error


def test_stores_by_address_are_what_the_status_is_kept_in(tmp_path: Path) -> None:
    left(tmp_path, State.DONE)
    assert status.read(open_store(f"file://{tmp_path}")) is not None

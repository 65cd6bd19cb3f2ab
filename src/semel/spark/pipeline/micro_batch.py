"""One micro-batch: the executors write, the driver commits. This is where exactly once is decided for a pipeline.

A batch's rows are the same whenever it is run: the source reads what was sealed under the batch's offsets, and the
state store goes back to where it was before the batch. What happens if the driver dies, step by step:

1. Before or while the tasks write: nothing is committed. The batch is run again. What tasks had written belongs to no
   batch, and the sink removes it. Dead-letter messages that a task had recorded as sent are not sent again.
2. Rejects are committed, rows are not: the batch is run again. The reject sink has it already, so only rows are
   written.
3. Rows are committed, but the log or Spark has not recorded that: the batch is run again without writers. Its rows must
   still be read, because the state store has to get from the state before the batch to the state after it.
4. Committed, but not yet counted or written to the attempt log: the run that replays the batch counts it, because the
   status names the last batch that was counted. For the attempt log, see progress/attempt_events.py.
5. After Spark's own commit: the next batch is run.

A sink has a batch if its last commit has the batch's number *and* content: which segments of which log it was made of.
Another content under that number means that the checkpoint does not belong to the table: nothing is read or deleted.

Each commit is idempotent and safe against another driver that does the same (see sinks/contract.py), so a zombie that
wakes up at any of these points commits what is committed already, or nothing.

Not covered: if a driver dies at 2 and the file's constraints are changed before the next start, a message of that batch
that was rejected under the old ones may become a row under the new ones.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from semel.errors import SemelError
from semel.spark import crash_points
from semel.spark.pipeline.checkpoint import RESET, Disagreement
from semel.spark.pipeline.micro_batch_task import RESULT, Outcome, Task
from semel.spark.segments.model import Content, LogBatch
from semel.spark.sinks.contract import Commit, MicroBatch, ReturnsMessages, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ContentOf = Callable[[], str]
Done = Callable[[int, float, Sequence[Outcome]], None]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # what an executor does with a partition


class StopAsked(Exception):
    """The pipeline is to stop: the next batch is not begun. Its offsets are written, so the next run starts there."""


class BatchLog(Protocol):
    """The segment log as the driver uses it: what a batch is made of, and which messages return to their queue."""

    def in_progress(self) -> LogBatch | None:
        """The batch that Spark is about to run; None if the rows are from no segment log."""

    def content(self) -> str:
        """What the batch in progress is made of, once its tasks have run."""

    def record_sink_commit(self, content: str) -> None:
        """Records that the sink has the batch with this content."""

    def give_back(self, number: int, until: Mapping[str, float]) -> None: ...


class Batches:
    """The function for `foreachBatch`. `done(number, began, outcomes)` is called for each batch that is committed.
    `check(number)` is called before the commit, when the tasks have run: it raises an error to prevent the commit.

    `base`: the number, in the sinks, of Spark's batch 0, because a query begins at 0 again after a reset. `rejects`:
    None for a pipeline that rejects nothing."""

    def __init__(
        self,
        pipeline: str,
        sink: Sink,
        rejects: Sink | None,
        log: BatchLog,
        done: Done,
        *,
        base: int = 0,
        check: Callable[[int], None] = lambda _: None,
        traced: bool = False,
    ) -> None:
        self._pipeline, self._sink, self._rejects, self._log = pipeline, sink, rejects, log
        self._done, self._check, self._traced = done, check, traced
        self._base = base
        self._in_progress = threading.Lock()  # held while a batch runs
        self._stopping = False
        self.last: int | None = None  # the last batch that was committed in this run
        self.error: BaseException | None = None

    def __call__(self, df: DataFrame, number: int) -> None:
        try:
            with self._in_progress:
                if self._stopping:
                    raise StopAsked(f"batch {number} is not begun")
                self._run(df, number)
                self.last = number
        except BaseException as error:  # Spark passes it on as text only
            self.error = error
            raise

    def stop(self) -> None:
        """Begin no other batch."""
        self._stopping = True

    def wait(self, timeout: float) -> bool:
        """Wait until no batch is in progress. Returns False if that takes longer."""
        if self._in_progress.acquire(timeout=timeout):
            self._in_progress.release()
            return True
        return False

    @property
    def busy(self) -> bool:
        return self._in_progress.locked()

    def _run(self, df: DataFrame, number: int) -> None:
        began = time.time()
        batch = MicroBatch(self._pipeline, self._base + number, log_batch=self._log.in_progress())
        sink, rejects = self._sink, self._rejects
        last, last_rejects = sink.last(self._pipeline), None if rejects is None else rejects.last(self._pipeline)
        rows_in = is_in(sink, last, batch, self._log.content)
        if rejects is not None and is_in(rejects, last_rejects, batch, self._log.content):
            rejects = None
        # Before any task runs, too: in a bucket, readers see a file as soon as its task has put it.
        if may_be_in(last, batch) or may_be_in(last_rejects, batch):
            self._check_follows(last, last_rejects, replace(batch, content=self._log.content()))
        task = Task(
            None if rows_in else sink.writer(batch),
            None if rejects is None else rejects.writer(batch),
            self._traced,
        )
        outcomes = outcomes_of(df, task)
        if self._rejects is None and any(outcome.rejects for outcome in outcomes):
            raise SemelError(f"batch {number} has rejected messages, and no place for them; nothing is committed")
        if not rows_in:
            self._check(number)
        batch = replace(batch, content=self._log.content())
        check_log_batch(batch)
        self._check_follows(last, last_rejects, batch)
        crash_points.reached("before-commit")
        if rejects is not None:
            rejects.commit(batch, [outcome.rejected for outcome in outcomes if outcome.rejected is not None])
        if not rows_in:
            sink.commit(batch, [outcome.written for outcome in outcomes if outcome.written is not None])
        self._record_sink_commit()
        if isinstance(sink, ReturnsMessages):  # before Spark writes down that the batch is done
            self._log.give_back(batch.number, sink.returned)
        crash_points.reached("after-commit")
        self._done(batch.number, began, outcomes)

    def _check_follows(self, last: Commit | None, last_rejects: Commit | None, batch: MicroBatch) -> None:
        check_follows(self._sink, last, batch)
        if self._rejects is not None:
            check_follows(self._rejects, last_rejects, batch)

    def _record_sink_commit(self) -> None:
        """Records in the log what the sink itself says that it has: a driver that was overtaken has committed
        nothing."""
        last = self._sink.last(self._pipeline)
        if last is not None:
            self._log.record_sink_commit(last.content)


def is_in(sink: Sink, last: Commit | None, batch: MicroBatch, content: ContentOf) -> bool:
    """Whether a sink has the batch that is about to be run, by the sink's last commit. If it has another batch under
    this number, or a later one, the query stops: otherwise this batch's rows would be dropped, and they are in no queue
    any more."""
    if last is None or last.number < batch.number:
        return False
    if last.number == batch.number and last.content == content():
        return True
    raise Disagreement(
        f"{sink.name} holds batch {last.number} ({last.content or 'not known which'}), and Spark is about to run batch "
        f"{batch.number}, which is another one: the checkpoint is older than the table, or another driver runs on it. "
        f"Nothing was received or deleted for it. {RESET}"
    )


def may_be_in(last: Commit | None, batch: MicroBatch) -> bool:
    """Whether a sink's last commit is of the same batch of the log. It may have been made of other segments."""
    content = None if last is None else Content.parse(last.content)
    return content is not None and content.log_batch == batch.log_batch


def check_log_batch(batch: MicroBatch) -> None:
    """Checks that the batch is the one of the log that its tasks took it for: they may have named files after it."""
    content = Content.parse(batch.content)
    if content is not None and batch.log_batch is not None and content.log_batch != batch.log_batch:
        raise Disagreement(
            f"Spark has run batch {batch.number} as {batch.log_batch} of the segment log, where {content.log_batch} is "
            f"in progress: the log was replaced, or another driver runs on it. Nothing of it is committed. {RESET}"
        )


def check_follows(sink: Sink, last: Commit | None, batch: MicroBatch) -> None:
    """Checks that a sink does not have the batch under an earlier number. That would mean that Spark's progress was
    replaced after that commit, and the rows would be in the sink twice."""
    if last is not None and last.number < batch.number and batch.content and last.content == batch.content:
        raise Disagreement(
            f"{sink.name} holds this very batch ({last.content}) as batch {last.number}, and Spark runs it as batch "
            f"{batch.number}: its progress was replaced, or another driver runs on it. Nothing of it is committed "
            f"again. {RESET}"
        )


def outcomes_of(df: DataFrame, task: Work) -> list[Outcome]:
    """Run the task on every partition; one outcome each, in order."""
    with warnings.catch_warnings():
        # PySpark looks for pandas, which it does not use here, and warns of a new version.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped = df.mapInArrow(task, RESULT)
    rows: list[Any] = mapped.collect()
    outcomes = sorted(
        (Outcome.decode(row.task, row.result, row.events) for row in rows), key=lambda outcome: outcome.task
    )
    if [outcome.task for outcome in outcomes] != list(range(len(outcomes))):
        raise SemelError(
            f"results of tasks {[outcome.task for outcome in outcomes]}: one of each was expected; nothing is committed"
        )
    return outcomes

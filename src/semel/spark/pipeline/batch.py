"""One micro-batch: the executors write, the driver commits. This is where exactly once is decided for a pipeline.

A batch's rows are the same whenever it is run: the source reads what was sealed under the batch's offsets, and the
state store goes back to where it was before the batch. What happens if the driver dies, step by step:

1. Before or while the tasks write: nothing is committed. The batch is run again; what tasks had written is nobody's,
   and its sink removes it. Dead letters that a task had noted as sent are not sent again.
2. Rejects are committed, rows are not: run again, the reject sink has the batch, so only rows are written.
3. Rows are committed, and Spark has not written that down: run again with no writers at all. The rows must still be
   pulled through: the state store has to get from the state before the batch to the state after it.
4. Committed, but not yet counted or told to the attempt log: the batch is counted by the run that replays it, for the
   status names the last batch that it counts. Of the attempt log see progress/attempt_events.py.
5. After Spark's own commit: the next batch.

A sink has a batch if its last commit has the batch's number *and* content: which segments of which log it was made of.
Another content under that number means that the checkpoint does not belong to the table: nothing is read or deleted.

Each commit is idempotent and safe against another driver that does the same (see sinks/contract.py), so a zombie that
wakes up at any of these points commits what is committed, or nothing.

Not covered: if a driver dies at 2 and the file's constraints are changed before the next start, a message of that batch
that was put aside under the old ones may become a row under the new ones.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import SemelError
from semel.spark import crash_points
from semel.spark.pipeline.batch_task import RESULT, Outcome, Task
from semel.spark.pipeline.checkpoint import RESET, Disagreement
from semel.spark.sinks.contract import MicroBatch, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ContentOf = Callable[[], str]
Done = Callable[[int, float, Sequence[Outcome]], None]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # what an executor does with a partition


class StopAsked(Exception):
    """The pipeline is to stop, and the next batch is not begun. Its offsets are written: the next run starts there."""


class Batches:
    """The function for `foreachBatch`. `done(number, began, outcomes)` is told of each batch that is committed;
    `check(number)` is asked before that, when its tasks are through, and raises what speaks against the commit.

    `content` tells what the batch in hand is made of. `base`: what to add to Spark's number of a batch, as a query that
    was reset begins at 0 again."""

    def __init__(
        self,
        pipeline: str,
        sink: Sink,
        rejects: Sink,
        done: Done,
        *,
        content: ContentOf,
        base: int = 0,
        check: Callable[[int], None] = lambda _: None,
        traced: bool = False,
    ) -> None:
        self._pipeline, self._sink, self._rejects = pipeline, sink, rejects
        self._done, self._check, self._traced = done, check, traced
        self._content, self._base = content, base
        self._turn = threading.Lock()  # held while a batch is in hand
        self._stopping = False
        self.last: int | None = None  # the last batch that went well in this run
        self.error: BaseException | None = None

    def __call__(self, df: DataFrame, number: int) -> None:
        try:
            with self._turn:
                if self._stopping:
                    raise StopAsked(f"batch {number} is not begun")
                self._run(df, number)
                self.last = number
        except BaseException as error:  # Spark tells of it as text only
            self.error = error
            raise

    def stop(self) -> None:
        """Begin no other batch."""
        self._stopping = True

    def wait(self, timeout: float) -> bool:
        """Until no batch is in hand; False if it takes longer."""
        if self._turn.acquire(timeout=timeout):
            self._turn.release()
            return True
        return False

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    def between(self, act: Callable[[], None]) -> None:
        """Do something while no batch is in hand and none can begin; not at all if one is."""
        if self._turn.acquire(blocking=False):
            try:
                if not self._stopping:
                    act()
            finally:
                self._turn.release()

    def _run(self, df: DataFrame, number: int) -> None:
        began, batch = time.time(), MicroBatch(self._pipeline, self._base + number)
        rows_in, rejects_in = is_in(self._sink, batch, self._content), is_in(self._rejects, batch, self._content)
        task = Task(
            None if rows_in else self._sink.writer(batch),
            None if rejects_in else self._rejects.writer(batch),
            self._traced,
        )
        outcomes = outcomes_of(df, task)
        if not rows_in:
            self._check(number)
        batch = replace(batch, content=self._content())
        crash_points.reached("before-commit")
        if not rejects_in:
            self._rejects.commit(batch, [one.rejected for one in outcomes if one.rejected is not None])
        if not rows_in:
            self._sink.commit(batch, [one.written for one in outcomes if one.written is not None])
        crash_points.reached("after-commit")
        self._done(batch.number, began, outcomes)


def is_in(sink: Sink, batch: MicroBatch, content: ContentOf) -> bool:
    """Whether the very batch that is about to be run is in a sink. One that has another batch under its number, or a
    later one, stops the query: its rows would be dropped, and they are in no queue any more."""
    last = sink.last(batch.pipeline)
    if last is None or last.number < batch.number:
        return False
    if last.number == batch.number and last.content == content():
        return True
    raise Disagreement(
        f"{sink.name} holds batch {last.number} ({last.content or 'not known which'}), and Spark is about to run batch "
        f"{batch.number}, which is another one: the checkpoint is older than the table, or another driver runs on it. "
        f"Nothing was received or deleted for it. {RESET}"
    )


def outcomes_of(df: DataFrame, task: Work) -> list[Outcome]:
    """Run the task on every partition; one outcome each, in order."""
    with warnings.catch_warnings():
        # It looks for pandas, which it does not use here, and warns of a new one.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped = df.mapInArrow(task, RESULT)
    rows: list[Any] = mapped.collect()
    outcomes = sorted((Outcome.decode(row.task, row.result, row.events) for row in rows), key=lambda one: one.task)
    if [one.task for one in outcomes] != list(range(len(outcomes))):
        raise SemelError(
            f"results of tasks {[one.task for one in outcomes]}: one of each was expected; nothing is committed"
        )
    return outcomes

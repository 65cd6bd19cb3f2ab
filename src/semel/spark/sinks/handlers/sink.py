"""Passes rows to the handlers of an app: the functions that `semel run` calls, in the executors, with the same ledger.

What holds, even if tasks or batches are replayed, retried or run twice at once:
1. A handler's effect happens once if it is in the ledger's transaction (`tx`); otherwise at least once, with one holder
   at a time and always with the same key. The consumer makes the same promise, and the same ledger entries keep it: an
   app can switch between the two engines.
2. A batch is committed when each of its messages is done, is dead-lettered, or is named in the commit as returned. The
   source has not deleted a returned message (`ack=committed`), and makes it visible again when it is due.
3. FIFO: a group's messages are handled in order, even across retries and batches: `arrange` puts a group into one task,
   which sorts it, and SQS delivers no more of a group while one of its messages is hidden.
4. If two drivers open one checkpoint, the one that opened it first can commit nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from semel.spark import crash_points
from semel.spark.segments.storage import open_store
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError, Written, already_committed, results_with_rows
from semel.spark.sinks.handlers.executor_app import AppReference, configure_logs, loaded
from semel.spark.sinks.handlers.row_messages import NEEDED, in_order, messages
from semel.spark.sinks.handlers.task import HandlerTask, Patience
from semel.sqs import Received

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES: Final = "states"
KEPT: Final = 2  # number of states that are kept: the newest, and the one before, which somebody may be reading


@dataclass(frozen=True, slots=True)
class State:
    """What is committed. `returned`: by message id, until when the batch's unfinished messages stay hidden."""

    version: int = 0
    batch: int = -1
    content: str = ""
    returned: dict[str, float] = field(default_factory=dict)

    @classmethod
    def decode(cls, data: bytes) -> State:
        fields = orjson.loads(data)
        return cls(fields["version"], fields["batch"], fields["content"], fields["returned"])


@dataclass(frozen=True, slots=True)
class HandlerWriter:
    """Takes rows with the source's own columns."""

    app: AppReference
    patience: Patience

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        configure_logs(self.app)
        counted = Counter[str]()
        outcome = HandlerTask(loaded(self.app), self.patience).run(_rows(batches, counted))
        payload = {"counts": outcome.counts, "returned": outcome.returned}
        rows = counted["rows"] - len(outcome.returned)  # these come again
        return Written(task, attempt, rows, counted["bytes"], payload)


def _rows(batches: Iterator[pa.RecordBatch], counted: Counter[str]) -> Iterator[tuple[str, Received]]:
    for batch in in_order(batches):
        counted["rows"] += batch.num_rows
        counted["bytes"] += batch.nbytes
        yield from messages(batch)


class HandlerSink:
    """`folder`: a folder of the checkpoint."""

    def __init__(self, app: str | AppReference, folder: str, *, patience: Patience | None = None) -> None:
        self.app = app if isinstance(app, AppReference) else AppReference.here(app)
        self._store = open_store(folder)
        self._patience = patience or Patience()
        self._state: State | None = None
        self._id = uuid4().hex
        self.counts: dict[str, Counter[str]] = {}  # by queue: counts of all batches that this object has committed

    @property
    def name(self) -> str:
        return f"handlers of {self.app.app}"

    @property
    def state(self) -> State:
        if self._state is None:
            raise SinkError(f"{self.name}: not opened")
        return self._state

    @property
    def returned(self) -> dict[str, float]:
        return (self._state or self._latest()).returned

    def open(self, schema: pa.Schema) -> None:
        missing = [name for name in NEEDED.names if name not in schema.names]
        if missing:
            raise SinkError(f"{self.name}: rows need the source's own columns; {', '.join(missing)} are missing")
        while not self._put(replace(state := self._latest(), version=state.version + 1)):
            pass  # another driver has committed at the same moment

    def arrange(self, rows: DataFrame) -> DataFrame:
        """For FIFO queues: each group in one task, which puts it in order."""
        from pyspark.sql import functions as F

        tasks = max(2, rows.sparkSession.sparkContext.defaultParallelism)
        return rows.repartition(tasks, "queue", F.coalesce("group_id", "message_id"))

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        state = self._state or self._latest()
        return None if state.batch < 0 else Commit(state.batch, state.content)

    def writer(self, batch: MicroBatch) -> HandlerWriter:  # noqa: ARG002
        return HandlerWriter(self.app, self._patience)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        if already_committed(self.name, self.last(batch.pipeline), batch):
            return
        results_with_rows(batch, written)
        returned = {id_: due for part in written for id_, due in part.payload["returned"].items()}
        state = State(self.state.version + 1, batch.number, batch.content, returned)
        if not self._put(state):
            raise SinkError(
                f"another run of {self.name} works on the checkpoint {self._store.url}: this one stops. "
                "If the other has ended by now, start again"
            )
        crash_points.reached("during-commit")
        for part in written:
            for queue, counts in part.payload["counts"].items():
                self.counts.setdefault(queue, Counter()).update(counts)

    def _put(self, state: State) -> bool:
        name, data = _name(state.version), orjson.dumps({**asdict(state), "by": self._id})
        # An answer may have been lost: the existing state may be ours.
        if not self._store.put_if_absent(name, data) and self._store.read(name) != data:
            return False
        names = self._store.names(STATES)
        if names[-1] > name:  # another driver is so far ahead that it has already dropped this version
            self._store.delete([name])
            return False
        self._state = state
        self._store.delete([old for old in names if old <= _name(state.version - KEPT)])
        return True

    def _latest(self) -> State:
        names = self._store.names(STATES)
        data = self._store.read(names[-1]) if names else None
        return State() if data is None else State.decode(data)

    def close(self) -> None:
        pass


def _name(version: int) -> str:
    return f"{STATES}/v{version:012d}"

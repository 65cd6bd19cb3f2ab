"""Rows to the handlers of an app: the very functions that `semel run` calls, in the executors, under the same ledger.

What holds, whatever is replayed, retried or run twice at once:
1. A handler's effect is once if it is in the ledger's transaction (`tx`); else at least once, by one holder at a time,
   always with the same key. That is what it is promised on threads, and the same ledger entries keep it: the two
   engines can take turns.
2. A batch is committed when each of its messages is done, is a dead letter, or waits where the next batch finds it: in
   its Standard queue, or under the checkpoint in a file that the commit names.
3. FIFO: a group's messages are handled in order, also over retries and batches: `arrange` puts a group into one task,
   which sorts it, and what waits under the checkpoint comes before what is new.
4. Of two drivers on one checkpoint, the one that opened it first can commit nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from semel.spark import points, segments
from semel.spark.handlers_apps import Place, loaded
from semel.spark.handlers_rows import PARKED, in_order, messages, parked, unparked
from semel.spark.handlers_task import HandlerTask, Patience
from semel.spark.sinks.base import Commit, MicroBatch, SinkError, Written, checked, is_in, unique
from semel.spark.storage import Store, open_store
from semel.sqs import Received

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES: Final = "states"
WAITING: Final = "waiting"
KEPT: Final = 2  # states that are kept: the newest, and the one before for who looks


@dataclass(frozen=True, slots=True)
class File:
    """Messages of one task that wait: how many, and when the first of them is to be tried, in seconds since 1970."""

    name: str
    count: int
    due: float


@dataclass(frozen=True, slots=True)
class State:
    """What is committed. `files` by task. `partitions` of a FIFO queue: fixed, as a group has to stay with its task."""

    version: int = 0
    batch: int = -1
    partitions: int | None = None
    files: dict[str, File] = field(default_factory=dict)
    content: str = ""

    @property
    def waiting(self) -> int:
        return sum(file.count for file in self.files.values())

    @property
    def due(self) -> float | None:
        return min((file.due for file in self.files.values()), default=None)

    @classmethod
    def decode(cls, data: bytes) -> State:
        found = orjson.loads(data)
        del found["by"]
        return cls(**{**found, "files": {task: File(**file) for task, file in found["files"].items()}})


@dataclass(frozen=True, slots=True)
class HandlerWriter:
    """Takes rows with the source's own columns."""

    place: Place
    folder: str
    files: dict[str, File]
    patience: Patience

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        counted = Counter[str]()
        store = open_store(self.folder)
        outcome = HandlerTask(loaded(self.place), self.patience).run(self._rows(store, batches, task, counted))
        tables = [parked(waiting, queue) for queue, waiting in outcome.parked.items()]
        payload: dict[str, Any] = {"counts": outcome.counts}
        if tables:
            table = pa.concat_tables(tables)
            name = f"{WAITING}/t{task:05d}-{unique(attempt)}"
            store.put(name, segments.encode(table, segments.Meta("", attempt, True, 0.0)))
            due = min(map(first_due, outcome.parked.values()))
            payload["file"] = asdict(File(name, table.num_rows, due))
        return Written(task, attempt, counted["rows"], counted["bytes"], payload)

    def _rows(
        self, store: Store, batches: Iterator[pa.RecordBatch], task: int, counted: Counter[str]
    ) -> Iterator[tuple[str, Received, float]]:
        if file := self.files.get(str(task)):
            yield from unparked(read_waiting(store, file.name))
        for batch in in_order(batches):
            counted["rows"] += batch.num_rows
            counted["bytes"] += batch.nbytes
            for queue, message in messages(batch):
                yield queue, message, 0.0


class HandlerSink:
    """`folder` is a part of the checkpoint that all executors see."""

    def __init__(self, app: str | Place, folder: str, *, patience: Patience | None = None) -> None:
        self.place = app if isinstance(app, Place) else Place.here(app)
        self._store = open_store(folder)
        self._patience = patience or Patience()
        self._state: State | None = None
        self._id = uuid4().hex
        self.counts: dict[str, Counter[str]] = {}  # by queue, of all that was committed by this object

    @property
    def name(self) -> str:
        return f"handlers of {self.place.app}"

    @property
    def state(self) -> State:
        if self._state is None:
            raise SinkError(f"{self.name}: not opened")
        return self._state

    def open(self, schema: pa.Schema) -> None:
        missing = [name for name in PARKED.names[:-1] if name not in schema.names]
        if missing:
            raise SinkError(f"{self.name}: rows need the source's own columns; {', '.join(missing)} are missing")
        while not self._put(replace(found := self._latest(), version=found.version + 1)):
            pass  # another driver has committed in this very moment
        known = {file.name for file in self.state.files.values()}
        self._store.delete([name for name in self._store.names(WAITING) if name not in known])

    def arrange(self, rows: DataFrame, partitions: int) -> DataFrame:
        """For FIFO queues: each group in one task, the same in every batch; the task puts it in order. How many tasks
        there are is fixed by the first call."""
        from pyspark.sql import functions as F

        if self.state.partitions is None:
            self._commit(replace(self.state, version=self.state.version + 1, partitions=partitions))
        return rows.repartition(self.state.partitions or partitions, "queue", F.coalesce("group_id", "message_id"))

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        state = self._state or self._latest()
        return None if state.batch < 0 else Commit(state.batch, state.content)

    def writer(self, batch: MicroBatch | None = None) -> HandlerWriter:  # noqa: ARG002
        """Without a batch: for what waits, and nothing new."""
        return HandlerWriter(self.place, self._store.url, dict(self.state.files), self._patience)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        if not is_in(self.name, self.last(batch.pipeline), batch):
            checked(batch, written)
            self._advance(Commit(batch.number, batch.content), written)

    def commit_waiting(self, written: Sequence[Written]) -> None:
        """What waited has been tried again, between two batches."""
        self._advance(Commit(self.state.batch, self.state.content), written)

    def _advance(self, last: Commit, written: Sequence[Written]) -> None:
        before = self.state
        tried = {str(one.task) for one in written}
        files = {task: file for task, file in before.files.items() if task not in tried}
        files |= {str(one.task): File(**one.payload["file"]) for one in written if "file" in one.payload}
        self._commit(State(before.version + 1, last.number, before.partitions, files, last.content))
        for one in written:
            for queue, counts in one.payload["counts"].items():
                self.counts.setdefault(queue, Counter()).update(counts)
        points.reached("during-commit")
        self._store.delete([file.name for task, file in before.files.items() if task in tried])

    def _commit(self, state: State) -> None:
        if not self._put(state):
            raise SinkError(
                f"another run of {self.name} works on the checkpoint {self._store.url}: this one stops. "
                "If the other has ended by now, start again"
            )

    def _put(self, state: State) -> bool:
        name, data = _name(state.version), orjson.dumps({**asdict(state), "by": self._id})
        # An answer may have been lost: what is there may be ours.
        if not self._store.put_if_absent(name, data) and self._store.read(name) != data:
            return False
        names = self._store.names(STATES)
        if names[-1] > name:  # the others are so far ahead that this version was dropped already
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


def first_due(waiting: Sequence[tuple[Received, float]]) -> float:
    """When there is something to be tried: the first of a group decides for all of it."""
    firsts: dict[str | None, float] = {}
    for message, due in waiting:
        firsts.setdefault(message.group, due)
    return min(firsts.values())


def read_waiting(store: Store, name: str) -> pa.Table:
    data = store.read(name)
    if data is None:
        raise SinkError(
            f"{store.url}/{name} is missing: messages that wait for another attempt were in it, and are no longer in "
            "their queue. Restore this one file from a copy, not the whole checkpoint"
        )
    return segments.decode(data, f"{store.url}/{name}")[1]


def _name(version: int) -> str:
    return f"{STATES}/v{version:012d}"

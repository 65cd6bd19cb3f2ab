"""Rows to the handlers of an app: the very functions that `semel run` calls, in the executors, under the same ledger.

What holds, whatever is replayed, retried or run twice at once:
1. A handler's effect is once if it is in the ledger's transaction (`tx`); else at least once, by one holder at a time,
   always with the same key. That is what it is promised on threads, and the same ledger entries keep it: the two
   engines can take turns.
2. A batch is committed when each of its messages is done, is a dead letter, or waits where the next batch finds it: in
   its queue, or under the checkpoint in a file that the commit names. In a FIFO queue, only if the source has not
   deleted it yet (`returns`): then the commit names the messages that go back.
3. FIFO: a group's messages are handled in order, also over retries and batches: `arrange` puts a group into one task,
   which sorts it, and what waits under the checkpoint comes before what is new.
4. Of two drivers on one checkpoint, the one that opened it first can commit nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from semel.spark import crash_points
from semel.spark.segments import codec
from semel.spark.segments.storage import Store, open_store
from semel.spark.sinks.contract import (
    Commit,
    MicroBatch,
    SinkError,
    Written,
    already_committed,
    attempt_name,
    results_with_rows,
)
from semel.spark.sinks.handlers.app_loader import AppReference, loaded
from semel.spark.sinks.handlers.messages import PARKED, in_order, messages, parked, unparked
from semel.spark.sinks.handlers.task import HandlerTask, Patience
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
    returned: dict[str, float] = field(default_factory=dict)  # by message id: until when it is to stay hidden

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

    place: AppReference
    folder: str
    files: dict[str, File]
    patience: Patience
    returns: bool = False

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        counted = Counter[str]()
        store = open_store(self.folder)
        waiting = self._waiting(store, task)
        in_file = {message.message_id for _, message, _ in waiting}
        rows = chain(waiting, self._rows(batches, counted))
        outcome = HandlerTask(loaded(self.place), self.patience).run(rows)
        payload: dict[str, Any] = {"counts": outcome.counts}
        # What has waited under the checkpoint before is in no queue any more.
        kept = {
            queue: [one for one in waiting if not self.returns or one[0].message_id in in_file]
            for queue, waiting in outcome.parked.items()
        }
        payload["returned"] = returned(
            one
            for waiting in outcome.parked.values()
            for one in waiting
            if self.returns and one[0].message_id not in in_file
        )
        tables = [parked(waiting, queue) for queue, waiting in kept.items() if waiting]
        if tables:
            table = pa.concat_tables(tables)
            name = f"{WAITING}/t{task:05d}-{attempt_name(attempt)}"
            store.put(name, codec.encode(table, codec.Meta("", attempt, True, 0.0)))
            due = min(first_due(waiting) for waiting in kept.values() if waiting)
            payload["file"] = asdict(File(name, table.num_rows, due))
        return Written(task, attempt, counted["rows"], counted["bytes"], payload)

    def _waiting(self, store: Store, task: int) -> list[tuple[str, Received, float]]:
        file = self.files.get(str(task))
        return [] if file is None else list(unparked(read_waiting(store, file.name)))

    def _rows(self, batches: Iterator[pa.RecordBatch], counted: Counter[str]) -> Iterator[tuple[str, Received, float]]:
        for batch in in_order(batches):
            counted["rows"] += batch.num_rows
            counted["bytes"] += batch.nbytes
            for queue, message in messages(batch):
                yield queue, message, 0.0


class HandlerSink:
    """`folder` is a part of the checkpoint that all executors see. `returns`: messages of FIFO queues that are to be
    tried again later go back to their queue instead of waiting there; see `State.returned`."""

    def __init__(
        self, app: str | AppReference, folder: str, *, patience: Patience | None = None, returns: bool = False
    ) -> None:
        self.place = app if isinstance(app, AppReference) else AppReference.here(app)
        self._store = open_store(folder)
        self._patience = patience or Patience()
        self._returns = returns
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
        return HandlerWriter(self.place, self._store.url, dict(self.state.files), self._patience, self._returns)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        if not already_committed(self.name, self.last(batch.pipeline), batch):
            results_with_rows(batch, written)
            self._advance(Commit(batch.number, batch.content), written)

    def commit_waiting(self, written: Sequence[Written]) -> None:
        """What waited has been tried again, between two batches."""
        self._advance(Commit(self.state.batch, self.state.content), written)

    def _advance(self, last: Commit, written: Sequence[Written]) -> None:
        before = self.state
        tried = {str(one.task) for one in written}
        files = {task: file for task, file in before.files.items() if task not in tried}
        files |= {str(one.task): File(**one.payload["file"]) for one in written if "file" in one.payload}
        returned = before.returned  # as long as it is the same batch, what that has given back stays so
        if last.number > before.batch:
            returned = {id_: due for one in written for id_, due in one.payload.get("returned", {}).items()}
        self._commit(State(before.version + 1, last.number, before.partitions, files, last.content, returned))
        for one in written:
            for queue, counts in one.payload["counts"].items():
                self.counts.setdefault(queue, Counter()).update(counts)
        crash_points.reached("during-commit")
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


def returned(waiting: Iterable[tuple[Received, float]]) -> dict[str, float]:
    """By message id: until when it stays hidden in its queue. What is behind another in its group is not to be had
    before that one, and would only be counted as waiting."""
    firsts: dict[str | None, float] = {}
    found = {}
    for message, due in waiting:
        found[message.message_id] = firsts[message.group] = max(due, firsts.get(message.group, 0.0))
    return found


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
    return codec.decode(data, f"{store.url}/{name}")[1]


def _name(version: int) -> str:
    return f"{STATES}/v{version:012d}"

"""The segment log, the checkpoint and the sink under random crashes and mistakes, on a real disk, with the Parquet sink
and a broker behind HTTP. Whatever happens, each message is in the table once, or the pipeline refuses to run with an
error, and after a reset each message is in the table once. simulation/test_spark_world.py does the same in memory, for
thousands of schedules.

What happens: drivers and tasks die at any call; tasks are retried within their job; zombies wake up later; two attempts
race for a seal; a second driver runs on the same checkpoint; the checkpoint is lost, or an older copy is restored; a
segment is lost; an executor does not see the log; machines have different clocks; deletes fail; and time passes.
Planners of idle queries receive by long polls, seal the messages as the first part of a task, and may die with messages
in memory.

The driver here has Spark's contract and nothing more: a batch is planned, logged, run and committed, and after a crash
the logged batch is run again with the same offsets. Planner, tasks, log, batches, sink and checkpoint are real.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import suite
from semel.errors import SemelError
from semel.spark.pipeline import agreement, micro_batch
from semel.spark.pipeline.checkpoint import Checkpoint, Record
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.pipeline.micro_batch_task import Outcome
from semel.spark.pipeline.micro_batch_task import Task as SinkTask
from semel.spark.segments import codec
from semel.spark.segments.segment_log import BatchAlreadyCommitted, LogError, OtherQuery, SegmentLog
from semel.spark.segments.storage import LocalStore
from semel.spark.sinks.contract import Sink
from semel.spark.sinks.parquet.sink import ParquetSink
from semel.spark.sinks.rejects import RejectTable
from semel.spark.source import planner
from semel.spark.source.planner import Offset, Planner
from semel.spark.source.reader import Assignment, SourceTask
from semel.spark.source.receiver import Receiver
from semel.sqs import Failure
from semel.sqs.errors import SqsError, Unreachable
from spark.intake import Intake, bodies, intake

MESSAGES: Final = 60
CALLS: Final = ("put", "put_if_absent", "read", "delete")
TRIES: Final = 4  # attempts of a task, as in Spark by default
ROWS: Final = pa.schema([("body", pa.string())])


class Killed(BaseException):
    """The driver's process is gone: nothing more of it runs."""


class TaskDied(BaseException):
    """An executor's process is gone; Spark starts the task elsewhere."""


class Killer:
    """Kills the driver or a task at a random call, before or after it took effect. The dead make no more calls."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.left: int | None = None
        self.in_task = False
        self.dead: type[BaseException] | None = None

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self.dead is not None:
                raise self.dead
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    self.left = None
                    self.dead = TaskDied if self.in_task and self.random.random() < 0.5 else Killed
                    if self.random.random() < 0.5:
                        call(*arguments, **named)
                    raise self.dead
            return call(*arguments, **named)

        return wrapped

    def born_again(self) -> None:
        self.dead = None


class World:
    """A queue, a log and executors, and the faults that may happen to them."""

    def __init__(self, place: Intake, random: Random) -> None:
        self.place, self.random = place, random
        self.killer = Killer(random)
        self.zombies: list[Callable[[], None]] = []
        self.sent = 0
        for name in CALLS:
            setattr(place.store, name, self.killer.wrap(getattr(place.store, name)))
        for name in ("delete", "receive", "change_visibility"):
            setattr(place.queue, name, self.killer.wrap(getattr(place.queue, name)))
        self._delete = place.queue.delete
        place.queue.delete = self.delete  # type: ignore[method-assign]

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        """Now and then the network is down for a while."""
        if self.random.random() < 0.2:
            raise Unreachable("the network is down")
        return self._delete(receipts)

    def send(self) -> None:
        if self.sent < MESSAGES:
            count = self.random.randint(1, 8)
            self.place.send(*map(str, range(self.sent, self.sent + count)))
            self.sent += count

    def run(self, tasks: list[Assignment]) -> list[tuple[int, list[str]]]:
        """A job: all tasks in some order, each tried a few times."""
        self.random.shuffle(tasks)
        if tasks and self.random.random() < 0.3:
            self.seal_first(tasks[0])
        return sorted((assignment.task, self.tried(assignment)) for assignment in tasks)

    def seal_first(self, assignment: Assignment) -> None:
        """The driver has received messages while it was idle, and seals them for a task. Before that, time may pass, or
        an attempt of the task may have sealed already."""
        place, now = self.place, self.place.now
        arrivals = Receiver(
            place.queue,
            rows=self.random.randint(1, assignment.rows),
            size=assignment.bytes,
            until=now() + 10,
            visibility=place.options.visibility,
            threads=1,
            first_wait=0,
            clock=now,
            monotonic=now,
        ).run()
        place.clock.advance(self.random.choice([0, 0, 5, 100]))
        if self.random.random() < 0.2:
            list(place.task(assignment).tables())
        place.task(assignment).seal_first(arrivals)

    def tried(self, assignment: Assignment) -> list[str]:
        for left in reversed(range(TRIES)):
            self.killer.in_task = True
            try:
                return self.attempt(assignment)
            except (TaskDied, LogError):
                if not left:
                    raise
                self.killer.born_again()
                self.place.clock.advance(self.random.choice([0, 5, 130]))  # until Spark notices
            finally:
                self.killer.in_task = False
        raise AssertionError

    def attempt(self, assignment: Assignment) -> list[str]:
        task = self.executor(assignment)
        chance = self.random.random()
        if chance < 0.1:
            self.fall_asleep(task)
        elif chance < 0.2:
            self.race(task, self.executor(assignment))
        return [body for table in task.tables() for body in bodies(table)]

    def polling(self, planner: Planner) -> Planner:
        """Some queries are idle when messages come: then a poll receives them, and the planner seals them."""
        look = planner._waiting

        def idle() -> dict[str, int]:
            planner._counts_hold = self.random.random() < 0.5
            return look()

        planner._waiting = idle  # type: ignore[method-assign]
        return planner

    def executor(self, assignment: Assignment) -> SourceTask:
        """A task on a machine with another clock. A few machines have their own disk at the path of the log."""
        task, skew = self.place.task(assignment), self.random.uniform(-2, 2)
        task._clock = lambda: self.place.now() + skew
        if self.random.random() < 0.05:
            task.log = SegmentLog(LocalStore(f"{self.place.store.url}-of-another-machine"))
        return task

    def fall_asleep(self, task: SourceTask) -> None:
        """This task's process stops before its seal, and the driver dies. Later the task wakes up as a zombie."""

        def pause(*arguments: Any, **named: Any) -> Any:
            def wake() -> None:
                task._seal = SourceTask._seal.__get__(task)  # type: ignore[method-assign]
                task._seal(*arguments, **named)
                task._at_end.close()

            self.zombies.append(wake)
            raise Killed

        task._seal = pause  # type: ignore[method-assign]

    def race(self, task: SourceTask, twin: SourceTask) -> None:
        """A second attempt of the task runs completely between this attempt's receive and its seal."""
        seal = task._seal

        def second(*arguments: Any, **named: Any) -> Any:
            list(twin.tables())
            return seal(*arguments, **named)

        task._seal = second  # type: ignore[method-assign]

    def wake_zombies(self) -> None:
        for wake in self.zombies:
            with suppress(BatchAlreadyCommitted, OtherQuery, Killed):
                wake()
        self.zombies = []

    def sealed(self) -> Iterator[tuple[Path, str]]:
        for path in sorted(Path(self.place.store.url).glob("b*/*.seg")):
            _, table = codec.decode(path.read_bytes(), str(path))
            yield from ((path, body) for body in bodies(table))


class Job:
    """Takes the place of a micro-batch's DataFrame, which is planned when it is run."""

    def __init__(self, world: World, planner: Planner, start: Offset, end: Offset) -> None:
        self.world, self.planner, self.start, self.end = world, planner, start, end

    def run(self, task: SinkTask) -> list[Outcome]:
        outputs = self.world.run(self.planner.assignments(self.start, self.end))
        return [task.run(iter([as_rows(texts)]), number, f"{number}") for number, texts in outputs]


def as_rows(texts: list[str]) -> pa.RecordBatch:
    rows = pa.StructArray.from_arrays([pa.array(texts, pa.string())], fields=list(ROWS))
    return pa.RecordBatch.from_arrays([pa.nulls(len(texts), pa.string()), rows], ["reason", "row"])


class Pipeline(World):
    """A pipeline from the queue into a Parquet table, with a checkpoint that people tamper with."""

    def __init__(self, place: Intake, random: Random, folder: Path) -> None:
        super().__init__(place, random)
        self.folder = folder
        self.refusals: list[SemelError] = []
        self.older = False  # an older copy was restored: messages of later batches may be in the table twice
        self.excused: set[str] = set()  # messages in segments that were lost, or replaced by an older copy
        self.lost: set[str] = set()
        self.alone = True

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(str(self.folder / "checkpoint"))

    def sinks(self) -> tuple[Sink, Sink]:
        sinks = ParquetSink(str(self.folder / "table")), RejectTable(str(self.folder / "rejects"))
        sinks[0].open(ROWS)
        sinks[1].open()
        return sinks

    def opened(self, sinks: Sequence[Sink]) -> Record:
        """What a real run does before it starts Spark."""
        checkpoint, log = self.checkpoint, self.place.log
        record = checkpoint.record()
        if record is None:
            record = checkpoint.fresh({})
        else:
            agreement.check(checkpoint, record, log, sinks)
        checkpoint.keep(record)
        return record

    def life(self) -> bool:
        """Run one driver until it is killed, refuses to continue, or has nothing to do. Returns whether it was busy."""
        planner: Planner | None = None
        killed, place = False, self.place
        try:
            sinks = self.sinks()
            record = self.opened(sinks)
            self.place = place.with_options(owner=record.query)
            planner = self.polling(self.place.planner())
            batches_ = Batches(
                record.id,
                *sinks,
                agreement.DriverLog(self.place.log),
                lambda *_: None,
                base=record.base,
            )
            return self.spark(planner, batches_)
        except (Killed, TaskDied):
            killed = True  # it cannot return what its polls have received: that comes back when its visibility ends
            return True
        except SemelError as error:
            self.refusals.append(error)
            self.killer.left = None
            if "does not see the segment log" not in str(error):  # for that, the remedy is to run it on other machines
                self.operator(error)
            return True
        finally:
            self.place = place
            self.killer.born_again()
            if planner is not None and not killed:
                planner.stop()

    def spark(self, planner: Planner, run: Batches) -> bool:
        offsets, commits = self.folder / "checkpoint/query/offsets", self.folder / "checkpoint/query/commits"
        known = {int(path.name): json.loads(path.read_text()) for path in offsets.glob("*")}
        first = max([-1, *(int(path.name) for path in commits.glob("*"))]) + 1
        busy = False
        for number in range(first, first + 4):
            start = known[number - 1] if number else planner.initial()
            if number not in known:
                end = planner.latest(start, 15)
                if end == start:
                    return busy
                self.another_driver()
                known[number] = end
                written(offsets / str(number), json.dumps(end))
            busy = True
            run(cast("Any", Job(self, planner, start, known[number])), number)
            self.another_driver()
            written(commits / str(number), "")
            self.send()
        return busy

    def another_driver(self) -> None:
        """Nothing locks a checkpoint in S3: sometimes a second driver runs on it for a while."""
        if self.alone and self.random.random() < 0.05:
            self.alone = False
            calls_left, self.killer.left = self.killer.left, None
            self.life()
            self.killer.left, self.alone = calls_left, True

    def operator(self, error: SemelError) -> None:
        """Do what the error says: reset the pipeline."""
        assert "reset" in str(error) or isinstance(error, SqsError | codec.SegmentDamaged), error
        checkpoint, sinks = self.checkpoint, self.sinks()
        record = checkpoint.record()
        assert record is not None
        plan = agreement.plan_reset(checkpoint, record, self.place.log, sinks)
        agreement.reset(checkpoint, record, self.place.log, sinks, plan)

    # What people and machines do to a checkpoint.

    def meddle(self) -> None:
        copy, live = self.folder / "copy", self.folder / "checkpoint"
        chance = self.random.random()
        if chance < 0.12 and live.exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(live, copy)
        elif chance < 0.20 and copy.exists():
            self.excused |= {body for _, body in self.sealed()}
            shutil.rmtree(live)
            shutil.copytree(copy, live)
            self.older = True
            self.zombies = []  # sleeping attempts belong to the checkpoint that was replaced
        elif chance < 0.24:
            shutil.rmtree(live / "query", ignore_errors=True)
        elif chance < 0.34:
            self.lose_a_segment()

    def lose_a_segment(self) -> None:
        acked = [path for path, _ in self.sealed() if path.with_suffix(".ack").exists()]
        if acked:
            path = self.random.choice(acked)
            self.lost |= {body for other, body in self.sealed() if other == path}
            self.excused |= self.lost
            path.unlink()

    def table(self) -> Counter[str]:
        files = sorted((self.folder / "table").glob("*.parquet"))
        return Counter(body for path in files for body in pq.read_table(path).column("body").to_pylist())


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("ack", ["sealed", "committed"])
@pytest.mark.parametrize("seed", range(suite.effort(fast=2, full=15)))
def test_each_message_is_in_the_table_once_whatever_happens_to_drivers_tasks_and_the_checkpoint(
    tmp_path: Path, seed: int, ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "WORTH_A_TASK", 4)
    monkeypatch.setattr(micro_batch, "outcomes_of", lambda job, task: job.run(task))
    random = Random(f"{seed} {ack}")
    with intake(tmp_path / "checkpoint/segments") as original:
        place = replace(original, options=replace(original.options, threads=1, receivers=3, ack=ack))
        world = Pipeline(place, random, tmp_path)
        world.send()
        for _ in range(25):
            world.killer.left = random.randint(1, 60)
            world.life()
            world.killer.left = None
            if random.random() < 0.5:
                world.wake_zombies()
            world.meddle()
            place.clock.advance(random.choice([0, 1, 20, 70, 130]))
            world.send()
        for _ in range(40):  # no more faults
            world.wake_zombies()
            place.clock.advance(130)
            if not world.life() and world.sent >= MESSAGES and place.waiting() == (0, 0):
                break
            world.send()
        rows = world.table()
        expected = {str(number) for number in range(world.sent)} - world.excused
        assert expected - set(rows) == set()
        assert world.older or {body for body in expected if rows[body] > 1} == set()
        if not world.older and world.lost - set(rows):  # lost, but with an error
            assert any(isinstance(error, codec.SegmentDamaged) for error in world.refusals)
        assert place.waiting() == (0, 0)

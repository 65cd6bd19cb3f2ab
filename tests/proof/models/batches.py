"""The model of batches: two messages, one segment log, one checkpoint, one table, and two drivers that do not know of
each other. They seal, commit and delete, with crashes and retries at any step.

The rules:
1. No message is in the table twice.
2. Each message is in the table, in the queue, or in a segment that is still to be committed.
3. With ack=sealed, a message is deleted only when it is in a segment or in the table; with ack=committed, only when it
   is in the table.
4. A segment is dropped only when its messages are in the table or in the queue.

Assumption: a message stays hidden while its segment is being written. A task seals only messages that stay hidden for
the margin longer, and a write that takes longer than that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from models.driver import Driver
from models.replay import DIED, ENDED, Call, Pending, Processes
from semel.spark.segments import codec
from semel.spark.segments.segment_log import COMMITS
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError, already_committed

VISIBLE, DELETED = "visible", "deleted"  # or the attempt that has received it, marked if it is dead
DEAD: Final = "dead "
MESSAGES: Final = ("m1", "m2")
_SEGMENT: Final = ".seg"


class Faults(NamedTuple):
    """How often each fault may still happen. `driver`, `task`: one dies. `redelivery`: a message becomes visible while
    its receiver is still working. `lost`: a delete, or its answer, is lost. `removed`: somebody removes the checkpoint.
    `total`: all of them together."""

    driver: int = 1
    task: int = 1
    redelivery: int = 1
    lost: int = 1
    removed: int = 1
    total: int = 5

    def less(self, fault: str) -> Faults:
        """What is left after this fault. With a `total` of 0, all are 0, so that fewer states differ."""
        if self.total == 1:
            return Faults(0, 0, 0, 0, 0, 0)
        return self._replace(**{fault: getattr(self, fault) - 1, "total": self.total - 1})


class World(NamedTuple):
    """`files`: the segment log. `offsets` and `done`: the checkpoint. `drivers`: the name and the process of each.
    `turn`: which driver runs, if switches are limited; `switches`: how many more times one driver may be interrupted
    and the other continue."""

    drivers: tuple[tuple[str, int], ...]
    faults: Faults
    queue: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()
    table: tuple[str, ...] = ()
    last: tuple[int, str] | None = None
    offsets: tuple[tuple[int, str], ...] = ()
    done: int = -1
    turn: int = -1
    switches: int = 0

    def after_fault(self, fault: str) -> World:
        return self._replace(faults=self.faults.less(fault))

    def moved(self, message: str, place: str) -> World:
        return self._replace(
            queue=tuple(place if m == message else p for m, p in zip(MESSAGES, self.queue, strict=False))
        )

    def holding(self, name: str, data: bytes) -> World:
        return self._replace(files=tuple(sorted({**dict(self.files), name: data}.items())))

    def without(self, names: tuple[str, ...]) -> World:
        return self._replace(files=tuple(file for file in self.files if file[0] not in names))


Answers = Iterator[tuple[str, Any, World]]  # what happened, the answer, and the world after it
AlreadyCommitted = Callable[[str, Commit | None, MicroBatch], bool]


@cache
def sealed_in(data: bytes) -> tuple[str, ...]:
    _, table = codec.decode(data, "segment")
    return tuple(table.column("message_id").to_pylist())


def through(world: World) -> int:
    commits = [name for name, _ in world.files if name.startswith(COMMITS)]
    return int(max(commits)[-15:-5]) if commits else 0


class Batches:
    """The model. `driver` is the program that both drivers run. `switches`: how often one may be interrupted and the
    other continue; None: any number, so all interleavings. `messages`: their number."""

    def __init__(
        self,
        driver: Driver,
        *,
        faults: Faults = Faults(),  # noqa: B008  it is a value
        switches: int | None = None,
        messages: int = len(MESSAGES),
        already_committed: AlreadyCommitted = already_committed,
    ) -> None:
        self.ack = driver.ack
        self.processes = Processes(driver)
        self._faults = faults
        self._switches = switches
        self._messages = messages
        self._already_committed = already_committed

    def initial(self) -> World:
        drivers = tuple((name, self._start(name)) for name in ("A", "B"))
        return World(drivers, self._faults, (VISIBLE,) * self._messages, switches=self._switches or 0)

    def _start(self, name: str) -> int:
        return self.processes.start(("start", name))

    def is_final(self, world: World) -> bool:
        return len(world.table) == len(world.queue) and set(world.queue) == {DELETED}

    def describe(self, world: World) -> str:
        files = [name.partition("/")[2] or name for name, _ in world.files]
        return f"queue {' '.join(world.queue)}; table {list(world.table)}; log {' '.join(files)}"

    # The rules.

    def broken(self, before: World, after: World) -> str | None:
        if len(set(after.table)) < len(after.table):
            return "no message is in the table twice"
        live = through(after)
        in_log = {
            message
            for name, data in after.files
            if name.endswith(_SEGMENT) and int(name[1:11]) > live
            for message in sealed_in(data)
        }
        for message, was, place in zip(MESSAGES, before.queue, after.queue, strict=False):
            if message in after.table or place != DELETED:
                continue
            if message not in in_log:
                return "each message is in the table, in the queue, or in a segment that is still to be committed"
            if self.ack == "committed" and was != DELETED:
                return "with ack=committed, a message is deleted only when it is in the table"
        return None

    # What may happen.

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._of_time(world)
        for place, (name, process) in enumerate(world.drivers):
            waits = self.processes.waits(process)
            scheduled = None if waits is None else self._scheduled(world, place)
            if waits is None or scheduled is None:
                continue
            for what, answer, after in self._answers(scheduled, waits.call):
                yield f"{name}: {what}", self._with(after, place, name, self.processes.answered(process, answer))
            if waits.attempt and world.faults.task:
                held = tuple(DEAD + place if place == waits.attempt else place for place in world.queue)
                dead = world.after_fault("task")._replace(queue=held)
                step = f"{waits.attempt} dies before: {waits.call}"
                yield step, self._with(dead, place, name, self.processes.answered(process, DIED))
            if world.faults.driver:  # the other driver, which may not have begun yet, continues from what it left
                dead = world.after_fault("driver")
                yield f"{name} dies before: {waits.call}", self._with(dead, place, name, ENDED)
        if world.faults.removed and world.offsets:
            yield "the checkpoint is removed", world.after_fault("removed")._replace(offsets=(), done=-1)

    def _scheduled(self, world: World, place: int) -> World | None:
        """The world in which this driver runs; None if it must wait until the other one has ended."""
        if self._switches is None or world.turn == place:
            return world
        if world.turn == -1 or world.drivers[world.turn][1] == ENDED:
            return world._replace(turn=place)
        return world._replace(turn=place, switches=world.switches - 1) if world.switches else None

    def _with(self, world: World, place: int, name: str, process: int) -> World:
        drivers = list(world.drivers)
        drivers[place] = name, process
        return world._replace(drivers=tuple(drivers))

    def _of_time(self, world: World) -> Iterator[tuple[str, World]]:
        at_work = {name: self.processes.waits(process) for name, process in world.drivers}
        for message, place in zip(MESSAGES, world.queue, strict=False):
            if place in (VISIBLE, DELETED):
                continue
            holder = at_work.get(place.partition(".")[0])
            shown = world.moved(message, VISIBLE)
            if holder is None:
                yield f"the visibility of {message} ends", shown
            elif world.faults.redelivery and not _seals(holder):
                yield f"{message} is shown although {place} has it", shown.after_fault("redelivery")

    # What the world answers.

    def _answers(self, world: World, call: Call) -> Answers:
        name, arguments, files = str(call), call.arguments, dict(world.files)
        match call.name:
            case "read":
                yield name, files.get(arguments[0]), world
            case "list":
                yield name, tuple(file for file in files if file.startswith(arguments[0])), world
            case "put":
                yield name, None, world.holding(*arguments)
            case "put if absent":
                won = arguments[0] not in files
                yield f"{name}: {'won' if won else 'lost'}", won, world.holding(*arguments) if won else world
            case "drop":
                yield name, None, world.without(arguments)
            case "read checkpoint":
                yield name, (world.offsets, world.done), world
            case "write offset":
                offsets = tuple(sorted({**dict(world.offsets), arguments[0]: arguments[1]}.items()))
                yield name, None, world._replace(offsets=offsets)
            case "write commit":
                yield name, None, world._replace(done=max(world.done, arguments[0]))
            case "last commit":
                yield name, world.last, world
            case "commit":
                yield self._commit(world, *arguments)
            case _:
                yield from self._of_queue(world, call)

    def _commit(self, world: World, number: int, content: str, rows: tuple[str, ...]) -> tuple[str, Any, World]:
        """The table's own transaction: it looks up the last commit and replaces it in one step."""
        last = None if world.last is None else Commit(*world.last)
        try:
            known = self._already_committed("the table", last, MicroBatch("pipeline", number, content))
        except SinkError:
            return f"commit {list(rows)} is refused", "refused", world
        if known:
            return f"commit {list(rows)}: it is in the table", None, world
        table = tuple(sorted((*world.table, *rows)))
        return f"commit {list(rows)}", None, world._replace(table=table, last=(number, content))

    def _of_queue(self, world: World, call: Call) -> Answers:
        name, arguments = str(call), call.arguments
        held = dict(zip(MESSAGES, world.queue, strict=False))
        match call.name:
            case "count":
                yield name, sum(place == VISIBLE for place in world.queue), world
            case "receive":
                first = next((message for message, place in held.items() if place == VISIBLE), None)
                if first is None:
                    yield "receives nothing", (), world
                else:
                    yield (
                        f"{arguments[0]} receives {first}",
                        (f"{first}@{arguments[0]}",),
                        world.moved(first, arguments[0]),
                    )
            case "still hidden":
                yield name, tuple(receipt for receipt in arguments if _holds(held, receipt)), world
            case "return":
                for receipt in arguments:
                    if _holds(held, receipt):
                        world = world.moved(receipt.partition("@")[0], VISIBLE)
                yield name, None, world
            case "delete":
                yield from self._delete(world, name, arguments)
            case _:
                raise AssertionError(call)

    def _delete(self, world: World, name: str, receipts: tuple[str, ...]) -> Answers:
        """A delete is confirmed if the message was still hidden for this receipt, or is gone. An older receipt deletes
        nothing."""
        held = dict(zip(MESSAGES, world.queue, strict=False))
        after = world
        confirmed = []
        for receipt in receipts:
            message = receipt.partition("@")[0]
            ours = _holds(held, receipt)
            confirmed.append(ours or held[message] == DELETED)
            after = after.moved(message, DELETED) if ours else after
        yield name, tuple(confirmed), after
        if world.faults.lost and any(confirmed):
            yield f"{name}, and gets no answer", (False,) * len(receipts), after.after_fault("lost")
            yield f"{name} is lost", (False,) * len(receipts), world.after_fault("lost")


def _holds(held: dict[str, str], receipt: str) -> bool:
    message, _, attempt = receipt.partition("@")
    return held[message].removeprefix(DEAD) == attempt


def _seals(holder: Pending) -> bool:
    return holder.call.name == "put if absent" and holder.call.arguments[0].endswith(_SEGMENT)

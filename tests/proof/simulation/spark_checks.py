"""What must hold in every schedule of the Spark source, and which keys are excused because nothing was promised."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from semel.ledger.contract import Status
from semel.spark.segments import codec
from semel.spark.segments.model import folder
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from semel.verify.verdict import FindingKind
from simulation.spark_store import SEGMENTS, SparkProcess

if TYPE_CHECKING:
    from simulation.spark_driver import Driver
    from simulation.spark_world import SparkWorld

MOST_FILES = 8  # in a log at rest: its identity, the last commits, unconfirmed deletes, a batch without messages


class Checks:
    """Keys stand for messages. `excused` keys may be lost or doubled, because somebody has destroyed what held them.
    `late` keys may be doubled, because a process or the network stood still: their segment was written after their
    visibility timeout had ended, or a late request returned them to the queue when another task had received them."""

    def __init__(self, world: SparkWorld) -> None:
        self.world = world
        self.accepted: set[str] = set()
        self.history: list[HistoryEvent] = []  # for `semel.verify`, which finds lost and doubled keys at the end
        self.excused: set[str] = set()
        self.lost_segments: set[str] = set()  # keys in segments that somebody has removed
        self.late: set[str] = set()
        self.older = False  # an older copy of the log was restored: later messages may come again
        self.committed: Counter[str] = Counter()
        self.handled: Counter[str] = Counter()  # by the rival consumer
        self.tried: set[str] = set()  # keys that the rival has tried to record
        self.in_queue: defaultdict[str, set[str]] = defaultdict(set)  # ids by key
        self._keys: dict[str, str] = {}  # by receipt handle
        self._ids: dict[str, str] = {}  # message ids by receipt handle
        self._hidden: dict[str, float] = {}  # until when a message is hidden, by receipt handle
        self._newest: dict[str, str] = {}  # receipt handles by message id
        self._deleted_once: set[str] = set()  # message ids
        self._sealed_by: defaultdict[SparkProcess, set[str]] = defaultdict(set)  # keys

    # While it runs.

    def happened(self, kind: EventKind, key: str) -> None:
        self.history.append(HistoryEvent(kind, key=key, time=self.world.simulator.now))

    def on_send(self, key: str, message_id: str) -> None:
        self.accepted.add(key)
        self.in_queue[key].add(message_id)
        self.happened(EventKind.SEND, key)

    def on_call(self, operation: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        now = self.world.simulator.now
        if operation == "ReceiveMessage":
            for message in answer.get("Messages", ()):
                handle = message["ReceiptHandle"]
                self._ids[handle] = message["MessageId"]
                self._newest[message["MessageId"]] = handle
                self._keys[handle] = message["MessageAttributes"]["idempotency-key"]["StringValue"]
                self._hidden[handle] = now + params["VisibilityTimeout"]
        elif operation == "ChangeMessageVisibilityBatch":
            for entry in params["Entries"]:
                handle, seconds = entry["ReceiptHandle"], entry["VisibilityTimeout"]
                self._hidden[handle] = now + seconds
                if not seconds and handle != self._newest[self._ids[handle]]:
                    self.late.add(self._keys[handle])
        elif operation == "DeleteMessageBatch":
            done = {entry["Id"] for entry in answer.get("Successful", ())}
            for entry in params["Entries"]:
                if entry["Id"] in done:
                    self._deleted(self._keys[entry["ReceiptHandle"]], self._ids[entry["ReceiptHandle"]])

    def _deleted(self, key: str, message_id: str) -> None:
        """A message may be deleted only if a segment or a table has its key, or another message with this key is in the
        queue. If SQS delivers a message again whose delete it had confirmed, it may be deleted again."""
        world = self.world
        again = message_id in self._deleted_once
        self._deleted_once.add(message_id)
        self.in_queue[key].discard(message_id)
        self.happened(EventKind.DELETE, key)
        if self.in_queue[key]:
            return
        if key in self.committed or key in self.excused or self.older or key in self.tried:
            return
        process = world.simulator.task.process
        sealed = any(key in keys for keys in world.bucket.sealed.values())
        if not sealed:
            world.simulator.violate("deleted before it was sealed", f"{key}, by {process.name}")
        elif again:
            return
        elif isinstance(process, SparkProcess) and process.ack == "committed" and world.bucket.holds(message_id):
            world.simulator.violate("deleted before it was committed", f"{key}, by {process.name}")

    def on_create(self, process: SparkProcess, name: str, data: bytes) -> None:
        """A message may be sealed only while it is certainly hidden, for the margin longer."""
        world = self.world
        if not name.endswith(".seg"):
            return
        _, table = codec.decode(data, name)
        self._sealed_by[process].update(self._keys[receipt] for receipt in table.column("receipt").to_pylist())
        margin, now = process.margin, world.simulator.now
        for receipt in table.column("receipt").to_pylist():
            left = self._hidden.get(receipt, 0.0) - now
            if left < margin - 0.001:
                text = f"{self._keys.get(receipt)} in {name}, hidden for {left:g} s more"
                world.simulator.violate("sealed when it was not surely ours", text)

    def on_seal(self, name: str, data: bytes) -> None:
        _, table = codec.decode(data, name)
        now = self.world.simulator.now
        for receipt in table.column("receipt").to_pylist():
            if self._hidden.get(receipt, 0.0) <= now:
                self.late.add(self._keys[receipt])

    def on_commit(self, table: str, keys: list[str]) -> None:
        self.committed.update(keys)
        for key in keys:
            self.happened(EventKind.EFFECT, key)
        if self.older:
            return
        for key in keys:
            if self.committed[key] + self.handled[key] > 1 and not (
                key in self.excused or self._double_is_excused(key)
            ):
                self.world.simulator.violate("doubled", f"{key} is in the tables twice, now in {table}")

    def on_older_copy(self) -> None:
        """The log is replaced by an older copy. Everything sealed in the newer one is excused, also what tasks that are
        still running have sealed."""
        self.older = True
        self.excused.update(*self.world.bucket.sealed.values())
        self.excused.update(*(keys for process, keys in self._sealed_by.items() if process.alive))

    def visible(self) -> set[tuple[str, int]]:
        """Messages that can be received now: keys, and how often they were received."""
        broker, queue = self.world.broker, self.world.plan.queue
        messages = (message for message in broker.messages(queue) if message["State"] == "visible")
        return {(broker.names[message["MessageId"]], message["ReceivesInThisQueue"]) for message in messages}

    def on_all_available(self, driver: Driver) -> None:
        """An AvailableNow query ends: no message may have been visible from its start until now."""
        world = self.world
        world.facts["available now"] += 1
        if world.plan.fifo or world.plan.ledger:  # a group may be in flight; a receive may not find all messages
            return
        if left := sorted(key for key, _ in driver.available & self.visible()):
            world.simulator.violate("left", f"{left} were there when {driver.process.name} began, and still are")

    def rejects_again(self, batch: int | None) -> None:
        """A reset has announced that it writes the rejects of this batch again; None: those of all batches."""
        prefix = "" if batch is None else f"{SEGMENTS}{folder(batch)}/"
        for name, keys in self.world.bucket.sealed.items():
            if name.startswith(prefix):
                self.excused |= keys

    def _double_is_excused(self, key: str) -> bool:
        return key in self.late and not self.world.plan.ledger

    def on_handled(self, key: str) -> None:
        self.handled[key] += 1
        self.happened(EventKind.EFFECT, key)
        if self.handled[key] + self.committed[key] > 1 and key not in self.excused and not self.older:
            self.world.simulator.violate("doubled", f"{key} is handled by the rival, too")

    # At the end, long after the last fault.

    def at_end(self) -> None:
        world = self.world
        if self.older and world.reset_refused:  # late requests for the newer log have changed its older copy
            return
        for key in sorted(self.accepted):
            where = "" if self.committed[key] or key in self.excused else self._whereabouts(key)
            if where and not self._is_rivals(key):
                world.simulator.violate("stuck", f"{key} is still in {where}")
            if where or (not self.handled[key] and self._is_rivals(key)):
                self.happened(EventKind.PRESENT, key)
        self._check_history()
        if not world.queue_is_empty:
            world.simulator.violate("stuck", "the queue is not empty")
        gone = {key for key in self.lost_segments - {*self.committed, *self.handled} if not self._is_rivals(key)}
        if gone and not self.older and not world.damage_seen:
            world.simulator.violate("silent", f"{sorted(gone)} were in a lost segment, and nobody said so")
        self._check_bounds()

    def _check_history(self) -> None:
        verdict = check([event for event in self.history if event.key not in self.excused], logged=EventKind)
        for finding in verdict.findings:
            doubled = finding.kind is FindingKind.DOUBLED and not (self.older or self._double_is_excused(finding.key))
            if doubled or finding.kind is FindingKind.LOST:
                self.world.simulator.violate(finding.kind, finding.text)

    def _is_rivals(self, key: str) -> bool:
        """Whether the rival has recorded this key, but did not get the answer."""
        return key in self.tried and world_status(self.world, key) is Status.DONE

    def _whereabouts(self, key: str) -> str:
        names = [name for name, keys in self.world.bucket.sealed.items() if key in keys]
        return names[0] if names else "the queue" if key in self.world.keys_in_queue() else ""

    def _check_bounds(self) -> None:
        """Committed segments are dropped, so the log does not grow. Late attempts may leave files of a committed batch,
        which the next start drops."""
        files = [name.removeprefix(SEGMENTS) for name in self.world.bucket.names(SEGMENTS)]
        committed = folder(max((int(name[8:18]) for name in files if name.startswith("commits/")), default=0))
        segments = [name for name in files if name.endswith((".seg", ".ack"))]
        batches = {name.partition("/")[0] for name in segments if name.partition("/")[0] > committed}
        late = len(segments) - sum(name.partition("/")[0] in batches for name in segments)
        if len(files) - len(segments) > MOST_FILES or late > MOST_FILES or len(batches) > 1:
            self.world.simulator.violate("unbounded", f"the log has {len(files)} files: {files}")


def world_status(world: SparkWorld, key: str) -> Status | None:
    assert world.observer is not None
    known = world.observer.keys.get(world.ledger_key(key))
    return None if known is None else known.status

"""The world of the consumer: a producer, a queue, a ledger, workers and trouble, and the promises that must hold.

The engine, the ledger and the line of stages are the real ones. A worker's stages run as tasks of the simulator, so
another stage, another worker or a fault can come between any two calls. Read `World.run` first. Some promises are
checked at every call (`_on_request`, `_on_call`, and `ledger.Observer`), the others at the end (`_check_end`).
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Literal

import orjson

from semel import Context, Reject, Retry, Skip, Transaction
from semel.ledger.contract import Ledger
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.ledger.sqlite.schema import Connection
from semel.messages.keys import scoped
from semel.sqs import Queue
from semel.sqs.errors import SqsError
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from simulation.broker import ACCOUNT, SimulatedBroker, url
from simulation.choices import Choices
from simulation.consumer_plan import LEASE, drawn_plan
from simulation.consumer_trouble import PAUSES, Trouble
from simulation.consumer_worker import Worker
from simulation.faults import CallFaults
from simulation.ledger import LEDGER_FAULTS, Observer, Outage
from simulation.search import Outcome
from simulation.simulator import Process, Simulator
from simulation.virtual_asyncio import Pause, VirtualAsyncio, in_virtual_time

SILENT: Final = logging.CRITICAL + 1  # every lost answer would be logged
CALM: Final = 7_200.0  # seconds after the last fault by which everything must have come to rest
LEDGER_SKEWS: Final = (0.0, 0.0, 170.0, -170.0)
RESENT_AFTER: Final = (0.0, 1.0, 45.0, 299.0, 301.0)
DEDUP_WINDOW: Final = 300.0
# What a handler does before its effect: it takes this many seconds, or ends without an effect.
BEHAVIOUR: Final = (0.001, 0.001, 0.001, 0.02, 1.0, 8.0, 33.0, 70.0, "fail", "fail", "retry", "reject", "skip")


_ledger_module: Final[Any] = import_module("semel.ledger.sqlite.ledger")


@cache
def _empty_ledger() -> bytes:
    ledger = SqliteLedger(":memory:")
    try:
        return ledger._writer.connection.serialize()
    finally:
        ledger.close()


def _opened(path: str, _synchronous: str, _timeout: float) -> Connection:
    """A copy of an empty ledger, because creating its tables takes a tenth of the time of a schedule."""
    connection = Connection(path, isolation_level=None, check_same_thread=False, timeout=0)
    connection.deserialize(_empty_ledger())
    return connection


def in_sqlite(clock: Callable[[], float]) -> Ledger:
    _empty_ledger()
    real, _ledger_module.opened = _ledger_module.opened, _opened
    try:
        ledger = SqliteLedger(":memory:", clock=clock)
    finally:
        _ledger_module.opened = real
    ledger._writer._combiner._gathers = False  # there are no concurrent calls to wait for
    return ledger


@dataclass(frozen=True)
class Store:
    """The store of the ledger. `table` is the handler's own table, `value` the placeholder of its SQL dialect."""

    open: Callable[[Callable[[], float]], Ledger] = in_sqlite
    transactions: bool = True
    table: str = "effects"
    value: str = "?"


class World:
    """`asynchronous`: whether the handlers are async."""

    def __init__(self, choices: Choices, store: Store, *, asynchronous: bool = False) -> None:
        self.choices = choices
        self.simulator = Simulator(choices)
        self.asyncio = VirtualAsyncio(self.simulator) if asynchronous else None
        self.simulator.after_step = self._after_step
        self.store = store
        self.plan = drawn_plan(choices, transactions=store.transactions)
        self.simulator.note("world", self.plan)
        self.broker = SimulatedBroker(self.simulator, self.plan.queues(), seed=choices.below(1 << 16))
        self.broker.sticks = True
        self.broker.on_call = self._on_call
        self.broker.on_request = self._on_request
        skew = choices.one_of(LEDGER_SKEWS)
        self.ledger = store.open(lambda: self.simulator.now + skew)
        self.outage = Outage()
        self.ledger_faults = CallFaults(choices, LEDGER_FAULTS)
        self.observer = Observer(self.simulator, lambda: self.simulator.now + skew, self._on_ledger)
        self.workers: dict[Process, Worker] = {}
        # Makes each message need a page of its own, so that a full disk has an effect.
        self._padding = "x" * 2_500 if "broker disk full" in self.plan.events else ""
        self.calm = False
        self.at_rest = self._all_is_sent = False
        # What happened.
        self.history: list[HistoryEvent] = []
        self.effects: list[str] = []  # keys in the order of their effects
        self.skipped: set[str] = set()  # keys whose handler had nothing to do
        self.calls: Counter[tuple[str, int]] = Counter()  # of the handler, by key and fence
        self._dead: set[str] = set()  # keys of the messages in the dead-letter queue
        self._dead_state = (0, 0)  # of the dead-letter queue: messages that ever arrived, and those that are there now
        self.counts: Counter[str] = Counter()
        self._keys: dict[str, str] = {}  # by receipt handle
        self._beating: set[tuple[Process, str]] = set()  # receipt handles whose visibility is being extended
        self._given_up: set[tuple[Process, str]] = set()  # receipt handles with which a worker has deleted or returned
        self._messages: set[str] = set()  # ids of the messages that operators have sent
        self._dedup: dict[str, tuple[float, str]] = {}  # deduplication ids: when they were used, for which message

    def run(self) -> None:
        if self.plan.transactional:
            with self.ledger.transaction() as tx:
                tx.execute(f"CREATE TABLE {self.store.table} (id text)")
        for _ in range(self.plan.workers):
            self.start_worker()
        producer = Process(self.simulator, "producer")
        producer.spawn("produce", partial(self._produce, producer))
        Trouble(self)
        Process(self.simulator, "watcher").spawn("watch", self._watch)
        self.simulator.run(self.simulator.now + self.plan.trouble + CALM, lambda: self.at_rest)
        if not self.simulator.violations:
            self._check_end()

    def start_worker(self) -> None:
        options: dict[str, Any] = {"lease": self.choices.one_of((LEASE, LEASE, 12, 60))}
        if self.choices.chance(0.2):
            options["max_attempts"] = 3
        worker = Worker(self, f"worker-{len(self.workers) + 1}", options)
        self.workers[worker.process] = worker

    def _watch(self) -> None:
        while True:
            self.simulator.sleep(20.0)
            workers = [worker for process, worker in self.workers.items() if process.alive]
            if (
                self.calm
                and (self._all_is_sent or not self.plan.fifo)  # a FIFO queue must still deduplicate what is sent again
                and not any(self.broker.counts(self.plan.queue))
                and all(worker.is_idle for worker in workers)
                and not (self.plan.sends and self.ledger.count_outgoing())
            ):
                self.at_rest = True

    def _after_step(self, process: Process) -> None:
        worker = self.workers.get(process)
        if worker is not None:
            worker.after_step()

    # The producer.

    def _produce(self, producer: Process) -> None:
        """Send each key once, and some twice. A send without an answer is repeated, as a careful producer does."""
        queue = self.broker.client(producer).queue(self.plan.queue)
        queue.set_url(url(self.plan.queue))
        for number in range(self.plan.keys):
            self.simulator.sleep(self.choices.one_of((0.1, 0.1, 3.0, 20.0)))
            self._send(queue, number)
            if self.choices.chance(0.25):
                self.simulator.sleep(self.choices.one_of(RESENT_AFTER))
                self._send(queue, number)
        self._all_is_sent = True

    def _send(self, queue: Queue, number: int) -> None:
        key = f"k{number}"
        options: dict[str, Any] = {"group": self.plan.group(key), "dedup": key} if self.plan.fifo else {}
        for _ in range(20):
            try:
                queue.send(f'{{"id": "{key}", "text": "{self._padding}"}}', **options)
                return
            except SqsError:
                self.simulator.sleep(5.0)

    # The handler.

    def handle(self, worker: Worker, message: Any, ctx: Context | None = None, tx: Transaction | None = None) -> None:
        for seconds in self._work(worker, message, ctx, tx):
            self.simulator.sleep(seconds)

    async def handle_async(self, worker: Worker, message: Any, ctx: Context | None = None) -> None:
        """Some handlers continue when they are cancelled, and some raise CancelledError without being cancelled."""
        for seconds in self._work(worker, message, ctx, None):
            try:
                await Pause(seconds)
            except CancelledError:
                worker.process.note("handler is cancelled")
                self.counts["cancelled"] += 1
                if not self.choices.chance(0.3):
                    raise
            if not self.calm and self.choices.chance(0.02):
                raise CancelledError

    def _work(self, worker: Worker, message: Any, ctx: Context | None, tx: Transaction | None) -> Iterator[float]:
        """What the handler does. Yields the seconds that its work takes."""
        items: list[tuple[str, int, Any]]
        if ctx is None and self.plan.batch:
            items = [(item.value["id"], item.fence, item) for item in message]
        else:
            assert ctx is not None
            items = [(message["id"], ctx.fence, None)]
        worker.process.note("handler begins", *[f"{key}/{fence}" for key, fence, _ in items])
        yield from self._behave(items)
        yield from self._freeze(worker)
        done = []
        for key, fence, item in items:
            self.calls[key, fence] += 1
            if item is None or item.outcome is None:
                yield from self._affect(worker, key, fence, tx)
                done.append((self._ledger_key(key), fence))
        if tx is None:
            self.observer.finished.update(done)

    def _behave(self, items: list[tuple[str, int, Any]]) -> Iterator[float]:
        """Before the effect: time passes, or the handler fails."""
        choices = self.choices
        put_off: set[str] = set()  # groups
        for key, _, item in items:
            group = self.plan.group(key)
            if group and group in put_off:
                item.retry()  # without a transaction, the rest of its group must be put off, too
            elif item is not None and choices.chance(0.1):
                if choices.below(2):
                    item.reject("not good")
                    self.log(EventKind.REFUSE, key, detail="rejected")
                else:
                    item.retry()
                    put_off |= set() if self.plan.transactional else {group}
        what = 0.0 if self.calm and not choices.chance(0.3) else choices.one_of(BEHAVIOUR)
        match what:
            case float():
                yield what
            case "fail":
                raise ValueError("the handler failed")
            case "retry":
                raise Retry(after=7)
            case "reject":
                raise Reject("not good")
            case "skip":
                for key, _, _ in items:
                    self.skipped.add(key)
                    self.log(EventKind.REFUSE, key, detail="skipped")
                raise Skip("nothing to do")

    def _freeze(self, worker: Worker) -> Iterator[float]:
        """The worker's process stands still in the middle of the work, perhaps until after its lease, and continues."""
        if "pause worker" in self.plan.events and not self.calm and self.choices.chance(0.15):
            worker.process.pause(self.choices.one_of(PAUSES))
            yield 0.001

    def _affect(self, worker: Worker, key: str, fence: int, tx: Transaction | None) -> Iterator[float]:
        if tx is None:
            worker.process.note("EFFECT", key, "fence", fence)
            self.log(EventKind.EFFECT, key)
            yield self.choices.one_of((0.001, 0.001, 0.01, 33.0))
        else:
            tx.execute(f"INSERT INTO {self.store.table} VALUES ({self.store.value})", (key,))
            if self.plan.sends:
                tx.send(self.plan.receipts, {"id": key}, key=key, group="g" if self.plan.fifo else None)

    # What must hold at every moment.

    def _on_request(self, process: Process, operation: str, body: bytes, ended: bool) -> None:
        """The heartbeat stops before a message is deleted or returned: a late extension would hide it again."""
        if operation not in ("ChangeMessageVisibilityBatch", "DeleteMessageBatch") or process not in self.workers:
            return
        receipts = {(process, entry["ReceiptHandle"]) for entry in orjson.loads(body)["Entries"]}
        if self.simulator.task.name == "heartbeat":
            late = set() if ended else receipts & self._given_up
            self._beating = self._beating - receipts if ended else self._beating | receipts
        else:
            late = set() if ended else receipts & self._beating
            self._given_up |= receipts
        if late:
            keys = ", ".join(self._keys[receipt] for _, receipt in late)
            self.simulator.violate("extended after its end", f"{keys}: an extension is sent or under way")

    def log(self, kind: EventKind, key: str, **more: Any) -> None:
        group = self.plan.group(key)
        self.history.append(HistoryEvent(kind, key=key, time=self.simulator.now, group=group, **more))

    def _on_call(self, operation: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        if operation == "StartMessageMoveTask":
            for message in self.broker.messages(self.plan.dead_letters):
                if message["State"] == "visible":  # the task moves these, but not those that an operator has received
                    self.log(EventKind.SEND, self.key_of(message["Body"]))
        queue = params.get("QueueUrl", "").rpartition("/")[2]
        if queue == self.plan.queue:
            if operation == "SendMessage":
                self._sent(self.key_of(params["MessageBody"]), answer["MessageId"])
            elif operation == "SendMessageBatch":
                self._sent_back(params, answer)
            elif operation == "ReceiveMessage":
                self._received(answer.get("Messages", ()))
            elif operation == "DeleteMessageBatch":
                for entry in params["Entries"]:
                    self.log(EventKind.DELETE, self._keys[entry["ReceiptHandle"]])
        dead = self.broker.engine.store.queues[self.plan.dead_letters].generation
        state = (dead.next_number, sum(dead.counts))
        if queue == self.plan.dead_letters or state != self._dead_state:
            self._dead_state = state
            self._look_at_dead_letters()

    def _on_ledger(self, kind: EventKind, key: str, fence: int) -> None:
        self.log(kind, key.rpartition("/")[2], fence=fence)

    def _received(self, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            self._keys[message["ReceiptHandle"]] = key = self.key_of(message["Body"])
            self.log(EventKind.DELIVER, key, message=message["MessageId"])

    def _look_at_dead_letters(self) -> None:
        """Workers send messages there, SQS itself moves some there, and operators take them out."""
        now = {self.key_of(message["Body"]) for message in self.broker.messages(self.plan.dead_letters)}
        for key in sorted(now - self._dead):
            self.log(EventKind.DEAD_LETTER, key)
        self._dead = now

    def _sent(self, key: str, message: str) -> None:
        """A deduplication id that is used again within five minutes means the same message; after that, a new one."""
        if self.plan.fifo:
            taken_at, known = self._dedup.get(key, (0.0, ""))
            now = self.broker.now() / 1000
            if (message == known) != (now - taken_at < DEDUP_WINDOW):
                self.simulator.violate("dedup window", f"{key} was sent again after {now - taken_at:g} s")
            if message == known:
                return
            self._dedup[key] = (now, message)
        self.log(EventKind.SEND, key, message=message)

    def _sent_back(self, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """An operator has sent messages. A FIFO queue recognises a second send and adds no new message."""
        bodies = {entry["Id"]: entry["MessageBody"] for entry in params["Entries"]}
        for entry in answer.get("Successful", ()):
            if entry["MessageId"] not in self._messages:
                self._messages.add(entry["MessageId"])
                self.log(EventKind.SEND, self.key_of(bodies[entry["Id"]]), message=entry["MessageId"])

    def _ledger_key(self, key: str) -> str:
        return scoped(f"us-east-1:{ACCOUNT}:{self.plan.queue}", key)

    def key_of(self, body: str) -> str:
        return body.partition('"id"')[2].split('"')[1]

    # What must hold at the end.

    def _check_end(self) -> None:
        violate = self.simulator.violate
        if not self.at_rest:
            left = [self.key_of(message["Body"]) for message in self.broker.messages(self.plan.queue)]
            violate("stuck", f"after {CALM:g} calm seconds: {left} in the queue")
            return
        for worker in self.workers.values():
            if leftovers := worker.leftovers():
                violate("not given back", f"{worker.process.name} still has {leftovers}")
        if self.plan.transactional:
            with self.ledger.transaction() as tx:
                self.effects = [key for (key,) in tx.execute(f"SELECT id FROM {self.store.table}")]
            for key in self.effects:
                self.log(EventKind.EFFECT, key)
        for key in sorted(self._dead):
            self.log(EventKind.PRESENT, key)
        for key in sorted(self.skipped):  # once more, for keys that were sent again after the skip
            self.log(EventKind.REFUSE, key, detail="skipped")
        mode: Literal["exactly-once", "at-least-once"] = "exactly-once" if self.plan.transactional else "at-least-once"
        verdict = check(self.history, effects=mode, delete_after="record", logged=EventKind)
        for finding in verdict.findings:
            violate(finding.kind, finding.text)
        for (key, fence), count in self.calls.items():
            if count > 1 and not self.plan.batch:
                violate("called twice", f"{key} was handled {count} times with fence {fence}")
        if self.plan.sends:
            self._check_outbox()

    def _check_outbox(self) -> None:
        """Messages of a transaction were sent if and only if it committed, and in the order of their group."""
        left = list(dict.fromkeys(self.key_of(m["Body"]) for m in self.broker.messages(self.plan.receipts)))
        if set(left) != set(self.effects):
            self.simulator.violate("outbox", f"effects of {self.effects}, but messages for {left}")
        elif self.plan.fifo and left != list(dict.fromkeys(self.effects)):
            self.simulator.violate("outbox out of order", f"effects {self.effects}, messages {left}")


def consumer_world(
    choices: Choices,
    store: Store = Store(),  # noqa: B008 - it is frozen
    *,
    asynchronous: bool = False,
) -> Outcome:
    world = World(choices, store, asynchronous=asynchronous)
    logger = logging.getLogger("semel")
    level = logger.level
    if level != SILENT:  # setting it is slow
        logger.setLevel(SILENT)
    try:
        with nullcontext() if world.asyncio is None else in_virtual_time(world.asyncio):
            world.run()
    finally:
        world.simulator.close()
        world.ledger.close()
        world.broker.close()
        if level != SILENT:
            logger.setLevel(level)
    facts = {
        **world.counts,
        "takeovers": world.observer.takeovers,
        "records refused": world.observer.zombies,
        "duplicates": world.observer.duplicates,
    }
    return Outcome(world.simulator.timeline, world.simulator.violations, choices.decisions, facts)


def async_world(choices: Choices) -> Outcome:
    """Async handlers have no transactions."""
    return consumer_world(choices, Store(transactions=False), asynchronous=True)

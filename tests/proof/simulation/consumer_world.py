"""A producer, a queue, a ledger and workers, everything that can happen to them, and what must hold all the same.

The engine, the ledger and the line of stages are the real ones. A worker's stages run as tasks of the simulator, so
that another stage, another worker or a fault comes between any two calls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson

from semel import Context, Reject, Retry, Skip, Transaction
from semel.ledger.contract import Ledger
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages.keys import scoped
from semel.sqs import Queue
from semel.sqs.errors import SqsError
from simulation.broker import ACCOUNT, SimulatedBroker, url
from simulation.choices import Choices
from simulation.consumer_plan import LEASE, drawn_plan
from simulation.consumer_trouble import Trouble
from simulation.consumer_worker import Worker
from simulation.faults import CallFaults
from simulation.ledger import LEDGER_FAULTS, Observer, Outage
from simulation.search import Outcome
from simulation.simulator import Process, Simulator

CALM: Final = 7_200.0  # seconds after the last fault by which everything must have come to rest
LEDGER_SKEWS: Final = (0.0, 0.0, 170.0, -170.0)
RESENT_AFTER: Final = (0.0, 1.0, 45.0, 299.0, 301.0)
DEDUP_WINDOW: Final = 300.0
# What a handler does before its effect: it takes so many seconds, or ends without one.
BEHAVIOUR: Final = (0.001, 0.001, 0.001, 0.02, 1.0, 8.0, 33.0, 70.0, "fail", "fail", "retry", "reject", "skip")
OpenLedger = Callable[[Callable[[], float]], Ledger]

logging.getLogger("semel").setLevel(logging.CRITICAL + 1)


class World:
    def __init__(self, choices: Choices, open_ledger: OpenLedger) -> None:
        self.choices = choices
        self.simulator = Simulator(choices)
        self.simulator.after_step = self._after_step
        self.plan = drawn_plan(choices)
        self.simulator.note("world", self.plan)
        self.broker = SimulatedBroker(self.simulator, self.plan.queues(), seed=choices.below(1 << 16))
        self.broker.on_call = self._on_call
        self.broker.on_request = self._on_request
        skew = choices.one_of(LEDGER_SKEWS)
        self.ledger = open_ledger(lambda: self.simulator.now + skew)
        self.outage = Outage()
        self.ledger_faults = CallFaults(choices, LEDGER_FAULTS)
        self.observer = Observer(self.simulator, lambda: self.simulator.now + skew)
        self.workers: dict[Process, Worker] = {}
        self.calm = False
        self.at_rest = False
        # What happened.
        self.accepted: set[str] = set()  # keys of messages whose send was answered
        self.order: list[str] = []  # keys in the order in which the broker took them
        self.effects: list[str] = []  # keys in the order of their effects
        self.skipped: set[str] = set()  # keys whose handler had nothing to do
        self.calls: Counter[tuple[str, int]] = Counter()  # of the handler, by key and fence
        self.dead: set[str] = set()  # keys that were in the dead-letter queue
        self.dropped: set[str] = set()  # keys of messages that an operator has deleted
        self.counts: Counter[str] = Counter()
        self._keys: dict[str, str] = {}  # by receipt handle
        self._given_up: set[tuple[Process, str]] = set()  # receipt handles that a worker has deleted or returned by
        self._dedup: dict[str, tuple[float, str]] = {}  # when a dedup id was taken, and for which message

    def run(self) -> None:
        if self.plan.transactional:
            with self.ledger.transaction() as tx:
                tx.execute("CREATE TABLE IF NOT EXISTS effects (id text)")
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
                and self.broker.is_empty(self.plan.queue)
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
        """Each key once, some twice; what is not answered is sent again, as a careful producer does."""
        queue = self.broker.client(producer).queue(self.plan.queue)
        queue.found(url(self.plan.queue))
        for number in range(self.plan.keys):
            self.simulator.sleep(self.choices.one_of((0.1, 0.1, 3.0, 20.0)))
            self._send(queue, number)
            if self.choices.chance(0.25):
                self.simulator.sleep(self.choices.one_of(RESENT_AFTER))
                self._send(queue, number)

    def _send(self, queue: Queue, number: int) -> None:
        key = f"k{number}"
        options = {"group": "ab"[number % 2], "dedup": key} if self.plan.fifo else {}
        for _ in range(20):
            try:
                queue.send(f'{{"id": "{key}"}}', **options)
            except SqsError:
                self.simulator.sleep(5.0)
                continue
            self.accepted.add(key)
            return

    # The handler.

    def handle(self, worker: Worker, message: Any, ctx: Context | None = None, tx: Transaction | None = None) -> None:
        items: list[tuple[str, int, Any]]
        if ctx is None and self.plan.batch:
            items = [(item.value["id"], item.fence, item) for item in message]
        else:
            assert ctx is not None
            items = [(message["id"], ctx.fence, None)]
        worker.process.note("handler begins", *[f"{key}/{fence}" for key, fence, _ in items])
        self._behave(items)
        for key, fence, item in items:
            self.calls[key, fence] += 1
            if item is None or item.outcome is None:
                self._affect(worker, key, fence, tx)
                if tx is None:
                    self.observer.finished.add((self._ledger_key(key), fence))

    def _behave(self, items: list[tuple[str, int, Any]]) -> None:
        """Before the effect: time passes, or it fails."""
        choices = self.choices
        for _, _, item in items:
            if item is not None and choices.chance(0.1):
                item.reject("not good") if choices.below(2) else item.retry()
        what = 0.0 if self.calm and not choices.chance(0.3) else choices.one_of(BEHAVIOUR)
        match what:
            case float():
                self.simulator.sleep(what)
            case "fail":
                raise ValueError("the handler failed")
            case "retry":
                raise Retry(after=7)
            case "reject":
                raise Reject("not good")
            case "skip":
                self.skipped |= {key for key, _, _ in items}
                raise Skip("nothing to do")

    def _affect(self, worker: Worker, key: str, fence: int, tx: Transaction | None) -> None:
        if tx is None:
            worker.process.note("EFFECT", key, "fence", fence)
            self.effects.append(key)
            self.simulator.sleep(self.choices.one_of((0.001, 0.001, 0.01, 33.0)))
        else:
            tx.execute("INSERT INTO effects VALUES (?)", (key,))
            if self.plan.sends:
                tx.send(self.plan.receipts, {"id": key}, key=key, group="g" if self.plan.fifo else None)

    # What must hold at every moment.

    def _on_request(self, process: Process, operation: str, body: bytes) -> None:
        """The heartbeat stops before a message is deleted or returned: a late extension would hide it again."""
        if operation not in ("ChangeMessageVisibilityBatch", "DeleteMessageBatch") or process not in self.workers:
            return
        receipts = [entry["ReceiptHandle"] for entry in orjson.loads(body)["Entries"]]
        if self.simulator.task.name != "heartbeat":
            self._given_up.update((process, receipt) for receipt in receipts)
        elif late := [receipt for receipt in receipts if (process, receipt) in self._given_up]:
            self.simulator.violate("extended after its end", ", ".join(self._keys[receipt] for receipt in late))

    def _on_call(self, operation: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        queue = params.get("QueueUrl", "").rpartition("/")[2]
        if queue == self.plan.dead_letters and operation.startswith("SendMessage"):
            bodies = [entry["MessageBody"] for entry in params.get("Entries", (params,))]
            self.dead.update(map(self.key_of, bodies))
        elif operation == "StartMessageMoveTask":
            self._look_at_dead_letters()
        if queue != self.plan.queue:
            return
        if operation == "SendMessage":
            self._check_dedup(params, answer)
        elif operation == "ReceiveMessage":
            for message in answer.get("Messages", ()):
                receipt = message["ReceiptHandle"]
                self._keys[receipt] = self.key_of(message["Body"])
                # After a power cut, receives that were not synced are forgotten, and a handle is given out again.
                self._given_up -= {(process, receipt) for process in self.workers}
        elif operation == "DeleteMessageBatch":
            self._check_deletes(params)

    def _check_dedup(self, params: dict[str, Any], answer: dict[str, Any]) -> None:
        key = self.key_of(params["MessageBody"])
        if key not in self.order:
            self.order.append(key)
        if not self.plan.fifo:
            return
        taken_at, message = self._dedup.get(key, (0.0, ""))
        now = self.broker.now() / 1000
        if (answer["MessageId"] == message) != (now - taken_at < DEDUP_WINDOW):
            self.simulator.violate("dedup window", f"{key} was sent again after {now - taken_at:g} s")
        if answer["MessageId"] != message:
            self._dedup[key] = (now, answer["MessageId"])

    def _check_deletes(self, params: dict[str, Any]) -> None:
        """Record before acknowledge: a message is deleted only after its outcome is durable."""
        for entry in params["Entries"]:
            key = self._keys[entry["ReceiptHandle"]]
            if not self.observer.was_recorded(self._ledger_key(key)):
                self.simulator.violate("deleted before it was recorded", key)

    def _ledger_key(self, key: str) -> str:
        return scoped(f"us-east-1:{ACCOUNT}:{self.plan.queue}", key)

    def key_of(self, body: str) -> str:
        return body.partition('"id"')[2].split('"')[1]

    # What must hold at the end.

    def _look_at_dead_letters(self) -> set[str]:
        """Keys of the messages in the dead-letter queue now; SQS moves some there by itself."""
        found = {self.key_of(message["Body"]) for message in self.broker.messages(self.plan.dead_letters)}
        self.dead |= found
        return found

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
                self.effects += [key for (key,) in tx.execute("SELECT id FROM effects")]
        done = Counter(self.effects)
        dead_now = self._look_at_dead_letters()
        for key in sorted(self.accepted - set(done) - self.skipped - dead_now - self.dropped):
            violate("lost", f"{key} was accepted, has no effect, and is in no queue")
        for key, count in done.items():
            if self.plan.transactional and count > 1:
                violate("doubled", f"{key} has {count} effects")
        for (key, fence), count in self.calls.items():
            if count > 1 and not self.plan.batch:
                violate("called twice", f"{key} was handled {count} times with fence {fence}")
        if self.plan.fifo:
            self._check_order()
        if self.plan.sends:
            self._check_outbox(done)

    def _check_order(self) -> None:
        """Within a group, first effects are in the order of the sends. A dead-letter message has left the order."""
        for group in (0, 1):
            sent = [key for key in self.order if int(key[1:]) % 2 == group and key not in self.dead]
            first = [key for key in dict.fromkeys(self.effects) if key in sent]
            if first != [key for key in sent if key in first]:
                self.simulator.violate("reordered", f"sent {sent}, effects {first}")

    def _check_outbox(self, done: Counter[str]) -> None:
        """What a transaction has sent left, if and only if it committed; in the order of its group."""
        left = list(dict.fromkeys(self.key_of(m["Body"]) for m in self.broker.messages(self.plan.receipts)))
        if set(left) != set(done):
            self.simulator.violate("outbox", f"effects of {sorted(done)}, but messages for {sorted(left)}")
        elif self.plan.fifo and left != list(dict.fromkeys(self.effects)):
            self.simulator.violate("outbox out of order", f"effects {self.effects}, messages {left}")


def in_sqlite(clock: Callable[[], float]) -> Ledger:
    ledger = SqliteLedger(":memory:", clock=clock)
    ledger._writer._combiner._gathers = False  # nobody else comes at the same time
    return ledger


def consumer_world(choices: Choices, open_ledger: OpenLedger = in_sqlite) -> Outcome:
    world = World(choices, open_ledger)
    try:
        world.run()
    finally:
        world.simulator.close()
        world.ledger.close()
    return Outcome(world.simulator.timeline, world.simulator.violations, choices.taken, dict(world.counts))

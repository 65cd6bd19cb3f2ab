"""The world of Spark: a producer, a queue, pipeline drivers, a table, an operator and trouble.

The broker's engine, the planner, the tasks, the segment log, the committer, the checkpoint and the batches are the real
ones. Drivers, attempts of tasks and an operator are processes of the simulator. They reach store, queue, ledger and
sink through calls, and anything else may happen before a call takes effect. Read `SparkWorld.run` first;
`spark_checks.py` has the promises that must hold.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final, cast

import orjson
import pyarrow as pa

from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages.keys import scoped
from semel.spark.pipeline.checkpoint import Checkpoint
from semel.spark.pipeline.query_failures import kind_of
from semel.spark.segments.codec import SegmentDamaged
from semel.spark.sinks.contract import Writer
from semel.spark.source.claims import KeyClaims, LedgerClaims
from semel.spark.source.planner import Planner
from semel.sqs import Queue
from simulation.broker import ACCOUNT, url
from simulation.choices import Choices
from simulation.faults import CallFaults
from simulation.ledger import LEDGER_FAULTS, Observer, Outage
from simulation.search import Outcome
from simulation.simulator import Process, Simulator
from simulation.spark_checks import Checks
from simulation.spark_client import SparkBroker, SparkClient, SparkLedger
from simulation.spark_driver import Driver
from simulation.spark_patches import installed
from simulation.spark_plan import Plan, drawn_plan
from simulation.spark_rival import Rival
from simulation.spark_sink import SINK_FAULTS, SimulatedSink, SimulatedWriter, Table, as_rows
from simulation.spark_store import STORE_FAULTS, Bucket, Perils, SimulatedStore, SparkProcess
from simulation.spark_threads import Waiters
from simulation.spark_trouble import Trouble, run_reset

CALM: Final = 6_000.0  # seconds after the last fault by which everything must have come to rest
VISIBILITIES: Final = (40, 120)
RESTART: Final = (1.0, 15.0, 70.0)  # seconds until a driver is started again


class SparkWorld:
    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.simulator = Simulator(choices)
        self.plan = self.draw()
        self.simulator.note("world", self.plan)
        self.facts: Counter[str] = Counter()
        self.checks = Checks(self)
        self.broker = SparkBroker(self.simulator, self.plan.queues(), seed=1, forgetful=self.plan.forgetful)
        self.broker.on_call = self.checks.on_call
        if not self.plan.ledger:  # without a ledger, Semel does not promise to recognise SQS's own duplicates
            self.broker.service_faults.on = False
        self.perils = Perils(self.simulator, self.plan.focus)
        self.store_faults = CallFaults(choices, STORE_FAULTS)
        self.sink_faults = CallFaults(choices, SINK_FAULTS)
        self.bucket = Bucket(self.broker.names)
        self.bucket.on_seal = self.checks.on_seal
        self.table, self.rejects = Table("table"), Table("rejects")
        for table in (self.table, self.rejects):
            table.on_commit = self.checks.on_commit
        self.ledger: Ledger | None = None
        self.observer: Observer | None = None
        self.outage = Outage()
        self.ledger_faults = CallFaults(choices, LEDGER_FAULTS)
        if self.plan.ledger:
            self.ledger = SqliteLedger(":memory:", clock=lambda: self.simulator.now)
            self.ledger._writer._combiner._gathers = False  # there are no concurrent calls to wait for
            self.observer = Observer(self.simulator, lambda: self.simulator.now)
        self.settings = self.plan.options(self.plan.ack, 3, VISIBILITIES[choices.below(2)])
        self.opening: Any = None
        self.drivers: list[Driver] = []
        self.refusals: list[SemelError] = []
        self.damage_seen = self.resetting = self.reset_refused = False
        self.ended, self.launches = Waiters(self.simulator), Waiters(self.simulator)
        self.calm = self.at_rest = self.sent_all = False
        self.idle_rounds, self.rows, self.launched, self.twins = 4, 6, 0, 0

    def draw(self) -> Plan:
        return drawn_plan(self.choices)

    def run(self) -> None:
        with installed(self):
            Process(self.simulator, "producer").spawn("produce", self._produce)
            self.run_operators()
            if self.plan.ledger:
                Rival(self)
            Trouble(self)
            try:
                self.simulator.run(self.simulator.now + self.plan.storm + CALM, lambda: self.at_rest)
                if not self.simulator.violations:
                    self.check_end()
            finally:
                self.simulator.close()

    def run_operators(self) -> None:
        Process(self.simulator, "operator").spawn("operate", self._operate)

    def check_end(self) -> None:
        self.checks.at_end()

    # The producer.

    def _produce(self) -> None:
        for number in range(self.plan.messages):
            self.simulator.sleep(self.choices.one_of((0.01, 0.01, 5.0, 40.0)))
            self._send(number)
            if self.plan.ledger and self.choices.chance(0.2):
                self._send(number)
        self.sent_all = True

    def _send(self, number: int) -> None:
        key = f"k{number}"
        attribute = {"DataType": "String", "StringValue": key}
        params: dict[str, Any] = {
            "QueueUrl": url(self.plan.queue),
            "MessageBody": "body",
            "MessageAttributes": {"idempotency-key": attribute},
        }
        if self.plan.fifo:
            params |= {"MessageGroupId": f"g{number % 2}", "MessageDeduplicationId": key}
        while not self.broker.up:
            self.simulator.sleep(5.0)
        answer = self.broker.perform("SendMessage", orjson.dumps(params))
        self.broker.names[answer["MessageId"]] = key
        self.simulator.note("producer", "sends", key)
        self.checks.on_send(key, answer["MessageId"])

    # The operator: starts drivers, reads errors, resets.

    def _operate(self) -> None:
        refused = 0
        while True:
            while self.resetting:
                self.simulator.sleep(10.0)
            if "second driver" in self.plan.events and not self.calm and self.choices.chance(self.plan.rivals):
                self.facts["two drivers at once"] += 1
                self.start_driver()
            driver = self.start_driver()
            if self.is_taken_for_dead(driver):
                continue
            self.after_death(driver)
            if driver.started_calm and driver.started_alone and driver.idle and self._is_done():
                self.at_rest = True
                return
            refused = refused + 1 if driver.error is not None and kind_of(driver.error) == "other" else 0
            if refused >= 2 or (refused and self.choices.chance(0.5)):
                refused = 0
                self.reset_pipeline()
            self.simulator.sleep(self.choices.one_of(RESTART) if not self.calm else 30.0)

    def is_taken_for_dead(self, driver: Driver) -> bool:
        """Wait until the driver ends. If it stands still, the operator may take it for dead and start another one; then
        both run. Returns whether that happened."""
        while driver.running:
            self.ended.wait(30.0)
            if driver.running and driver.process.paused_until > self.simulator.now and self.choices.chance(0.3):
                self.facts["taken for dead"] += 1
                driver.process.note("is taken for dead")
                return True
        return False

    def _is_done(self) -> bool:
        return self.sent_all and self.queue_is_empty and not any(driver.running for driver in self.drivers)

    def start_driver(self) -> Driver:
        driver = Driver(self, f"driver{len(self.drivers) + 1}")
        self.drivers.append(driver)
        driver.start()
        return driver

    def after_death(self, driver: Driver) -> None:
        """Note its error. Attempts that it has left may go on for a while."""
        error = driver.error
        if error is not None:
            self.refusals.append(error)
            self.damage_seen |= isinstance(error, SegmentDamaged)
        self.leave_attempts(driver)

    def leave_attempts(self, driver: Driver) -> None:
        for attempt in driver.attempts:
            if attempt.process.alive:
                self.leave(attempt.process)
        driver.attempts = []

    def leave(self, process: Process) -> None:
        """Nobody waits for this attempt any more. Spark kills it, but the kill may not reach it."""
        if process.alive and process is not self.simulator.task.process and not self.choices.chance(0.3):
            process.kill()

    def end_attempts(self) -> None:
        for driver in self.drivers:
            for attempt in driver.attempts:
                attempt.process.kill()

    def reset_pipeline(self) -> None:
        """Reset the pipeline in a process of its own; if that dies, it is run again. No driver starts meanwhile."""
        if self.resetting:
            return
        self.resetting = True
        for driver in self.drivers:
            if driver.running and not driver.process.paused_until > self.simulator.now:
                driver.process.kill()
                self.after_death(driver)
        for _ in range(10):
            process = SparkProcess(self.simulator, "reset", mortal=not self.calm)
            self.facts["resets"] += 1
            task = process.spawn("main", partial(run_reset, self, process))
            while process.alive and not task.greenlet.dead:
                self.simulator.sleep(2.0)
            if process.alive:
                break
        self.resetting = False

    def deploy(self) -> None:
        ack = self.choices.one_of(("sealed", "committed"))
        self.settings = self.plan.options(ack, 1 + self.choices.below(3), VISIBILITIES[self.choices.below(2)])
        self.simulator.note("operator", "deploys", ack, self.settings.receivers, self.settings.visibility)

    def calm_down(self) -> None:
        self.simulator.note("trouble", "is over")
        broker = self.broker
        for faults in (broker.faults, broker.service_faults, self.store_faults, self.sink_faults, self.ledger_faults):
            faults.on = False
        self.perils.calm_down()
        broker.come_back()
        self.bucket.away = self.bucket.full = self.table.away = self.outage.down = False
        self.calm, self.idle_rounds = True, 2

    # What processes use.

    def store(self, process: SparkProcess, prefix: str = "", bucket: Bucket | None = None) -> SimulatedStore:
        made = SimulatedStore(bucket or self.bucket, process, self.perils, self.store_faults, prefix)
        made.on_create = self.checks.on_create
        return made

    def checkpoint(self, store: SimulatedStore) -> Checkpoint:
        self.opening = store
        return Checkpoint(store.url)

    def sinks(self, process: SparkProcess) -> tuple[SimulatedSink, SimulatedSink]:
        return (
            SimulatedSink(self.table, process, self.perils, self.sink_faults),
            SimulatedSink(self.rejects, process, self.perils, self.sink_faults),
        )

    def connected(self, writer: Writer, process: SparkProcess) -> Writer:
        """The writer, with a connection of this process."""
        return cast("SimulatedWriter", writer).connected(process, self.perils, self.sink_faults)

    def as_rows(self, table: pa.Table) -> pa.RecordBatch:
        return as_rows(table, self.broker.names)

    def queue(self, process: SparkProcess) -> Queue:
        client = SparkClient(self.broker, process, self.perils)
        queue = client.queue(self.plan.queue)
        queue.set_url(url(self.plan.queue))
        queue._scope = f"us-east-1:{ACCOUNT}:{self.plan.queue}"
        return queue

    def connected_ledger(self, process: SparkProcess) -> SparkLedger:
        assert self.ledger is not None
        assert self.observer is not None
        return SparkLedger(self.ledger, self.observer, process, self.ledger_faults, self.outage, self.perils)

    def claims_for(self, ledger: str | None, queue: Queue, lease: float) -> KeyClaims:
        if ledger is None:
            return KeyClaims()
        process = self.simulator.task.process
        assert isinstance(process, SparkProcess)
        return LedgerClaims(self.connected_ledger(process), queue, lease)

    def skew(self) -> float:
        return self.choices.one_of(self.plan.skews)

    def another_disk(self) -> Bucket | None:
        return (
            Bucket(self.broker.names)
            if self.plan.another_disk and not self.calm and self.choices.chance(0.15)
            else None
        )

    def idle_seconds(self) -> float:
        return self.choices.one_of((5.0, 1.0, 20.0)) if not self.calm else 30.0

    def watch(self, planner: Planner) -> None:
        """Some planners do not trust the queue's counts, and poll. They seal themselves what they then receive."""
        planner._counts_hold = not self.choices.chance(0.3)

    def shown(self, error: SemelError) -> str:
        return str(error).partition(":")[0][:60]

    # What the checks ask for.

    def ledger_key(self, key: str) -> str:
        return scoped(f"us-east-1:{ACCOUNT}:{self.plan.queue}", key)

    @property
    def queue_is_empty(self) -> bool:
        return not any(self.broker.counts(self.plan.queue))

    def keys_in_queue(self) -> set[str]:
        return {self.broker.names[message["MessageId"]] for message in self.broker.messages(self.plan.queue)}


def spark_world(choices: Choices) -> Outcome:
    return outcome_of(SparkWorld(choices))


def outcome_of(world: SparkWorld) -> Outcome:
    world.run()
    simulator = world.simulator
    facts = world.facts + Counter(
        {
            "drivers": len(world.drivers),
            "attempts": world.launched,
            "twins": world.twins,
            "refusals": len(world.refusals),
            "killed": sum(not driver.ended for driver in world.drivers),
            "rows": len(world.table.rows) + len(world.rejects.rows),
        }
    )
    return Outcome(simulator.timeline, simulator.violations, world.choices.decisions, facts)

"""The events of one schedule of the consumer: crashes, pauses, outages, deploys, and what operators do.

A method is the event of the same name in `consumer_plan.EVENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from semel.dlq.messages import DeadLetterMessage
from semel.dlq.redrive.sender import entry_back
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.sqs import Client, Received, Sent
from semel.sqs.errors import SqsError
from semel.verify.history import EventKind
from simulation.broker import arn
from simulation.consumer_plan import LEASE
from simulation.simulator import Process

if TYPE_CHECKING:
    from simulation.consumer_worker import Worker
    from simulation.consumer_world import World

BETWEEN: Final = (1.0, 0.2, 4.0, 11.0, 31.0)  # seconds between two events
PAUSES: Final = (LEASE * 0.5, LEASE * 0.9, LEASE + 1.0, LEASE * 2.5)
DOWNTIMES: Final = (0.5, 5.0, 20.0, 70.0)
MOST_WORKERS: Final = 5  # with more workers in a schedule there is no further deploy: starting a worker is slow
MOST_PAGES: Final = 1_073_741_823


class Trouble:
    """One event after the other, until the time in the plan is over. Then everything is repaired."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.simulator = world.simulator
        self.choices = world.choices
        self.process = Process(world.simulator, "trouble")
        self._copies: list[Received] = []  # of dead-letter messages that were deleted
        self.process.spawn("trouble", self._run)

    def _run(self) -> None:
        ends = self.simulator.now + self.world.plan.trouble
        events = self.world.plan.events
        while events and self.simulator.now < ends:
            self.simulator.sleep(self.choices.one_of(BETWEEN))
            event = self.choices.one_of(("", "", *events))
            if event:
                self.world.counts[event] += 1
                getattr(self, event.replace(" ", "_"))()
        self.simulator.sleep(max(0.0, ends - self.simulator.now))
        self._end()

    def _end(self) -> None:
        world = self.world
        self.process.note("is over")
        world.broker.faults.on = world.broker.service_faults.on = world.ledger_faults.on = False
        world.broker.come_back()
        world.broker.fill_disk(False)
        self._make_room()
        world.outage.down = False
        if not any(worker.process.alive and not worker.stopping for worker in world.workers.values()):
            world.start_worker()
        world.calm = True

    def _after(self, seconds: tuple[float, ...], what: str, run: partial[None]) -> None:
        self.process.spawn(what, run, self.choices.one_of(seconds))

    # Workers.

    def _some_worker(self) -> Worker | None:
        alive = [worker for process, worker in self.world.workers.items() if process.alive]
        return self.choices.one_of(alive) if alive else None

    def kill_worker(self) -> None:
        if worker := self._some_worker():
            worker.process.kill()
            self._after((0.1, 5.0, 40.0), "replacement", partial(self.world.start_worker))

    def pause_worker(self) -> None:
        if worker := self._some_worker():
            worker.process.pause(self.choices.one_of(PAUSES))

    def stop_worker(self) -> None:
        if worker := self._some_worker():
            worker.stop(drain=25.0)
            self._after((30.0, 1.0), "end", partial(worker.process.kill))
            self._after((0.1, 5.0), "replacement", partial(self.world.start_worker))

    def deploy(self) -> None:
        """New workers start with other settings, while the old ones are still stopping."""
        if len(self.world.workers) > MOST_WORKERS:
            return
        for worker in [worker for process, worker in self.world.workers.items() if process.alive]:
            worker.stop(drain=15.0)
            self._after((20.0,), "end", partial(worker.process.kill))
            self.world.start_worker()

    # Servers.

    def broker_crash(self) -> None:
        self.world.broker.crash(power_cut=False)
        self._after(DOWNTIMES, "broker starts", partial(self.world.broker.come_back))

    def power_cut(self) -> None:
        self.world.broker.crash(power_cut=True)
        self._after(DOWNTIMES, "broker starts", partial(self.world.broker.come_back))

    def ledger_outage(self) -> None:
        self.simulator.note("ledger", "is away")
        self.world.outage.down = True
        self._after(DOWNTIMES, "ledger is back", partial(self._ledger_is_back))

    def _ledger_is_back(self) -> None:
        self.simulator.note("ledger", "is back")
        self.world.outage.down = False

    def broker_disk_full(self) -> None:
        self.world.broker.fill_disk(True, noticed=not self.choices.below(2))
        self._after(DOWNTIMES, "room", partial(self.world.broker.fill_disk, False))

    def ledger_disk_full(self) -> None:
        if isinstance(self.world.ledger, SqliteLedger):
            self.simulator.note("ledger", "disk is full")
            (pages,) = self.world.ledger._writer.connection.execute("PRAGMA page_count").fetchone()
            self._make_room(pages)
            self._after(DOWNTIMES, "room", partial(self._make_room))

    def _make_room(self, pages: int = MOST_PAGES) -> None:
        if isinstance(self.world.ledger, SqliteLedger):
            self.world.ledger._writer.connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    # Operators. Each of them is a process that may die before it has finished.

    def _operator(self, work: Callable[[Process, Client], None]) -> None:
        operator = Process(self.simulator, "operator")
        client = self.world.broker.client(operator)

        def run() -> None:
            try:
                work(operator, client)
            except SqsError as error:
                operator.note("gives up:", type(error).__name__)

        operator.spawn("operator", run)
        if self.choices.chance(0.2):
            self._after((0.01, 0.05, 0.3), "operator dies", partial(operator.kill))

    def move_task(self) -> None:
        """An operator starts a move task: SQS itself moves all dead-letter messages back."""
        plan = self.world.plan
        params = {"SourceArn": arn(plan.dead_letters), "DestinationArn": arn(plan.queue)}
        self._operator(lambda _operator, client: _nothing(client.call("StartMessageMoveTask", params)))

    def redrive(self) -> None:
        """Semel's own redrive: it sends the copy first, then deletes the message."""
        self._operator(partial(self._send_back, edited=False))

    def edit(self) -> None:
        self._operator(partial(self._send_back, edited=True))

    def _send_back(self, _operator: Process, client: Client, *, edited: bool) -> None:
        plan = self.world.plan
        dead_letters, target = client.queue(plan.dead_letters), client.queue(plan.queue)
        for message in dead_letters.receive(3, 0, visibility=60):
            entry = entry_back(DeadLetterMessage.of(message, plan.dead_letters), fifo=plan.fifo)
            assert entry is not None
            if edited:
                entry = replace(entry, body=message.body.replace("}", ', "edited": true}'))
            (outcome,) = target.send_many([entry])
            if isinstance(outcome, Sent):
                dead_letters.delete([message.receipt])

    def drop(self) -> None:
        """An operator deletes a dead-letter message, and keeps a copy."""
        self._operator(self._delete_one)

    def _delete_one(self, _operator: Process, client: Client) -> None:
        queue = client.queue(self.world.plan.dead_letters)
        for message in queue.receive(1, 0, visibility=5):
            self._copies.append(message)
            self.world.log(EventKind.REFUSE, self.world.key_of(message.body), detail="dropped by an operator")
            queue.delete([message.receipt])

    def restore(self) -> None:
        """An operator sends the messages that were dropped to their source queue again."""
        self._operator(self._send_copies)

    def _send_copies(self, _operator: Process, client: Client) -> None:
        plan = self.world.plan
        target = client.queue(plan.queue)
        while self._copies:
            copy = self._copies[0]
            entry = entry_back(DeadLetterMessage.of(copy, plan.dead_letters), fifo=plan.fifo)
            assert entry is not None
            (outcome,) = target.send_many([entry])
            if not isinstance(outcome, Sent):
                return
            self._copies = [other for other in self._copies if other is not copy]


def _nothing(_answer: object) -> None:
    pass

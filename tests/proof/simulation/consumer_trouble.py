"""What machines, networks and people do to the consumer in one schedule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from semel.ledger.sqlite.ledger import SqliteLedger
from semel.sqs.errors import SqsError
from simulation.broker import arn
from simulation.consumer_plan import LEASE
from simulation.simulator import Process

if TYPE_CHECKING:
    from simulation.consumer_worker import Worker
    from simulation.consumer_world import World

BETWEEN: Final = (1.0, 0.2, 4.0, 11.0, 31.0)  # seconds between two events
PAUSES: Final = (LEASE * 0.5, LEASE * 0.9, LEASE + 1.0, LEASE * 2.5)
DOWNTIMES: Final = (0.5, 5.0, 20.0, 70.0)
MOST_PAGES: Final = 1_073_741_823


class Trouble:
    """One event after the other, until the time that the plan allows is over; then everything is well again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.simulator = world.simulator
        self.choices = world.choices
        self.process = Process(world.simulator, "trouble")
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
            worker.stop()
            self._after((25.0, 1.0), "end", partial(worker.process.kill))
            self._after((0.1, 5.0), "replacement", partial(self.world.start_worker))

    def deploy(self) -> None:
        """All workers are replaced, side by side with the old ones, with other settings."""
        for worker in [worker for process, worker in self.world.workers.items() if process.alive]:
            worker.stop()
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
        self.world.broker.fill_disk(True)
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

    # Operators.

    def redrive(self) -> None:
        """SQS is told to move all dead-letter messages back."""
        self._after((0.0,), "redrive", partial(self._move_back, Process(self.simulator, "operator")))

    def _move_back(self, operator: Process) -> None:
        plan = self.world.plan
        params = {"SourceArn": arn(plan.dead_letters), "DestinationArn": arn(plan.queue)}
        try:
            self.world.broker.client(operator).call("StartMessageMoveTask", params)
        except SqsError as error:
            operator.note("redrive failed:", type(error).__name__)

    def drop(self) -> None:
        """A dead-letter message is deleted."""
        self._after((0.0,), "drop", partial(self._delete_one, Process(self.simulator, "operator")))

    def _delete_one(self, operator: Process) -> None:
        queue = self.world.broker.client(operator).queue(self.world.plan.dead_letters)
        try:
            for message in queue.receive(1, 0, visibility=5):
                self.world.dropped.add(self.world.key_of(message.body))
                queue.delete([message.receipt])
        except SqsError as error:
            operator.note("drop failed:", type(error).__name__)

"""One queue with its handler inside a process: the line that its messages go down.

    receiver -> claimer -> scheduler -> worker -> [dead-letter sender] -> recorder -> acknowledger
                                                                                      (or returner)
Each stage has an inbox, and puts its messages into the inbox of the next one. The table of deliveries in flight knows
the state of each message. The line is closed in this order, so that nothing is put into an inbox that nobody empties
any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from semel.consumer.acknowledger import Acknowledger, Returner
from semel.consumer.circuit_breaker import CircuitBreaker
from semel.consumer.claimer import Claimer
from semel.consumer.dead_letter_sender import DeadLetterSender
from semel.consumer.delivery import Delivery
from semel.consumer.handler_caller import HandlerCaller
from semel.consumer.in_flight import Inboxes, InFlight
from semel.consumer.lifecycle import LEASED, State
from semel.consumer.queue_reporter import QueueReporter
from semel.consumer.queue_setup import QueueSetup
from semel.consumer.receiver import Receiver
from semel.consumer.recorder import Recorder
from semel.consumer.scheduler import Scheduler
from semel.consumer.stage import Threads
from semel.consumer.worker import Worker
from semel.telemetry.metrics import QueueMetrics

AT_WORK: Final = LEASED - {State.CLAIMED}
SURPLUS_AFTER: Final = 1.0  # seconds that a message received ahead has waited, after which it may be returned


class QueueConsumer:
    def __init__(
        self,
        setup: QueueSetup,
        breaker: CircuitBreaker | None = None,
        *,
        on_received: Callable[[InFlight, list[Delivery]], None] = lambda _table, _chunk: None,
        on_returned: Callable[[InFlight, Delivery, float], None] = lambda _table, _delivery, _seconds: None,
        on_commit: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda _error: None,
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
        wait: int | None = None,
    ) -> None:
        """`loop`: where async handlers run; `wait`: seconds of a long poll, instead of the setting."""
        tools = setup.tools
        breaker = breaker or CircuitBreaker(tools.monotonic, tools.chance)
        self.setup = setup
        self.name = setup.name
        self.reporter = QueueReporter(setup, breaker.report, on_fatal)
        self.threads = threads = Threads(setup.name, on_fatal, tools.monotonic)
        self.scheduler = Scheduler(setup)
        self.in_flight = InFlight(setup, self.reporter, self.scheduler, on_received, on_returned)
        self.acknowledger = Acknowledger(self.in_flight, threads)
        self.returner = Returner(self.in_flight, threads)
        self.recorder = Recorder(self.in_flight, threads)
        self.dead_letter_sender = DeadLetterSender(self.in_flight, threads)
        self.in_flight.inboxes = Inboxes(
            self.recorder.inbox, self.dead_letter_sender.inbox, self.acknowledger.inbox, self.returner.inbox
        )
        caller = HandlerCaller(self.in_flight, on_commit)
        self.worker = Worker(self.in_flight, threads, self.scheduler, caller, loop=loop, on_fatal=on_fatal)
        self.claimer = Claimer(self.in_flight, threads, self.scheduler)
        self.receiver = Receiver(
            self.in_flight, threads, self.claimer.inbox, self.acknowledger.inbox, breaker, wait=wait
        )

    @property
    def metrics(self) -> QueueMetrics:
        return self.setup.metrics

    def start(self) -> None:
        for stage in (self.claimer, self.recorder, self.dead_letter_sender, self.acknowledger, self.returner):
            stage.start()
        self.worker.start()
        self.receiver.start()

    def set_concurrency(self, count: int) -> None:
        """Change the concurrency while the queue is consumed. If it is lowered, what is in flight goes on, and nothing
        is received until there is less of it."""
        self.in_flight.resize(count)
        self.worker.fit()

    def fit(self) -> None:
        """Called now and then. If handlers run for longer than before, fewer messages are received ahead, and messages
        that have waited too long are returned, for another worker to start."""
        now = self.setup.tools.monotonic()
        at_work = [d for d in list(self.in_flight.deliveries.values()) if d.state is State.WORKING]
        running = sum(now - delivery.started_at for delivery in at_work) / len(at_work) if at_work else 0.0
        self.in_flight.prefetch.running = running
        self.in_flight.fit()
        ahead = self.in_flight.admission.count - self.in_flight.admission.handlers
        if surplus := self.scheduler.surplus(ahead, now - SURPLUS_AFTER):
            self.receiver.restart()  # polls that began with more slots would only receive them again
            self.in_flight.give_up(surplus)

    def at_work(self) -> int:
        """Messages that were started and are not recorded yet."""
        return sum(1 for delivery in list(self.in_flight.deliveries.values()) if delivery.state in AT_WORK)

    def dead_stages(self) -> list[str]:
        """Stages that are needed but have no thread, so that nothing passes them."""
        if self.in_flight.stopping:
            return []
        stages = (self.claimer, self.recorder, self.dead_letter_sender, self.acknowledger, self.returner)
        dead = [stage.role for stage in stages if stage.is_dead()]
        return [*dead, "start"] if self.worker.is_dead() else dead

    # The end.

    def stop_receiving(self) -> None:
        self.receiver.stop()

    def give_up(self) -> None:
        """Return all messages that were not started."""
        self.in_flight.give_up(list(self.in_flight.deliveries.values()))

    def close(self, deadline: float) -> None:
        """Let everything that is done reach the ledger and SQS, stage by stage."""
        self.receiver.close(deadline)
        self.claimer.close(deadline)
        self.worker.close(deadline)
        self.dead_letter_sender.close(deadline)
        self.recorder.close(deadline)
        self.acknowledger.close(deadline)
        self.returner.close(deadline)

"""What is needed to consume one queue: its handler and settings, the ledger, and the clocks and logs of the process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from semel.consumer import clock
from semel.consumer.handler import Handler
from semel.consumer.settings import Settings
from semel.ledger.contract import Ledger
from semel.telemetry.attempt_log import AttemptLog
from semel.telemetry.metrics import Metrics, QueueMetrics

if TYPE_CHECKING:
    from semel.sqs import Queue


def no_crash(_point: str) -> None:
    pass


@dataclass
class Tools:
    """Shared by all queues of a process: clocks, randomness, metrics, the attempt log, and crash points for tests."""

    monotonic: Callable[[], float] = clock.monotonic  # goes on while the machine is suspended
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    metrics: Metrics = field(default_factory=Metrics)
    log: AttemptLog | None = None
    worker: str = "worker"
    crash: Callable[[str], None] = no_crash
    _calls: count[int] = field(default_factory=count)

    def claimant(self) -> str:
        """A name for one claim call, used by no other call of this or any other worker."""
        return f"{self.worker}/{next(self._calls)}"


@dataclass(eq=False)
class QueueSetup:
    """`delete_linger`: seconds that a delete waits for others to fill its call; None is the acknowledger's default."""

    handler: Handler
    settings: Settings
    queue: Queue
    dead_letters: Queue | None
    ledger: Ledger
    tools: Tools
    delete_linger: float | None = None

    def __post_init__(self) -> None:
        self.name: str = self.queue.name
        self.scope: str = self.queue.scope  # distinguishes this queue's keys from those of others in the ledger
        self.fifo: bool = self.queue.fifo
        self.metrics: QueueMetrics = self.tools.metrics.queue(self.name)

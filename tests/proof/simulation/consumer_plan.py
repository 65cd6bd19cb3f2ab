"""The plan of one schedule of the consumer: the kind of queue and handler, the number of workers, and the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulation.broker import Queues, redrive_policy
from simulation.choices import Choices

LEASE: Final = 30
EVENTS: Final = (
    "kill worker",
    "pause worker",
    "stop worker",
    "deploy",
    "broker crash",
    "power cut",
    "ledger outage",
    "broker disk full",
    "ledger disk full",
    "move task",
    "redrive",
    "edit",
    "drop",
    "restore",
)


@dataclass(frozen=True)
class Plan:
    """Drawn from the seed."""

    fifo: bool
    transactional: bool
    batch: bool
    sends: bool  # the handler sends a message with its transaction
    groups: int  # of a FIFO queue
    workers: int
    keys: int
    receives: int  # the maxReceiveCount, after which SQS itself dead-letters
    trouble: float  # for how many seconds events happen
    events: tuple[str, ...]

    @property
    def queue(self) -> str:
        return "orders.fifo" if self.fifo else "orders"

    @property
    def dead_letters(self) -> str:
        return "dead.fifo" if self.fifo else "dead"

    @property
    def receipts(self) -> str:
        return "receipts.fifo" if self.fifo else "receipts"

    def group(self, key: str) -> str:
        return f"g{int(key[1:]) % self.groups}" if self.fifo else ""

    def queues(self) -> Queues:
        fifo = (("FifoQueue", "true"),) if self.fifo else ()
        policy = redrive_policy(self.dead_letters, self.receives)
        return (
            (self.dead_letters, fifo),
            (self.receipts, fifo),
            (self.queue, (*fifo, ("VisibilityTimeout", str(LEASE)), ("RedrivePolicy", policy))),
        )


def drawn_plan(choices: Choices, *, transactions: bool = True) -> Plan:
    """`transactions`: whether the ledger supports transactions (`tx`)."""
    transactional = choices.chance(0.5) and transactions
    return Plan(
        fifo=choices.chance(0.4),
        transactional=transactional,
        batch=choices.chance(0.2),
        sends=choices.chance(0.3) and transactional,
        groups=1 + choices.below(2),
        workers=1 + choices.below(3),
        keys=1 + choices.below(5),
        receives=choices.one_of((1_000, 1_000, 8, 3)),
        trouble=choices.one_of((30.0, 60.0, 120.0, 200.0)),
        events=tuple(name for name in EVENTS if choices.chance(0.25)),
    )

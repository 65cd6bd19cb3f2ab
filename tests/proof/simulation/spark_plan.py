"""The plan of one schedule of the Spark world: its queue, its settings, and the events that can happen in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.spark.source.options import ReadOptions
from simulation.broker import Queues
from simulation.choices import Choices

LEDGER: Final = "sqlite://"
SKEWS: Final = (0.0, 2.0, -2.0, 170.0, -170.0)
# What people and machines do. Faults of single calls come in addition.
EVENTS: Final = (
    "broker crashes",
    "store is away",
    "sink is away",
    "disk is full",
    "kill driver",
    "pause driver",
    "second driver",
    "other settings",
    "lose query",
    "restore progress",
    "reset",
)
OFTEN: Final = ("pause driver", "second driver")  # much of what can go wrong takes two drivers
DESTRUCTIVE: Final = ("lose segment", "restore checkpoint")  # after these, some promises no longer hold


@dataclass(frozen=True)
class Plan:
    focus: str
    fifo: bool
    ledger: bool
    messages: int
    storm: float  # for how many seconds faults and events happen
    ack: str
    columns: tuple[str, ...] | None
    events: tuple[str, ...]
    skews: tuple[float, ...]  # of the machines' clocks
    another_disk: bool  # some executors see a disk of their own in the place of the log
    forgetful: bool  # SQS ignores a delete with a receipt handle that is not the newest
    available_now: bool  # some drivers process what is there at their start, and end

    @property
    def rivals(self) -> float:
        """How often a second driver is started beside the first, if the plan has this event."""
        return 0.8 if self.focus == "drivers" else 0.4

    @property
    def queue(self) -> str:
        return "orders.fifo" if self.fifo else "orders"

    def queues(self) -> Queues:
        attributes = (("FifoQueue", "true"),) if self.fifo else ()
        return ((self.queue, attributes),)

    def options(self, ack: str, receivers: int, visibility: int) -> ReadOptions:
        return ReadOptions(
            queues=(self.queue,),
            segments="s3://bucket/segments",
            receivers=receivers,
            threads=1,
            max_seconds=5.0,
            visibility=visibility,
            ack=ack,
            dedup="ledger" if self.ledger else "segments",
            ledger=LEDGER if self.ledger else None,
            columns=self.columns,
        )


def drawn_plan(choices: Choices) -> Plan:
    """Some schedules have a focus: one thing that happens often in them. Among everything else it would be too rare."""
    focus = choices.one_of(("", "", "", "", "deletes", "drivers", "available now", "damage"))
    often = 0.9 if focus == "drivers" else 0.4
    rarely = 0.1 if focus else 0.25
    return Plan(
        focus=focus,
        fifo=choices.below(5) == 4 and not focus,
        ledger=choices.below(5) == 4 and not focus,
        messages=3 + choices.below(8),
        storm=choices.one_of((120.0, 240.0, 400.0)),
        ack=choices.one_of(("sealed", "committed")),
        columns=choices.one_of((None, ("body",))),
        events=(
            *(event for event in EVENTS if choices.chance(often if event in OFTEN else rarely)),
            *(event for event in DESTRUCTIVE if choices.chance(0.8 if focus == "damage" else 0.2)),
        ),
        skews=(0.0, choices.one_of(SKEWS), choices.one_of(SKEWS)),
        another_disk=choices.chance(0.15),
        forgetful=choices.chance(0.95 if focus else 0.6),
        available_now=focus == "available now" or choices.chance(0.1),
    )

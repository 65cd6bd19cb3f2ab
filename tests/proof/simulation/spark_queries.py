"""Two queries without a name on one segment log: two writeStreams from one DataFrame, or one whose checkpoint was lost.
One of them must be refused, and no message may be lost or read twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from semel.spark.pipeline import agreement
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.segments.segment_log import OtherQuery, SegmentLog
from simulation.choices import Choices
from simulation.search import Outcome
from simulation.simulator import Process
from simulation.spark_driver import Driver
from simulation.spark_plan import Plan
from simulation.spark_store import SEGMENTS
from simulation.spark_world import RESTART, SparkWorld, outcome_of

MACHINES: Final = ("broker crashes", "store is away", "sink is away", "disk is full", "kill driver", "pause driver")


class QueryDriver(Driver):
    """A query of a user. It has a checkpoint of its own, but may share the segment log."""

    def __init__(self, world: SparkWorld, query: str, name: str) -> None:
        super().__init__(world, name)
        self.query = query

    def run(self) -> None:
        world = self.world
        log = SegmentLog(world.store(self.process, SEGMENTS))
        self.planner = self.planner_of(None, log)
        run = Batches(self.query, *world.sinks(self.process), agreement.DriverLog(log), lambda *_: None)
        self.spark(world.store(self.process, f"{self.query}/"), self.planner, run)


class QueriesWorld(SparkWorld):
    def draw(self) -> Plan:
        plan = super().draw()
        return replace(plan, ledger=False, events=tuple(event for event in plan.events if event in MACHINES))

    def run_operators(self) -> None:
        self.refused: list[str] = []
        self.resting: set[str] = set()
        for query in ("a", "b"):
            Process(self.simulator, f"operator-{query}").spawn("operate", partial(self._run_query, query))

    def _run_query(self, query: str) -> None:
        life = 0
        self.simulator.sleep(self.choices.one_of((0.0, 0.0, 5.0, 60.0)))
        while query not in self.refused:
            life += 1
            driver = QueryDriver(self, query, f"query-{query}{life}")
            self.drivers.append(driver)
            driver.start()
            while driver.running:
                self.ended.wait(30.0)
            self.after_death(driver)
            if isinstance(driver.error, OtherQuery):
                self.refused.append(query)
            elif driver.started_calm and driver.idle and self.queue_is_empty:
                break
            self.simulator.sleep(self.choices.one_of(RESTART) if not self.calm else 30.0)
        self.resting.add(query)
        self.at_rest = len(self.resting) == 2 and self.calm

    def check_end(self) -> None:
        """Messages that the refused query had received must be in the log or in the queue."""
        rest = self.keys_in_queue().union(*self.bucket.sealed.values(), self.checks.committed)
        for key in sorted(self.checks.accepted - rest):
            self.simulator.violate("lost", f"{key} is in no table, no segment and no queue")
        if len(self.refused) > 1 or len(self.table.commits) > 1:
            self.simulator.violate("not refused", f"refused were {self.refused} of two queries on one log")


def queries_world(choices: Choices) -> Outcome:
    return outcome_of(QueriesWorld(choices))

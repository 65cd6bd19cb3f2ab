"""The events of one schedule of a pipeline: crashes, outages, restored copies, resets, deploys.

A method is the event of the same name in `spark_plan.EVENTS` or `spark_plan.DESTRUCTIVE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.errors import SemelError
from semel.spark.pipeline import agreement
from semel.spark.pipeline.checkpoint import CheckpointError
from semel.spark.segments.segment_log import SegmentLog
from simulation.simulator import Process
from simulation.spark_store import SEGMENTS, SparkProcess

if TYPE_CHECKING:
    from simulation.spark_driver import Driver
    from simulation.spark_world import SparkWorld

BETWEEN: Final = (20.0, 3.0, 9.0, 45.0)
DOWN: Final = (3.0, 20.0, 70.0)
PAUSES: Final = (10.0, 45.0, 130.0)


class Trouble:
    def __init__(self, world: SparkWorld) -> None:
        self.world, self.simulator, self.choices = world, world.simulator, world.simulator.choices
        self.process = Process(world.simulator, "trouble")
        self.copies: list[dict[str, bytes]] = []
        self.process.spawn("trouble", self._run)

    def _run(self) -> None:
        ends = self.simulator.now + self.world.plan.storm
        events = self.world.plan.events
        while events and self.simulator.now < ends:
            self.simulator.sleep(min(self.choices.one_of(BETWEEN), ends - self.simulator.now))
            event = self.choices.one_of(("", *events))
            if event:
                self.world.facts[event] += 1
                getattr(self, event.replace(" ", "_"))()
        self.simulator.sleep(max(0.0, ends - self.simulator.now))
        self.world.calm_down()

    def _for_a_while(self, thing: object, name: str, text: str) -> None:
        self.process.note(text)
        setattr(thing, name, True)

        def end() -> None:
            if getattr(thing, name):
                self.process.note("no longer:", text)
                setattr(thing, name, False)

        self.process.spawn("end", end, self.choices.one_of(DOWN))

    # Machines.

    def broker_crashes(self) -> None:
        broker = self.world.broker
        if broker.up:
            broker.crash(power_cut=self.world.plan.ledger and self.choices.chance(0.5))
            self.process.spawn("back", broker.come_back, self.choices.one_of(DOWN))

    def store_is_away(self) -> None:
        self._for_a_while(self.world.bucket, "away", "the store is away")

    def disk_is_full(self) -> None:
        self._for_a_while(self.world.bucket, "full", "the disk is full")

    def sink_is_away(self) -> None:
        self._for_a_while(self.world.table, "away", "the sink is away")

    def kill_driver(self) -> None:
        for driver in self._running():
            driver.process.kill()
            self.world.after_death(driver)

    def pause_driver(self) -> None:
        for driver in self._running():
            driver.process.pause(self.choices.one_of(PAUSES))

    def second_driver(self) -> None:
        """A second driver starts with the same checkpoint: nothing locks a checkpoint in S3."""
        if not self.world.resetting:
            self.world.start_driver()

    def _running(self) -> list[Driver]:
        return [driver for driver in self.world.drivers if driver.running]

    # People.

    def other_settings(self) -> None:
        """They apply from the next start of a driver."""
        self.world.deploy()

    def lose_segment(self) -> None:
        """Remove an acknowledged segment. (Without an ack, nothing would show that a segment is missing.)"""
        bucket, checks = self.world.bucket, self.world.checks
        acked = [
            name
            for name in sorted(bucket.sealed)
            if any(other.startswith(name.removesuffix("seg")) and other.endswith(".ack") for other in bucket.files)
        ]
        if acked:
            name = self.choices.one_of(acked)
            checks.excused |= bucket.sealed[name]
            checks.lost_segments |= bucket.sealed[name]
            self.process.note("removes", name)
            bucket.delete([name])

    def lose_query(self) -> None:
        self._stopped()
        self.process.note("removes query/")
        self.world.bucket.delete(self.world.bucket.names("query/"))

    def _copied(self) -> bool:
        """Stop the drivers. Returns True if this event makes a copy for later, as the first one does, False if it is to
        restore one."""
        self._stopped()
        if self.copies and not self.choices.chance(0.2):
            return False
        if "pipeline.json" in self.world.bucket.files:  # without it, there is no checkpoint yet
            self.process.note("copies the checkpoint")
            self.copies.append(self.world.bucket.copy())
        return True

    def restore_checkpoint(self) -> None:
        """All of it, with the log: later segments are gone, and later deletes are unknown to it."""
        if self.copies and self.choices.chance(0.7):  # while tasks are running, which do not notice it
            self.world.launches.wait(60.0)
            self.simulator.sleep(self.choices.one_of((0.002, 0.006, 0.02)))
            for driver in self._running():
                driver.attempts = []
            if self.choices.chance(0.5):
                self.other_settings()
        if self._copied():
            return
        self.world.checks.on_older_copy()
        self.process.note("restores an older checkpoint")
        self.world.end_attempts()
        self.world.bucket.restore(self.choices.one_of(self.copies))

    def restore_progress(self) -> None:
        """Only Spark's progress and the pipeline's record. The log stays as it is."""
        if self._copied():
            return
        bucket = self.world.bucket
        self.process.note("restores older progress")
        files = {name: data for name, data in bucket.files.items() if name.startswith(SEGMENTS)}
        older = self.choices.one_of(self.copies)
        files |= {name: data for name, data in older.items() if not name.startswith(SEGMENTS)}
        bucket.restore(files)

    def _stopped(self) -> None:
        """Stop the drivers. Their tasks may go on for a while."""
        for driver in self._running():
            driver.process.kill()
            self.world.after_death(driver)

    def reset(self) -> None:
        """Somebody resets a pipeline that does not need it."""
        self._stopped()
        self.world.reset_pipeline()


def run_reset(world: SparkWorld, process: SparkProcess) -> None:
    """`semel pipeline reset`."""
    checkpoint = world.checkpoint(world.store(process))
    log = SegmentLog(world.store(process, SEGMENTS))
    sinks = world.sinks(process)
    try:
        record = checkpoint.record()
        if record is None:
            return
        plan = agreement.plan_reset(checkpoint, record, log, sinks)
        process.note("resets: batch", plan.batch, "base", plan.base, "lost", *plan.lost)
        if plan.lost or plan.unknown:
            world.damage_seen = True  # the reset reports them
        for name in plan.dropped:  # reported, too
            world.checks.excused |= world.bucket.sealed.get(SEGMENTS + name, set())
        if plan.rejects_again:  # reported, too
            world.checks.rejects_again(plan.batch)
        agreement.reset(checkpoint, record, log, sinks, plan)
    except agreement.ResetOutdated:
        process.note("reset comes too late")
    except CheckpointError as error:
        process.note("reset is refused:", type(error).__name__)
        world.reset_refused = True
    except SemelError as error:
        process.note("reset fails:", type(error).__name__)

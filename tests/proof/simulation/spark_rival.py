"""A consumer beside the pipeline, on the same queue and with the same ledger. Only one of the two gets each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.ledger.contract import ClaimRequest, Completion, LedgerError, Status, Won
from semel.ledger.contract import Done as KnownDone
from semel.sqs.client import Received
from semel.sqs.errors import SqsError
from simulation.spark_store import SparkProcess

if TYPE_CHECKING:
    from simulation.spark_world import SparkWorld

LEASE = 60


class Rival:
    def __init__(self, world: SparkWorld) -> None:
        self.world = world
        self.process = SparkProcess(world.simulator, "rival", mortal=False)
        self.queue = world.queue(self.process)
        self.ledger = world.connected_ledger(self.process)
        self.process.spawn("main", self._run)

    def _run(self) -> None:
        world = self.world
        while not world.calm:
            world.simulator.sleep(world.choices.one_of((50.0, 10.0, 25.0)))
            try:
                for message in self.queue.receive(2, 0, visibility=LEASE):
                    self._handle(message)
            except (SqsError, LedgerError):
                continue

    def _handle(self, message: Received) -> None:
        key = str(message.attributes["idempotency-key"].value)
        request = ClaimRequest(self.world.ledger_key(key), source=f"orders/{message.message_id}")
        (verdict,) = self.ledger.claim([request], claimant="rival", lease=LEASE)
        match verdict:
            case Won(claim=claim):
                self.world.simulator.sleep(self.world.choices.one_of((0.1, 20.0, 80.0)))
                self.world.checks.tried.add(key)
                if self.ledger.record([Completion(claim, Status.DONE)])[0]:
                    self.process.note("handles", key)
                    self.world.checks.on_handled(key)
                    self.queue.delete([message.receipt])
            case KnownDone():
                self.queue.delete([message.receipt])

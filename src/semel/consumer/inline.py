"""A lane driven step by step by one caller, without threads: for tests, where the order of things matters.

It does what the threads do, with the same lane; only nothing happens that was not asked for, and a crash is an
exception that leaves everything just as a killed process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from semel.consumer import claiming, deadletters, outbound, outbox, settling, working
from semel.consumer.heartbeat import Heartbeat
from semel.consumer.lane import Lane, Settlement, Tools
from semel.ledger.contract import Ledger, LedgerError
from semel.sqs import Client

ROUNDS = 10_000


class Inline:
    def __init__(self, lanes: Sequence[Lane], ledger: Ledger, client: Client, tools: Tools) -> None:
        self.lanes = lanes
        self.ledger = ledger
        self.client = client
        self.tools = tools
        self.heart = Heartbeat(tools.monotonic, tools.chance)
        for lane in lanes:
            lane.arrived = self.heart.watch
            lane.to_be_claimed = partial(claiming.claim, lane)

    def drain(self) -> int:
        """Receive and work until no queue gives anything; returns how many messages were completed."""
        before = self._completed()
        for _ in range(ROUNDS):
            came = sum(self.receive(lane) for lane in self.lanes)
            for lane in self.lanes:
                self.work(lane)
                self.settle(lane)
            self.dispatch_outbox()
            if not came:
                break
        return self._completed() - before

    def _completed(self) -> int:
        return sum(lane.metrics.completed.count for lane in self.lanes)

    def receive(self, lane: Lane) -> int:
        taken = lane.slots.take(10, 0)
        return lane.receive(taken, wait=0) if taken else 0

    def work(self, lane: Lane) -> None:
        """Every message that is runnable, and those that become so."""
        while True:
            if lane.handler.is_batch:
                taken = lane.runnable.take(lane.settings.size, 0)
                if taken:
                    working.work_batch(lane, taken)
            else:
                taken = lane.runnable.take(1, 0)
                if taken and lane.handler.is_async:
                    asyncio.run(working.work_async(lane, taken[0]))
                elif taken:
                    working.work(lane, taken[0])
            if not taken:
                self.settle(lane)
                if not len(lane.runnable):
                    return

    def settle(self, lane: Lane) -> None:
        """Record, release, bury, delete and hide, until there is nothing left to do.

        What the ledger could not take is left for the next time: it may answer then."""
        again: list[Settlement] = []
        while True:
            if buried := lane.burying.take(10, 0):
                deadletters.bury(lane, buried)
            if items := lane.settling.take(500, 0):
                again += settling.settle(lane, items)
            if deletes := lane.deleting.take(10, 0):
                outbound.delete(lane, deletes)
            if hides := lane.hiding.take(10, 0):
                outbound.hide(lane, hides)
            if not (buried or items or deletes or hides):
                break
        lane.settling.put(again)

    def beat(self) -> None:
        """Do what the heartbeat has due by now."""
        while self.heart.round(0):
            pass

    def dispatch_outbox(self) -> int:
        if not self.ledger.transactional:
            return 0
        try:
            return len(outbox.dispatch(self.ledger, self.client, self.tools).sent)
        except LedgerError:
            return 0

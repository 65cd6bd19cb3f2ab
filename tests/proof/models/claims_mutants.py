"""Mistakes that a ledger or a consumer could make, one at a time. The model of claims must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from models.claims import Claims, Faults, Steps, Worker, World
from models.ledger_calls import Entry, LedgerCalls
from semel.consumer import lifecycle
from semel.consumer.lifecycle import Action, Event, Next, State
from semel.ledger.contract import ClaimResult, Status

_FAULTS: Final = Faults(total=2)
_A, _E, _S = Action, Event, State


class RecordsWithAnyFence(LedgerCalls):
    def _record(self, entry: Entry | None, fence: int) -> tuple[Entry | None, bool]:
        return super()._record(entry, fence if entry is None else entry.fence)


class ReleasesWithAnyFence(LedgerCalls):
    def _release(self, entry: Entry | None, fence: int) -> tuple[Entry | None, bool]:
        return super()._release(entry, fence if entry is None else entry.fence)


class KeepsTheEffectOfAFencedTransaction(LedgerCalls):
    def _commit(self, entry: Entry | None, fence: int) -> tuple[Entry | None, int]:
        after, _ = super()._commit(entry, fence)
        return after, 1


class TakesOverWithTheSameFence(LedgerCalls):
    def _claim(self, entry: Entry | None, claimant: str) -> tuple[Entry | None, ClaimResult]:
        over = entry is not None and entry.status is Status.CLAIMED and not entry.leased
        return super()._claim(entry, entry.claimant if over and entry is not None else claimant)


class TakesAllWorkersForOne(LedgerCalls):
    def _claim(self, entry: Entry | None, claimant: str) -> tuple[Entry | None, ClaimResult]:
        known = entry is not None and entry.claimant != ""
        return super()._claim(entry, entry.claimant if known and entry is not None else claimant)


class ClaimsWhatIsDone(LedgerCalls):
    def _claim(self, entry: Entry | None, claimant: str) -> tuple[Entry | None, ClaimResult]:
        done = entry is not None and entry.status is Status.DONE
        return super()._claim(entry._replace(status=Status.FREE) if done and entry is not None else entry, claimant)


class HasLeasesWithoutEnd(LedgerCalls):
    def _claim(self, entry: Entry | None, claimant: str) -> tuple[Entry | None, ClaimResult]:
        claimed = entry is not None and entry.status is Status.CLAIMED
        return super()._claim(entry._replace(leased=True) if claimed and entry is not None else entry, claimant)


class ChecksThenSets(Claims):
    """A claim is two calls: one reads the entry, and one writes it whatever has happened in between."""

    def _claim(self, world: World, worker: Worker) -> Steps:
        for step, asked in super()._claim(world, worker):
            (answered,) = (w for w in asked.workers if w.name == worker.name)
            won = answered.answer is not None and answered.answer[0] is Event.WON
            yield step, asked._replace(entry=world.entry) if won else asked

    def _of_worker(self, world: World, worker: Worker) -> Steps:
        if worker.answer is not None and worker.answer[0] is Event.WON:
            fence = worker.answer[1]
            known = world.entry is not None and world.entry.fence > fence
            world = world if known else world._replace(entry=Entry(Status.CLAIMED, fence, worker.name, leased=True))
        yield from super()._of_worker(world, worker)


def _table(changed: Mapping[tuple[State, Event], Next]) -> Callable[[State, Event], Next]:
    return lambda state, event: changed.get((state, event)) or lifecycle.step(state, event)


_DELETE: Final = (_A.STOP_BEAT, _A.DELETE, _A.END)
_TABLES: Final[dict[str, dict[tuple[State, Event], Next]]] = {
    "the message is deleted when the handler returns": {(_S.WORKING, _E.SUCCEEDED): (_S.RECORDED, _DELETE)},
    "what another worker has is deleted as a duplicate": {(_S.RECEIVED, _E.HELD): (_S.RECORDED, _DELETE)},
    "what is done is dropped and not deleted": {(_S.RECEIVED, _E.FOUND_DONE): (_S.LOST, (_A.STOP_BEAT, _A.END))},
    "a failure is recorded as done": {(_S.WORKING, _E.FAILED): (_S.DONE, (_A.RECORD,))},
    "the heartbeat goes on while the message is returned": {
        (_S.WORKING, _E.FAILED): (_S.BACKING_OFF, (_A.GIVE_BACK, _A.HIDE_FOR_RETRY, _A.STOP_BEAT, _A.END))
    },
}

# The name says what is wrong; the model has that mistake.
MUTANTS: Final[dict[str, Callable[[], Claims]]] = {
    "a record does not look at the fence": lambda: Claims(
        transaction=False, faults=_FAULTS, calls=RecordsWithAnyFence()
    ),
    "a release does not look at the fence": lambda: Claims(
        transaction=False, faults=_FAULTS, calls=ReleasesWithAnyFence()
    ),
    "a transaction that is fenced keeps its effect": lambda: Claims(
        transaction=True, faults=_FAULTS, calls=KeepsTheEffectOfAFencedTransaction()
    ),
    "a takeover does not raise the fence": lambda: Claims(
        transaction=False, faults=_FAULTS, calls=TakesOverWithTheSameFence()
    ),
    "all workers ask under one name": lambda: Claims(transaction=False, faults=_FAULTS, calls=TakesAllWorkersForOne()),
    "a key that is done can be claimed": lambda: Claims(transaction=True, faults=_FAULTS, calls=ClaimsWhatIsDone()),
    "a lease never ends": lambda: Claims(transaction=False, faults=Faults(total=1), calls=HasLeasesWithoutEnd()),
    "a claim is a look and then a write": lambda: ChecksThenSets(transaction=False, faults=_FAULTS),
} | {
    mistake: lambda changed=changed: Claims(transaction=False, faults=Faults(total=1), step=_table(changed))
    for mistake, changed in _TABLES.items()
}

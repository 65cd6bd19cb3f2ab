"""A real ledger behind a simulated network, and an observer that checks every answer of it.

The observer checks the ledger's contract from outside: fences only grow, a key has one holder at a time, a superseded
holder can record nothing, and a key that is done is never won again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.ledger.contract import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Completion,
    Entry,
    Ledger,
    LedgerUnavailable,
    OutboxStatus,
    OutcomeUnknown,
    Outgoing,
    Status,
    Transaction,
    Won,
)
from semel.verify.history import EventKind
from simulation.faults import CallFaults
from simulation.simulator import Process, Simulator

T = TypeVar("T")

LEDGER_FAULTS: Final = {"lost request": 30, "lost answer": 40, "slow request": 20, "slow answer": 20}
TIMEOUT: Final = 5.0  # seconds without an answer after which the store counts as unreachable


@dataclass
class Holding:
    """What the observer knows about a key."""

    fence: int = 0
    claimant: str = ""
    lease_ends: float = 0.0
    free: bool = True
    status: Status | None = None


class Observer:
    def __init__(
        self,
        simulator: Simulator,
        clock: Callable[[], float],
        on_change: Callable[[EventKind, str, int], None] = lambda _kind, _key, _fence: None,
    ) -> None:
        self.simulator = simulator
        self._on_change = on_change
        self.clock = clock
        self.keys: dict[str, Holding] = {}
        self.finished: set[tuple[str, int]] = set()  # keys and fences of handlers that have returned
        self.takeovers = self.zombies = self.duplicates = 0

    def claimed(self, claimant: str, lease: float, results: Sequence[ClaimResult]) -> None:
        for result in results:
            if not isinstance(result, Won):
                self.duplicates += 1
                continue
            key, fence = result.claim.key, result.claim.fence
            known = self.keys.setdefault(key, Holding())
            now = self.clock()
            if known.status is Status.DONE:
                self._broken("a key that is done was won", key, fence)
            if not known.free and now < known.lease_ends and claimant != known.claimant:
                self._broken("two holders", key, fence)
            if fence < known.fence or (fence == known.fence and claimant != known.claimant):
                self._broken("a fence did not grow", key, fence)
            self.takeovers += not known.free and fence > known.fence
            known.fence, known.claimant, known.lease_ends = fence, claimant, now + lease
            known.free, known.status = False, None
            self._on_change(EventKind.CLAIM, key, fence)

    def extended(self, claims: Sequence[Claim], lease: float, answers: Sequence[bool]) -> None:
        for claim, answer in zip(claims, answers, strict=True):
            known = self.keys.setdefault(claim.key, Holding())
            if answer and claim.fence != known.fence:
                self._broken("a superseded holder extended its lease", claim.key, claim.fence)
            if answer:
                known.lease_ends = self.clock() + lease

    def recorded(self, completions: Sequence[Completion], answers: Sequence[bool]) -> None:
        for completion, answer in zip(completions, answers, strict=True):
            key, fence = completion.claim.key, completion.claim.fence
            known = self.keys.setdefault(key, Holding())
            if not answer:
                self.zombies += 1
            elif fence != known.fence:
                self._broken("a record by a zombie", key, fence)
            else:
                known.status, known.free = completion.status, True
                self._on_change(EventKind.RECORD, key, fence)

    def released(self, claims: Sequence[Claim], answers: Sequence[bool]) -> None:
        for claim, answer in zip(claims, answers, strict=True):
            known = self.keys.setdefault(claim.key, Holding())
            if answer and claim.fence == known.fence:
                known.free = True
                if (claim.key, claim.fence) in self.finished:
                    self._broken("finished work was given back", claim.key, claim.fence)

    def _broken(self, kind: str, key: str, fence: int) -> None:
        self.simulator.violate(kind, f"{key}, fence {fence}: the ledger had {self.keys[key]}")


class SimulatedLedger(Ledger):
    """One process's connection to the store that all processes share."""

    def __init__(
        self, ledger: Ledger, observer: Observer, process: Process, faults: CallFaults, outage: Outage
    ) -> None:
        self._ledger = ledger
        self._observer = observer
        self._process = process
        self._faults = faults
        self._outage = outage
        self.transactional = ledger.transactional
        self.retention = ledger.retention
        self.clock = ledger.clock

    def _call(self, name: str, work: Callable[[], T], timeout: float | None = None) -> T:
        """Send the request, let the store do its work, return the answer. Request and answer may be lost or late."""
        faults, simulator = self._faults, self._observer.simulator
        patience = TIMEOUT if timeout is None else min(timeout, TIMEOUT)
        there, back = faults.delays()
        fault = faults.next()
        if fault == "slow request":
            there += faults.slow()
        elif fault == "slow answer":
            back += faults.slow()
        simulator.sleep(min(there, patience))
        if there >= patience:
            self._later(name, work, there - patience)
            raise LedgerUnavailable(f"{name}: no answer within {patience:g} s")
        if fault == "lost request" or self._outage.down:
            self._process.note("ledger", name, "does not arrive")
            raise LedgerUnavailable(f"{name}: no connection")
        result = work()
        self._process.note("ledger", name, "->", _shown(result))
        if fault == "lost answer" or back >= patience:
            self._process.note("the ledger's answer to", name, "is lost")
            simulator.sleep(min(back, patience))
            raise LedgerUnavailable(f"{name}: the connection broke before the answer came")
        simulator.sleep(back)
        return result

    def _later(self, name: str, work: Callable[[], object], after: float) -> None:
        network = Process(self._observer.simulator, "network")

        def deliver() -> None:
            if not self._outage.down:
                network.note("delivers late: ledger", name, "->", _shown(work()))

        network.spawn("late request", deliver, after)

    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        def work() -> list[ClaimResult]:
            results = self._ledger.claim(requests, claimant=claimant, lease=lease)
            self._observer.claimed(claimant, lease, results)
            return results

        return self._call("claim", work)

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        def work() -> list[bool]:
            answers = self._ledger.extend(claims, lease)
            self._observer.extended(claims, lease, answers)
            return answers

        return self._call("extend", work, timeout)

    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        return self._call("save step", lambda: self._ledger.save_step(claim, name, value))

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        def work() -> list[bool]:
            answers = self._ledger.record(completions)
            self._observer.recorded(completions, answers)
            return answers

        return self._call("record", work)

    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        def work() -> list[bool]:
            answers = self._ledger.release(claims, tried=tried)
            self._observer.released(claims, answers)
            return answers

        return self._call("release", work)

    def forget(self, keys: Sequence[str]) -> int:
        return self._call("forget", lambda: self._ledger.forget(keys))

    def purge(self, limit: int = 1_000) -> int:
        return self._call("purge", lambda: self._ledger.purge(limit))

    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        return self._call("get", lambda: self._ledger.get(keys))

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:
        return self._call("take outgoing", lambda: self._ledger.take_outgoing(limit, lease=lease))

    def sent_outgoing(self, ids: Sequence[str]) -> None:
        return self._call("sent outgoing", lambda: self._ledger.sent_outgoing(ids))

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:
        return self._call("refused outgoing", lambda: self._ledger.refused_outgoing(ids, error=error, wait=wait))

    def outbox_status(self, examples: int = 3) -> OutboxStatus:
        return self._call("outbox status", lambda: self._ledger.outbox_status(examples))

    def count_outgoing(self) -> int:
        return self._call("count outgoing", self._ledger.count_outgoing)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Nothing else happens between its first statement and its end: the store itself sees to that."""
        faults, simulator = self._faults, self._observer.simulator
        there, back = faults.delays()
        simulator.sleep(there)
        fault = faults.next()
        if self._outage.down:
            raise LedgerUnavailable("transaction: no connection")
        watched: WatchedTransaction | None = None
        with contextlib.suppress(_Undone), self._ledger.transaction() as tx:
            watched = WatchedTransaction(tx)
            yield watched  # type: ignore[misc]
            if self._outage.down:
                raise LedgerUnavailable("transaction: the connection broke")
            if fault == "lost request":
                raise _Undone
        assert watched is not None
        if fault != "lost request":
            for completions, answers in watched.records:
                self._observer.recorded(completions, answers)
            self._process.note(
                "ledger", "commit", *[c.claim.key.rpartition("/")[2] for cs, _ in watched.records for c in cs]
            )
        if fault in ("lost request", "lost answer"):
            self._process.note("the outcome of a commit is unknown:", fault)
            raise OutcomeUnknown("the connection broke while a transaction was being committed")
        simulator.sleep(back)

    def close(self) -> None:
        pass


class Outage:
    """Whether the store can be reached."""

    def __init__(self) -> None:
        self.down = False


class _Undone(Exception):
    pass


class WatchedTransaction:
    """A transaction that keeps its records, which the observer is shown after the commit."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.records: list[tuple[Sequence[Completion], list[bool]]] = []

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        answers = self._tx.record(completions)
        self.records.append((completions, answers))
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def _shown(result: object) -> str:
    if not isinstance(result, list):
        return str(result)
    return ", ".join(_text_of(value) for value in result)


def _text_of(value: object) -> str:
    match value:
        case Won(claim):
            return f"{claim.key.rpartition('/')[2]} won with fence {claim.fence}"
        case _ if hasattr(value, "key"):
            return f"{value.key.rpartition('/')[2]} is {type(value).__name__}"
    return str(value)

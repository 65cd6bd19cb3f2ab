"""Shortcuts for what most tests of the ledger do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from semel.ledger.contract import Claim, ClaimRequest, ClaimResult, Completion, Entry, Ledger, Status, Won

LEASE = 30.0
Returned = TypeVar("Returned")


def ask(
    ledger: Ledger, key: str, *, payload: str = "", source: str = "", claimant: str = "", lease: float = LEASE
) -> ClaimResult:
    """Ask for one key; each call is a new claimant unless `claimant` is given."""
    (verdict,) = ledger.claim([ClaimRequest(key, payload, source)], claimant=claimant or uuid.uuid4().hex, lease=lease)
    return verdict


def win(
    ledger: Ledger, key: str, *, payload: str = "", source: str = "", claimant: str = "", lease: float = LEASE
) -> Won:
    verdict = ask(ledger, key, payload=payload, source=source, claimant=claimant, lease=lease)
    assert isinstance(verdict, Won), verdict
    assert verdict.claim.key == key
    return verdict


def finish(ledger: Ledger, claim: Claim, status: Status = Status.DONE, result: bytes = b"") -> bool:
    (recorded,) = ledger.record([Completion(claim, status, result)])
    return recorded


def entry(ledger: Ledger, key: str) -> Entry:
    (entry,) = ledger.get([key])
    assert entry is not None, f"{key} is not in the ledger"
    return entry


def at_once(works: Sequence[Callable[[], Returned]]) -> list[Returned]:
    """Run all functions in threads that start together; returns their results in order. An exception is raised here."""
    start, answers, errors = threading.Barrier(len(works)), dict[int, Returned](), list[BaseException]()

    def run(place: int) -> None:
        try:
            start.wait()
            answers[place] = works[place]()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [answers[place] for place in range(len(works))]

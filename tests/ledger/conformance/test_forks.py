"""A ledger belongs to the process that opened it."""

from __future__ import annotations

import os
import signal

import pytest

from ledger.asking import ask, finish, win
from semel.ledger.contract import Held, Ledger, LedgerError


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_ledger_of_before_a_fork_is_refused_after_it_and_its_parent_goes_on(ledger: Ledger) -> None:
    claim = win(ledger, "before").claim
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)  # it must not outlive the test
        try:
            for use in (lambda: ask(ledger, "child"), lambda: finish(ledger, claim), lambda: ledger.get(["before"])):
                try:
                    use()
                except LedgerError as error:
                    os.write(write, f"{error}\n".encode())
            if ledger.transactional:
                try:
                    with ledger.transaction() as tx:
                        tx.record([])
                        _ = tx.connection
                except LedgerError as error:
                    os.write(write, f"{error}\n".encode())
            ledger.close()  # what is the parent's stays open
            os.write(write, b"closed\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        *errors, closed = answers.read().splitlines()
    os.waitpid(child, 0)
    assert len(errors) == (4 if ledger.transactional else 3)
    assert all("open the ledger after the fork" in error for error in errors)
    assert closed == "closed"
    assert isinstance(ask(ledger, "before"), Held)
    assert finish(ledger, claim)

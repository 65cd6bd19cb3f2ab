"""One rule for all stores: a ledger belongs to the process that opened it.

After a fork, connections and threads still belong to the parent. A child that used the connections would disturb the
parent's calls.
"""

from __future__ import annotations

import os

from semel.ledger.contract import LedgerError


class OwningProcess:
    """The process that opened a ledger. `ledger` names the ledger in the error."""

    __slots__ = ("_ledger", "_pid")

    def __init__(self, ledger: str) -> None:
        self._ledger, self._pid = ledger, os.getpid()

    def is_this(self) -> bool:
        """False in a process that was forked after the ledger was opened. It may neither use nor close the ledger."""
        return os.getpid() == self._pid

    def check(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerError(
                f"{self._ledger} was opened before this process was forked, and belongs to its parent: open the ledger "
                "after the fork, one in each process"
            )

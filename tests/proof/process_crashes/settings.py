"""The settings that processes get through their environment, and the queues that they share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

LEASE_QUEUES: Final = ("posted", "posted.fifo")
TRANSACTION_QUEUES: Final = ("booked", "booked.fifo")
ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
FOLDER_VARIABLE: Final = "PROCESS_CRASHES_FOLDER"


def at_work_file(folder: Path, pid: int) -> Path:
    """Created by a worker process when it calls a handler for the first time."""
    return folder / "at-work" / str(pid)


def ledger_key(queue: str, id_: str) -> str:
    return f"{REGION}:{ACCOUNT}:{queue}/{id_}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`folder`: where a worker writes down what it does."""

    ledger: str
    endpoint: str
    folder: Path
    transactions: bool

    def to_environment(self) -> dict[str, str]:
        return {
            "PROCESS_CRASHES_LEDGER": self.ledger,
            "PROCESS_CRASHES_ENDPOINT": self.endpoint,
            FOLDER_VARIABLE: str(self.folder),
            "PROCESS_CRASHES_TRANSACTIONS": str(int(self.transactions)),
        }

    @classmethod
    def from_environment(cls) -> Self:
        variables = os.environ
        return cls(
            variables["PROCESS_CRASHES_LEDGER"],
            variables["PROCESS_CRASHES_ENDPOINT"],
            Path(variables[FOLDER_VARIABLE]),
            variables["PROCESS_CRASHES_TRANSACTIONS"] == "1",
        )

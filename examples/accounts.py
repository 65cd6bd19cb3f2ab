"""An account ledger on a FIFO queue: in order within an account, accounts side by side.

    cd examples && semel run accounts:app --create-dlq

A withdrawal that fails holds its own account back until it is tried again; no other account waits for it.
"""

from __future__ import annotations

import os
from typing import Literal, TypedDict

from semel import App, Retry, Transaction

app = App(os.environ.get("ACCOUNTS_LEDGER", "sqlite:///accounts.db"))

TABLES = "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL DEFAULT 0)"


class Event(TypedDict):
    id: str
    account: str
    kind: Literal["deposit", "withdrawal"]
    cents: int


@app.handler("accounts.fifo", key="$.id", concurrency=64)
def apply(event: Event, tx: Transaction) -> None:
    change = event["cents"] if event["kind"] == "deposit" else -event["cents"]
    tx.execute("INSERT OR IGNORE INTO balances (account) VALUES (?)", (event["account"],))
    ((balance,),) = tx.execute("SELECT cents FROM balances WHERE account = ?", (event["account"],)).fetchall()
    if balance + change < 0:
        raise Retry(f"{event['account']} has {balance} cents", after=60)
    tx.execute("UPDATE balances SET cents = cents + ? WHERE account = ?", (change, event["account"]))

"""What `make demo` runs: one charge for each order, in the ledger's own transaction."""

from __future__ import annotations

import os
import time
from typing import Any

from semel import App, SqliteLedger, Transaction

ledger = SqliteLedger.from_url(os.environ.get("CHARGES_LEDGER", "sqlite:///charges.db"))
app = App(ledger, concurrency=8, lease=2)

with ledger.transaction() as setup:
    setup.execute("CREATE TABLE IF NOT EXISTS charges (number INTEGER, euro INTEGER)")


@app.handler("charges", key="$.order")
def charge(order: dict[str, Any], tx: Transaction) -> None:
    time.sleep(0.01)  # as if there were something to do
    tx.execute("INSERT INTO charges VALUES (?, ?)", (order["order"], order["euro"]))

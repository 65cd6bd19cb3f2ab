"""A payment booker: record and booking are one PostgreSQL transaction, so each payment is booked exactly once.

    export PAYMENTS_LEDGER=postgresql://localhost/shop
    cd examples && semel run payments:app --create-dlq

The handler asks for `tx`. What it writes there, and what it sends there, happens if and only if the record does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from semel import App, Reject, Transaction

app = App(os.environ.get("PAYMENTS_LEDGER", "postgresql://localhost/shop"))

TABLES = "CREATE TABLE IF NOT EXISTS entries (payment text NOT NULL, account text NOT NULL, cents bigint NOT NULL)"


@dataclass
class Payment:
    id: str
    account: str
    cents: int


@app.handler("payments", key="$.id")
def book(payment: Payment, tx: Transaction) -> None:
    if payment.cents <= 0:
        raise Reject(f"a payment of {payment.cents} cents")
    tx.execute(
        "INSERT INTO entries (payment, account, cents) VALUES (%s, %s, %s), (%s, %s, %s)",
        (payment.id, payment.account, payment.cents, payment.id, "cash", -payment.cents),
    )
    # Leaves after the commit, at least once; its key lets the next consumer know a second sending for what it is.
    tx.send("receipts", {"payment": payment.id, "cents": payment.cents}, key=f"receipt-{payment.id}")

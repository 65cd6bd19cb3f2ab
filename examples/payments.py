"""Books payments: record and booking are one PostgreSQL transaction, so each payment is booked exactly once.

    pip install 'semel[postgres]'
    export PAYMENTS_LEDGER=postgresql://localhost/shop
    python examples/payments.py                          create the table and try it, on a broker in this process
    cd examples && semel run payments:app --create-dlq   run it, on your queues `payments` and `receipts`

The handler asks for `tx`. What it writes and sends with `tx` is committed together with the record, or not at all.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from semel import App, Client, PostgresLedger, Reject, Transaction
from semel.broker import running
from semel.sqs import Entry

URL = os.environ.get("PAYMENTS_LEDGER", "postgresql://localhost/shop")
app = App(URL)

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
    # Sent after the commit, at least once. The key lets the next consumer recognise a duplicate.
    tx.send("receipts", {"payment": payment.id, "cents": payment.cents}, key=f"receipt-{payment.id}")


def main() -> None:
    run = int(time.time())  # new ids in every run, because the ledger knows the old ones
    payments = [{"id": f"{run}-{number}", "account": "anna", "cents": 100} for number in range(3)]
    with PostgresLedger(URL) as ledger, running() as broker, Client(broker.url) as client:
        with ledger.transaction() as tx:
            tx.execute(TABLES)
        client.create_queue("receipts")
        entries = [Entry(json.dumps(payment)) for payment in payments]
        client.create_queue("payments").send_many(entries * 2)  # the producer sends each payment twice
        app.connect_to(broker.url)
        app.run(exit_when_empty=True, create_dlq=True)
        with ledger.transaction() as tx:
            ((booked,),) = tx.execute(
                "SELECT count(*) FROM entries WHERE payment LIKE %s AND account = 'anna'", (f"{run}-%",)
            ).fetchall()
        receipts = len(broker.peek("receipts"))
    print(f"{len(entries) * 2} messages for {len(payments)} payments: {booked} booked, {receipts} receipts sent.")


if __name__ == "__main__":
    main()

"""Bank accounts on a FIFO queue: events of one account are processed in order, different accounts in parallel.

    python examples/accounts.py                          try it, on a broker in this process
    cd examples && semel run accounts:app --create-dlq   run it, on your queue `accounts.fifo`

The ledger and the balances are in accounts.db, or at the address in ACCOUNTS_LEDGER. A withdrawal that fails blocks
its own account until it is tried again; other accounts continue.
"""

from __future__ import annotations

import json
import os
import time
from typing import Literal, TypedDict

from semel import App, Client, Retry, SqliteLedger, Transaction
from semel.broker import running
from semel.sqs import Entry

TABLES = "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL DEFAULT 0)"

ledger = SqliteLedger.from_url(os.environ.get("ACCOUNTS_LEDGER", "sqlite:///accounts.db"))
with ledger.transaction() as set_up:
    set_up.execute(TABLES)

app = App(ledger)


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


def main() -> None:
    run = int(time.time())  # new ids in every run, because the ledger knows the old ones
    events = [("anna", "deposit", 100), ("bert", "deposit", 80), ("anna", "withdrawal", 30)]
    with running() as broker, Client(broker.url) as client:
        queue = client.create_queue("accounts.fifo", {"FifoQueue": "true"})
        for number, (account, kind, cents) in enumerate(events * 2):  # the producer sends each event twice
            event = {"id": f"{run}-{number % len(events)}", "account": account, "kind": kind, "cents": cents}
            queue.send_many([Entry(json.dumps(event), group=account, dedup=str(number))])
        app.connect_to(broker.url)
        report = app.run(exit_when_empty=True, create_dlq=True)
    with ledger.transaction() as tx:
        balances = tx.execute("SELECT account, cents FROM balances ORDER BY account").fetchall()
    print(f"{len(events) * 2} messages for {len(events)} events, {report.completed} of them done.")
    print(", ".join(f"{account}: {cents} cents" for account, cents in balances))


if __name__ == "__main__":
    main()

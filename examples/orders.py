"""Ships orders: a plain function, a ledger in a file, and an external service that gets the key.

    python examples/orders.py                            try it, on a broker in this process
    cd examples && semel run orders:app --create-dlq     run it, on your queue `orders`

The ledger is orders-ledger.db, or at the address in ORDERS_LEDGER. For a local broker: `semel broker`, and
AWS_ENDPOINT_URL_SQS=http://127.0.0.1:9324 for `semel run`.

The warehouse is not in the ledger's database, so nobody can promise that it is *called* once: a worker can die after
the call and before the record. But it gets the same key with each call, so it ships once.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from semel import App, Client, Context, Reject, Retry
from semel.broker import running
from semel.sqs import Entry

app = App(os.environ.get("ORDERS_LEDGER", "sqlite:///orders-ledger.db"))


@dataclass
class Order:
    id: int
    item: str


class Warehouse:
    """Stands for an external service that supports idempotency keys, as Stripe and many others do."""

    def __init__(self) -> None:
        self.shipped: dict[str, str] = {}
        self.calls = 0

    def ship(self, item: str, *, idempotency_key: str) -> None:
        self.calls += 1
        if item == "unicorn":
            raise LookupError("no such item")
        if item == "sofa" and self.calls % 2:
            raise TimeoutError("the truck is out")
        self.shipped.setdefault(idempotency_key, item)


warehouse = Warehouse()


@app.handler("orders", key="$.id", max_attempts=5)
def ship(order: Order, ctx: Context) -> None:
    try:
        warehouse.ship(order.item, idempotency_key=ctx.key)
    except TimeoutError as error:
        raise Retry(str(error), after=5) from error  # the same message, five seconds later
    except LookupError as error:
        raise Reject(str(error)) from error  # to the dead-letter queue, with the reason
    ctx.log.info("shipped %s", order.item)


def main() -> None:
    first = int(time.time())  # new ids in every run, because the ledger knows the old ones
    items = {first: "lamp", first + 1: "chair", first + 2: "unicorn"}
    with running() as broker, Client(broker.url) as client:
        entries = [Entry(json.dumps({"id": number, "item": item})) for number, item in items.items()]
        client.create_queue("orders").send_many(entries * 2)  # the producer sends each order twice
        app.connect_to(broker.url)
        app.run(exit_when_empty=True, create_dlq=True)
        rejected = len(broker.peek("orders-dlq"))
    print(f"{len(entries) * 2} messages for {len(items)} orders. Shipped: {', '.join(warehouse.shipped.values())}.")
    print(f"Calls to the warehouse: {warehouse.calls}. Messages in orders-dlq: {rejected}.")


if __name__ == "__main__":
    main()

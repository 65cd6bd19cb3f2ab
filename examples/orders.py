"""An order shipper: a plain function, a ledger in a file, and an outside service that is told the key.

    semel serve &
    export AWS_ENDPOINT_URL_SQS=http://127.0.0.1:9324 AWS_DEFAULT_REGION=us-east-1
    export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x
    queue=$(aws sqs create-queue --queue-name orders --query QueueUrl --output text)
    aws sqs send-message --queue-url "$queue" --message-body '{"id": 7, "item": "lamp"}'
    cd examples && semel run orders:app --create-dlq

The warehouse is not in the ledger's database, so nobody can promise that it is *called* once: a worker can die after
the call and before the record. It is called with the same key each time, and so ships once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from semel import App, Context, Reject, Retry

app = App(os.environ.get("ORDERS_LEDGER", "sqlite:///orders-ledger.db"))


@dataclass
class Order:
    id: int
    item: str


class Warehouse:
    """Stands for somebody else's service that honours idempotency keys, as Stripe and many others do."""

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

"""The app of the shop's workers: mostly fast, sometimes slow, and for some orders it fails."""

from __future__ import annotations

import random
import time
from typing import Any

from semel import App, Context, Retry

app = App()
chance = random.Random()


@app.handler("orders", key="$.order.id", concurrency=12, lease=10)
def ship(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
    luck = chance.random()
    time.sleep(0.02 + luck * 0.3)
    if order["customer"]["town"] == "Svalbard":
        raise Retry("CarrierError: no ship to Longyearbyen before the ice is gone", after=240)
    if luck < 0.02:
        raise TimeoutError("warehouse.internal did not answer within 30 s")
    if luck > 0.985:
        time.sleep(chance.uniform(3, 20))
    return {"parcel": f"p-{ctx.key}", "lines": len(order["order"]["lines"])}


@app.handler("payments.fifo", key="$.order.id", concurrency=6)
def charge(order: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.05 + chance.random() * 0.2)
    return {"charged": order["order"]["total"]}


@app.handler("emails", key="$.order.id", concurrency=8)
def mail(order: dict[str, Any]) -> str:
    time.sleep(0.03 + chance.random() * 0.1)
    return str(order["customer"]["id"])

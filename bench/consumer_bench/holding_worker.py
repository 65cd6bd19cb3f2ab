"""Semel holding messages: an async handler that never ends, so that only the heartbeat is left to do."""

from __future__ import annotations

import asyncio

from consumer_bench.options import Options
from semel import App


def main() -> None:
    options = Options.read()
    app = App(ledger=options.ledger, endpoint_url=options.endpoint, region="us-east-1")

    async def hold(_body: dict[str, object]) -> None:
        await asyncio.Event().wait()

    app.handler(options.queue, concurrency=options.amount, lease=options.lease)(hold)
    app.run()


if __name__ == "__main__":
    main()

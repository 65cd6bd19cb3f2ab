"""Semel's contestants: with a lease in a SQLite ledger, and with a PostgreSQL transaction a batch.

The ledger's address says which. Handlers do nothing; what is measured is all the rest. The first has 320 messages in
hand at most (`concurrency`), since a handler that does nothing leaves a thread idle only while others wait for SQS and
the disk; by default it would be 32, and less than half as fast. The tuned loop has 160 in hand.
"""

from __future__ import annotations

from consumer_bench.options import Options
from semel import App, Batch, Transaction

IN_HAND = 320


def leased(app: App, options: Options) -> None:
    """One message a call; claimed, recorded and deleted by the runtime."""

    def nothing(_body: dict[str, object]) -> None:
        return None

    app.handler(options.queue, concurrency=IN_HAND)(nothing)


def transactional(app: App, options: Options) -> None:
    """One transaction a batch: the records commit with whatever the handler wrote, here nothing."""

    def nothing(_batch: Batch[dict[str, object]], tx: Transaction) -> None:  # noqa: ARG001
        return None

    app.batch_handler(options.queue)(nothing)


def main() -> None:
    options = Options.read()
    app = App(ledger=options.ledger, endpoint_url=options.endpoint, region="us-east-1")
    if options.ledger.startswith("postgresql:"):
        transactional(app, options)
    else:
        leased(app, options)
    app.run()


if __name__ == "__main__":
    main()

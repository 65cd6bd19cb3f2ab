"""dramatiq on SQS with dramatiq_sqs: one process with dramatiq's worker threads."""

from __future__ import annotations

import threading
from base64 import b64encode
from typing import Any

import dramatiq  # type: ignore[import-not-found,unused-ignore]
from botocore.config import Config
from dramatiq_sqs import SQSBroker  # type: ignore[import-not-found,unused-ignore]

from consumer_bench.options import Options, send_all, sqs_client


def make(options: Options) -> tuple[Any, Any]:
    broker = SQSBroker(
        endpoint_url=options.endpoint,
        region_name="us-east-1",
        visibility_timeout=3600,
        config=Config(max_pool_connections=options.threads + 2),
    )
    dramatiq.set_broker(broker)
    return broker, dramatiq.actor(_nothing, broker=broker, queue_name=options.queue, actor_name="nothing")


def _nothing(_number: int) -> None:
    return None


def fill(options: Options, actor: Any) -> None:
    """Send dramatiq's own messages, in batches: one call per message would take longer than the race."""
    sqs = sqs_client(options)
    for start in range(0, options.amount, 10):
        messages = [actor.message(number) for number in range(start, min(start + 10, options.amount))]
        send_all(sqs, options, [b64encode(message.encode()).decode() for message in messages])


def main() -> None:
    options = Options.read()
    broker, actor = make(options)
    if options.role == "fill":
        fill(options, actor)
        return
    worker = dramatiq.Worker(broker, worker_threads=options.threads)
    worker.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""Celery on SQS with late acknowledgement (otherwise a crash loses messages) and the pool that was fastest here."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode, b64encode
from typing import Any

from celery import Celery  # type: ignore[import-not-found,unused-ignore]

from consumer_bench.options import Options, send_all, sqs_client


def make(options: Options) -> tuple[Any, Any]:
    """The app and its task. The URL has the broker's address; the queue is predefined, so Celery creates none."""
    app = Celery("bench", broker=options.endpoint.replace("http://", "sqs://test:test@") + "//")
    app.conf.update(
        task_default_queue=options.queue,
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=10,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "region": "us-east-1",
            "is_secure": False,
            "wait_time_seconds": 20,
            "polling_interval": 0,
            "visibility_timeout": 3600,
            "predefined_queues": {
                options.queue: {"url": options.queue_url, "access_key_id": "test", "secret_access_key": "test"}
            },
        },
    )
    return app, app.task(_nothing, name="nothing")


def _nothing(_number: int) -> None:
    return None


def fill(options: Options, task: Any) -> None:
    """Send one message with Celery, and copies of it in batches: one call per message would take longer than the race.

    Each copy gets its own id and delivery tag, because Celery distinguishes messages by these.
    """
    sqs = sqs_client(options)
    first = task.delay(0)
    (message,) = sqs.receive_message(QueueUrl=options.queue_url, WaitTimeSeconds=5)["Messages"]
    sqs.delete_message(QueueUrl=options.queue_url, ReceiptHandle=message["ReceiptHandle"])
    text = b64decode(message["Body"]).decode()
    tag = json.loads(text)["properties"]["delivery_tag"]
    for start in range(0, options.amount, 10):
        likes = [
            text.replace(first.id, str(uuid.uuid4())).replace(tag, str(uuid.uuid4()))
            for _ in range(start, min(start + 10, options.amount))
        ]
        send_all(sqs, options, [b64encode(like.encode()).decode() for like in likes])


def main() -> None:
    options = Options.read()
    app, task = make(options)
    if options.role == "fill":
        fill(options, task)
        return
    arguments = ["worker", "--pool", "solo", "--loglevel", "WARNING"]
    if options.threads > 1:
        arguments = ["worker", "--pool", "threads", "--concurrency", str(options.threads), "--loglevel", "WARNING"]
    app.worker_main([*arguments, "--without-gossip", "--without-mingle", "--without-heartbeat"])


if __name__ == "__main__":
    main()

"""The dead-letter queue that Semel creates for a queue that has none, and the settings that it recommends for one."""

from __future__ import annotations

import json
from logging import Logger
from typing import TYPE_CHECKING, Final

from semel.sqs.limits import MAX_RETENTION

if TYPE_CHECKING:
    from semel.sqs import Client, Queue

RECOMMENDED_RECEIVES: Final = 5  # maxReceiveCount: what --create-dlq sets, and what the doctor advises
MAX_REDELIVERY: Final = 2.0 * MAX_RETENTION  # seconds


def redelivery_period(retention: float, dead_letter_retention: float = 0.0) -> float:
    """How long SQS can deliver a message: the retention of its queue, and that of the dead-letter queue from which it
    can be redriven. A ledger that keeps keys for this long recognises every redelivery."""
    return retention + dead_letter_retention


def create_dead_letter_queue(client: Client, queue: Queue, log: Logger) -> dict[str, str]:
    """Create it, point the queue's RedrivePolicy at it, and log that; returns the queue's attributes.

    It has the longest retention that SQS allows, because SQS does not reset the age of a message that it moves."""
    name = f"{queue.name.removesuffix('.fifo')}-dlq{'.fifo' if queue.fifo else ''}"
    wanted = {"MessageRetentionPeriod": str(MAX_RETENTION)} | ({"FifoQueue": "true"} if queue.fifo else {})
    created = client.create_queue(name, wanted)
    policy = json.dumps({"deadLetterTargetArn": created.arn, "maxReceiveCount": RECOMMENDED_RECEIVES})
    queue.call("SetQueueAttributes", {"Attributes": {"RedrivePolicy": policy}})
    log.warning(
        "created the dead-letter queue %s for %s: SQS moves a message there after %d receives (maxReceiveCount)",
        name,
        queue.name,
        RECOMMENDED_RECEIVES,
    )
    return queue.attributes()

"""What a queue's attributes mean, and their values with units."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from semel import durations
from semel.dashboard.views.model import QueueAttribute
from semel.dlq.queues import dead_letter_queue_name, max_receives


def _duration(value: str) -> str:
    return durations.text(float(value))


def _messages(value: str) -> str:
    return f"{int(value):,} {'message' if value == '1' else 'messages'}"


def _bytes(value: str) -> str:
    return f"{int(value) / 1024:,.0f} KiB" if int(value) < 1024 * 1024 else f"{int(value) / 1024 / 1024:,.0f} MiB"


def _time(value: str) -> str:
    return datetime.fromtimestamp(int(value), UTC).strftime("%Y-%m-%d %H:%M UTC")


def _yes(value: str) -> str:
    return {"true": "yes", "false": "no"}.get(value, value)


def _same(value: str) -> str:
    return value


def _redrive(value: str) -> str:
    policy = {"RedrivePolicy": value}
    target = dead_letter_queue_name(policy)
    return f"to {target} after {max_receives(policy)} receives" if target else value


def _allow(value: str) -> str:
    policy = json.loads(value)
    permission = policy["redrivePermission"]
    names = [str(arn).rpartition(":")[2] for arn in policy.get("sourceQueueArns", ())]
    words = {"allowAll": "any queue", "denyAll": "no queue", "byQueue": f"only {', '.join(names)}"}
    return words.get(permission, value)


# In the order in which they are shown.
_MEANING: Final[Mapping[str, tuple[Callable[[str], str], str]]] = {
    "VisibilityTimeout": (
        _duration,
        "How long a received message stays hidden from others. Work that takes longer needs a heartbeat, or it is "
        "delivered again.",
    ),
    "RedrivePolicy": (_redrive, "Where a message goes after too many receives, and after how many."),
    "MessageRetentionPeriod": (_duration, "How long a message is kept; after that SQS deletes it, processed or not."),
    "ReceiveMessageWaitTimeSeconds": (
        _duration,
        "How long a receive waits for a first message by default. 0 means short polling, which costs more.",
    ),
    "DelaySeconds": (_duration, "How long a new message stays hidden at first."),
    "MaximumMessageSize": (_bytes, "The largest message that is accepted."),
    "ApproximateNumberOfMessages": (_messages, "Can be received now."),
    "ApproximateNumberOfMessagesNotVisible": (_messages, "In flight: received, and neither deleted nor visible again."),
    "ApproximateNumberOfMessagesDelayed": (_messages, "Not visible yet: their delay has not ended."),
    "RedriveAllowPolicy": (_allow, "Which queues may use this one as their dead-letter queue."),
    "FifoQueue": (_yes, "Order is kept within a message group, and a second send within five minutes is ignored."),
    "ContentBasedDeduplication": (
        _yes,
        "Whether the digest of the body replaces a missing deduplication id. Equal bodies then count as one message.",
    ),
    "DeduplicationScope": (_same, "Whether deduplication ids count for the whole queue or for each message group."),
    "FifoThroughputLimit": (_same, "Whether the limit on calls is for the whole queue or for each message group."),
    "KmsMasterKeyId": (_same, "The key that messages are encrypted with."),
    "KmsDataKeyReusePeriodSeconds": (_duration, "How long a data key is reused before SQS asks KMS for another."),
    "SqsManagedSseEnabled": (_yes, "Whether SQS encrypts messages with a key of its own."),
    "Policy": (_same, "Who may do what with this queue."),
    "CreatedTimestamp": (_time, "When the queue was made."),
    "LastModifiedTimestamp": (_time, "When one of these attributes last changed."),
    "QueueArn": (_same, "The name of the queue in policies and alarms."),
}


def explained(attributes: Mapping[str, str]) -> tuple[QueueAttribute, ...]:
    """The known attributes in their usual order, then the others by name."""
    known = [name for name in _MEANING if attributes.get(name)]
    others = sorted(name for name, value in attributes.items() if name not in _MEANING and value)
    return (
        *(QueueAttribute(name, attributes[name], _shown(name, attributes[name]), _MEANING[name][1]) for name in known),
        *(QueueAttribute(name, attributes[name], attributes[name], "") for name in others),
    )


def _shown(name: str, value: str) -> str:
    """The value with its unit; unchanged if it does not have the form that SQS gives it."""
    try:
        return _MEANING[name][0](value)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return value

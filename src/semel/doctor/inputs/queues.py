"""What SQS says of queues now: their attributes, their dead-letter queues, and what the credentials may do.

The rule: nothing here changes a queue or a message. If something may not be read, that is a note, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from semel.doctor.errors import DoctorError
from semel.doctor.model import DeadLetters, QueueState
from semel.doctor.remedies import name_of
from semel.sqs.client import Client, Queue
from semel.sqs.errors import (
    AccessDenied,
    BadConfiguration,
    BadRequest,
    CredentialsRefused,
    QueueNotFound,
    ReceiptInvalid,
    SqsError,
)

# No queue ever gave out this receipt handle, so SQS has nothing to delete or to change; it says so only to callers with
# the permission.
FAKE_RECEIPT: Final = "semel-doctor-probe"
_PROBES: Final[Mapping[str, Mapping[str, Any]]] = {
    "DeleteMessage": {},
    "ChangeMessageVisibility": {"VisibilityTimeout": 0},
}
_LISTED: Final = 1_000


def look(
    client: Client, names: Sequence[str], *, probe: bool = False
) -> tuple[tuple[QueueState, ...], tuple[str, ...]]:
    """The state of each queue, by name, URL or ARN, and notes on what could not be read."""
    notes: list[str] = []
    states = []
    for name in dict.fromkeys(names):
        state = _look_at(client, name, notes)
        if state is not None:
            states.append(replace(state, refused=_probe(client, state, notes)) if probe else state)
    return tuple(states), tuple(notes)


def _look_at(client: Client, name: str, notes: list[str]) -> QueueState | None:
    try:
        queue = client.queue(name)
        attributes = _attributes(queue)
    except QueueNotFound as error:
        raise DoctorError(f"queue {name}: there is no such queue at {client.endpoint}{_near(client, name)}") from error
    except (BadConfiguration, CredentialsRefused, BadRequest) as error:
        raise DoctorError(f"queue {name}: {error}") from error
    except SqsError as error:
        notes.append(f"queue {name}: its attributes are not known: {error}")
        return None
    state = _state(queue, attributes)
    policy = _policy(attributes, "RedrivePolicy")
    arn = policy.get("deadLetterTargetArn")
    dlq = _dead_letters(client, queue, str(arn), notes) if arn else None
    receives = str(policy.get("maxReceiveCount", ""))
    return replace(
        state,
        dead_letters=dlq,
        max_receives=int(receives) if receives.isdigit() else None,
        sources=tuple(_sources(queue, notes) or ()),
    )


def _attributes(queue: Queue) -> dict[str, str]:
    attributes: dict[str, str] = queue.call("GetQueueAttributes", {"AttributeNames": ["All"]}).get("Attributes") or {}
    return attributes


def _state(queue: Queue, attributes: Mapping[str, str]) -> QueueState:
    def number(name: str, otherwise: float) -> float:
        try:
            return float(attributes[name])
        except (KeyError, ValueError):
            return otherwise

    per_group = attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    return QueueState(
        queue=queue.name,
        url=queue.url,
        arn=attributes.get("QueueArn", ""),
        fifo=attributes.get("FifoQueue") == "true" or queue.fifo,
        visibility=number("VisibilityTimeout", 30.0),
        retention=number("MessageRetentionPeriod", 345_600.0),
        delay=number("DelaySeconds", 0.0),
        wait=number("ReceiveMessageWaitTimeSeconds", 0.0),
        content_dedup=attributes.get("ContentBasedDeduplication") == "true",
        high_throughput=per_group and attributes.get("DeduplicationScope") == "messageGroup",
        visible=int(number("ApproximateNumberOfMessages", 0)),
        in_flight=int(number("ApproximateNumberOfMessagesNotVisible", 0)),
        delayed=int(number("ApproximateNumberOfMessagesDelayed", 0)),
        kms_key=attributes.get("KmsMasterKeyId") or None,
        sse_sqs=attributes.get("SqsManagedSseEnabled") == "true",
        attributes=dict(attributes),
    )


def _policy(attributes: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        policy = json.loads(attributes.get(name) or "{}")
    except (ValueError, RecursionError):
        return {}
    return policy if isinstance(policy, dict) else {}


# The dead-letter queue.


def _dead_letters(client: Client, source: Queue, arn: str, notes: list[str]) -> DeadLetters:
    name = name_of(arn)
    known = DeadLetters(arn=arn, fifo=name.endswith(".fifo"))
    try:
        queue = client.queue(arn)
        attributes = _attributes(queue)
    except QueueNotFound:
        return replace(known, exists=False)
    except SqsError as error:
        notes.append(f"queue {source.name}: its dead-letter queue {name} could not be looked at: {error}")
        return known
    state = _state(queue, attributes)
    sources = _sources(queue, notes)
    return replace(
        known,
        exists=True,
        url=state.url,
        retention=state.retention,
        fifo=state.fifo,
        visible=state.visible,
        sources=tuple(sources) if sources is not None else None,
        allow=_policy(attributes, "RedriveAllowPolicy").get("redrivePermission"),
    )


def _sources(queue: Queue, notes: list[str]) -> list[str] | None:
    """Names of the queues whose dead-letter messages come here; None if they cannot be listed."""
    try:
        return [name_of(url) for page in _source_pages(queue) for url in page]
    except SqsError as error:
        notes.append(f"queue {queue.name}: the queues that use it as dead-letter queue are not known: {error}")
        return None


def _source_pages(queue: Queue) -> Iterator[list[str]]:
    params: dict[str, Any] = {"MaxResults": _LISTED}
    while True:
        page = queue.call("ListDeadLetterSourceQueues", params)
        yield page.get("queueUrls") or []
        if not page.get("NextToken"):
            return
        params["NextToken"] = page["NextToken"]


# Permissions.


def _probe(client: Client, state: QueueState, notes: list[str]) -> dict[str, str]:
    """What these credentials may not do, with SQS' answer."""
    refused = {}
    for operation, params in _PROBES.items():
        try:
            client.queue(state.url).call(operation, {"ReceiptHandle": FAKE_RECEIPT, **params})
        except ReceiptInvalid:
            continue  # allowed, and nothing there
        except AccessDenied as error:
            refused[operation] = str(error)
        except BadRequest:
            continue  # SQS looked at the receipt: allowed
        except SqsError as error:
            notes.append(f"queue {state.queue}: whether {operation} is allowed is not known: {error}")
    return refused


def _near(client: Client, name: str) -> str:
    """Names that may have been meant."""
    try:
        there = [queue.name for queue in client.queues()]
    except SqsError:
        return "; check its name, the region and the account"
    near = get_close_matches(name_of(name), there, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are {', '.join(sorted(there)[:10])}" if there else ", nor any other"

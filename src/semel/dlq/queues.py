"""The dead-letter queues that there are: those that a queue names as its own, and those that are called so.

The broker shows ages and the first expiry. SQS does not: its metrics have an age, its API has none. So they are
not known until somebody looks at the messages, and then an estimate from those that were seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from semel.dlq.access.peek import no_such_queue, peeked
from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.errors import QueueNotFound, SqsError

_NAMED: Final = ("-dlq", "_dlq", "-dead-letter", "-dead-letters", "-deadletter", "_dead_letter", "-dead", "-failed")
_RETENTION: Final = 345_600.0


def dead_letter_queues(client: Client, *, clock: Callable[[], float] = time.time) -> list[DeadLetterQueue]:
    """All of them, by name."""
    admin = Admin.of(client)
    if admin is not None:
        return _of_broker(client, admin, clock())
    all_ = {queue.name: (queue, _attributes(queue)) for queue in client.queues()}
    sources = _sources({name: attributes for name, (_, attributes) in all_.items()})
    return [
        _info(queue.name, queue.url, attributes, sources.get(name, ()))
        for name, (queue, attributes) in sorted(all_.items())
        if attributes and (name in sources or is_called_so(name))
    ]


def dead_letter_queue(client: Client, name: str, *, clock: Callable[[], float] = time.time) -> DeadLetterQueue:
    """This one, by name, URL or ARN, whether or not any queue names it as its own."""
    queue = client.queue(name)
    admin = Admin.of(client)
    if admin is not None:
        found = _of_broker(client, admin, clock(), only=queue.name)
        if not found:
            raise no_such_queue(queue)
        return found[0]
    try:
        attributes = queue.attributes()
        sources = _listed_sources(queue)
    except QueueNotFound:
        raise no_such_queue(queue) from None
    return _info(queue.name, queue.url, attributes, sources)


class NotDeadLetterQueue(SemelError):
    """No queue has this one as its dead-letter queue, and nobody said that it is meant all the same."""


def check_dead_letter_queue(client: Client, name: str) -> None:
    """Raises NotDeadLetterQueue: what is in it may be waiting for its workers."""
    queue = client.queue(name)
    admin = Admin.of(client)
    if admin is not None:
        rows = {row["name"]: row["attributes"] for row in admin.queues()}
        if queue.name not in rows:
            raise no_such_queue(queue)
        sources = _sources(rows).get(queue.name, ())
    else:
        try:
            sources = _listed_sources(queue)
        except QueueNotFound:
            raise no_such_queue(queue) from None
    if not sources:
        raise not_dead_letter_queue(queue.name)


def not_dead_letter_queue(name: str) -> NotDeadLetterQueue:
    return NotDeadLetterQueue(
        f"{name} is not the dead-letter queue of any queue (as far as can be seen here): its messages may be waiting "
        "for workers"
    )


def address(url: str, region: str, endpoint: str = "") -> str:
    """Where a queue is, for whoever is about to act on it: the endpoint, or the region on AWS, and the account."""
    parts = urlsplit(url)
    host = urlsplit(endpoint).hostname or parts.hostname or ""
    path = parts.path.strip("/").split("/")
    account = f", account {path[-2]}" if len(path) > 1 else ""
    on_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
    return f"{f'AWS {region}' if on_aws else endpoint or f'{parts.scheme}://{parts.netloc}'}{account}"


def is_called_so(name: str) -> bool:
    return name.removesuffix(".fifo").lower().endswith(_NAMED)


def estimated(info: DeadLetterQueue, seen: Iterable[DeadLetterMessage], now: float) -> DeadLetterQueue:
    """With the ages that some of its letters show."""
    times = [message.sent for message in seen if message.sent]
    if not times:
        return info
    oldest = min(times)
    return replace(
        info,
        oldest_age=max(0.0, now - oldest),
        first_expires=oldest + info.retention,
        estimated=len(times) < info.depth,
    )


# Semel's broker.


def _of_broker(client: Client, admin: Admin, now: float, only: str | None = None) -> list[DeadLetterQueue]:
    rows = {row["name"]: row for row in admin.queues()}
    sources = _sources({name: row["attributes"] for name, row in rows.items()})
    found = []
    for name, row in sorted(rows.items()):
        if name == only or (only is None and (name in sources or is_called_so(name))):
            counts = {
                "ApproximateNumberOfMessages": row["visible"],
                "ApproximateNumberOfMessagesNotVisible": row["in_flight"],
                "ApproximateNumberOfMessagesDelayed": row["delayed"],
                "QueueArn": row["arn"],
            }
            url = f"{client.endpoint}/{row['arn'].split(':')[4]}/{name}"
            info = _info(name, url, row["attributes"] | counts, sources.get(name, ()))
            found.append(_dated(admin, info, now) if info.depth else info)
    return found


def _dated(admin: Admin, info: DeadLetterQueue, now: float) -> DeadLetterQueue:
    """The ages, from the first thousand: what SQS moved keeps the time it was sent at, so the first may be younger."""
    page = admin.peek(info.name, limit=MOST, bodies=False)
    messages = [peeked(message, info.name) for message in page.messages]
    if not messages:
        return info
    return replace(
        info,
        oldest_age=max(0.0, now - min(dead_letter.sent for dead_letter in messages)),
        first_expires=min((dead_letter.expires for dead_letter in messages if dead_letter.expires), default=None),
        estimated=page.next is not None,
    )


# Attributes.


def _attributes(queue: Queue) -> dict[str, str]:
    try:
        return queue.attributes()
    except SqsError:  # gone since, or not ours to look at
        return {}


def policy_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A queue's RedrivePolicy; empty if it has none that can be read."""
    given = attributes.get("RedrivePolicy") or "{}"
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sources(queues: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name, attributes in sorted(queues.items()):
        target = str(policy_of(attributes).get("deadLetterTargetArn", "")).rpartition(":")[2]
        if target:
            found.setdefault(target, []).append(name)
    return {name: tuple(sources) for name, sources in found.items()}


def _listed_sources(queue: Queue) -> tuple[str, ...]:
    found: list[str] = []
    params: dict[str, Any] = {"MaxResults": 1_000}
    try:
        while True:
            page = queue.call("ListDeadLetterSourceQueues", params)
            found += [url.rpartition("/")[2] for url in page.get("queueUrls") or ()]
            if not page.get("NextToken"):
                return tuple(sorted(found))
            params["NextToken"] = page["NextToken"]
    except QueueNotFound:
        raise
    except SqsError:
        return tuple(sorted(found))


def _info(name: str, url: str, attributes: Mapping[str, Any], sources: Iterable[str]) -> DeadLetterQueue:
    def number(key: str, otherwise: float) -> float:
        try:
            return float(attributes[key])
        except (KeyError, TypeError, ValueError):
            return otherwise

    receives = str(policy_of(attributes).get("maxReceiveCount", ""))
    return DeadLetterQueue(
        name=name,
        url=url,
        arn=str(attributes.get("QueueArn", "")),
        fifo=name.endswith(".fifo"),
        visible=int(number("ApproximateNumberOfMessages", 0)),
        in_flight=int(number("ApproximateNumberOfMessagesNotVisible", 0)),
        delayed=int(number("ApproximateNumberOfMessagesDelayed", 0)),
        retention=number("MessageRetentionPeriod", _RETENTION),
        sources=tuple(sources),
        max_receives=int(receives) if receives.isdigit() else None,
    )

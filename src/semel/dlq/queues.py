"""Dead-letter queues: those that the RedrivePolicy of a queue names, and those whose names end like one (-dlq, …).

Semel's broker shows ages and the first expiry. SQS does not: its metrics have an age, but its API has none. On SQS they
are unknown until messages are received, and then estimated from those.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue
from semel.errors import SemelError
from semel.sqs.client import Client, Queue
from semel.sqs.client.admin import MOST, Admin
from semel.sqs.errors import QueueNotFound, SqsError

_NAMED: Final = ("-dlq", "_dlq", "-dead-letter", "-dead-letters", "-deadletter", "_dead_letter", "-dead", "-failed")
_RETENTION: Final = 345_600.0
_THREADS: Final = 16
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class NoSuchQueue(SemelError):
    """There is no such queue. Check the queue's name, region and endpoint."""


class NotDeadLetterQueue(SemelError):
    """No queue has this one as its dead-letter queue. Check the name, or allow it with `any_queue=True`."""


def no_such_queue(queue: Queue) -> NoSuchQueue:
    return NoSuchQueue(
        f"there is no queue {queue.name} at {queue.client.endpoint}; `semel queues list` shows all queues"
    )


def not_dead_letter_queue(name: str) -> NotDeadLetterQueue:
    return NotDeadLetterQueue(
        f"{name} is not the dead-letter queue of any queue (as far as can be seen here): its messages may be waiting "
        "for workers"
    )


# The RedrivePolicy, and which queues use which dead-letter queue.


def redrive_policy(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A queue's RedrivePolicy; empty if it has none that can be read."""
    text = attributes.get("RedrivePolicy") or "{}"
    try:
        policy = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return {}
    return policy if isinstance(policy, dict) else {}


def max_receives(attributes: Mapping[str, Any]) -> int | None:
    """After how many receives a queue's messages are moved to its dead-letter queue; None if they are not."""
    count = str(redrive_policy(attributes).get("maxReceiveCount", ""))
    return int(count) if count.isdecimal() else None


def dead_letter_queue_name(attributes: Mapping[str, Any]) -> str:
    """The name of a queue's dead-letter queue; "" if it has none."""
    return str(redrive_policy(attributes).get("deadLetterTargetArn", "")).rpartition(":")[2]


def sources_by_queue(queues: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The names of each dead-letter queue's source queues. `queues` has the attributes of all queues, by name."""
    sources: dict[str, list[str]] = {}
    for name, attributes in sorted(queues.items()):
        if target := dead_letter_queue_name(attributes):
            sources.setdefault(target, []).append(name)
    return {name: tuple(names) for name, names in sources.items()}


def source_urls(queue: Queue) -> dict[str, str]:
    """The queues that have this one as their dead-letter queue: their URLs, by name. Raises SqsError."""
    urls: list[str] = []
    params: dict[str, Any] = {"MaxResults": 1_000}
    while True:
        page = queue.call("ListDeadLetterSourceQueues", params)
        urls += page.get("queueUrls") or ()
        if not page.get("NextToken"):
            return {queue.client.queue(url).name: url for url in sorted(urls)}
        params["NextToken"] = page["NextToken"]


def depth(queue: Queue) -> int:
    """The number of messages, in any state; approximate on SQS."""
    return sum(int(value) for value in queue.attributes(*_COUNTS).values())


def is_called_so(name: str) -> bool:
    return name.removesuffix(".fifo").lower().endswith(_NAMED)


# The dead-letter queues there are.


def dead_letter_queues(client: Client, *, clock: Callable[[], float] = time.time) -> list[DeadLetterQueue]:
    """All dead-letter queues, by name. Queues whose attributes may not be read are included, with an `error`."""
    admin = Admin.of(client)
    if admin is not None:
        return _on_broker(client, admin, clock())
    queues = {queue.name: queue for queue in client.queues()}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="semel-queues") as pool:
        read = dict(zip(queues, pool.map(_attributes, queues.values()), strict=True))
    sources = sources_by_queue({name: known for name, known in read.items() if isinstance(known, dict)})
    infos = []
    for name, known in sorted(read.items()):
        if isinstance(known, SqsError):
            infos.append(replace(_info(name, queues[name].url, {}, sources.get(name, ())), error=str(known)))
        elif known is not None and (name in sources or is_called_so(name)):
            infos.append(_info(name, queues[name].url, known, sources.get(name, ())))
    return infos


def _attributes(queue: Queue) -> dict[str, str] | SqsError | None:
    """None if the queue was deleted meanwhile."""
    try:
        return queue.attributes()
    except QueueNotFound:
        return None
    except SqsError as error:
        return error


def dead_letter_queue(client: Client, name: str, *, clock: Callable[[], float] = time.time) -> DeadLetterQueue:
    """The queue with this name, URL or ARN, even if no queue uses it as its dead-letter queue. Raises NoSuchQueue."""
    queue = client.queue(name)
    admin = Admin.of(client)
    if admin is not None:
        infos = _on_broker(client, admin, clock(), only=queue.name)
        if not infos:
            raise no_such_queue(queue)
        return infos[0]
    try:
        attributes = queue.attributes()
        return _info(queue.name, queue.url, attributes, _source_names(queue))
    except QueueNotFound:
        raise no_such_queue(queue) from None


def check_dead_letter_queue(client: Client, name: str) -> None:
    """Raises NotDeadLetterQueue if no queue uses it as one: its messages may be waiting for workers."""
    queue = client.queue(name)
    admin = Admin.of(client)
    try:
        if admin is None:
            sources = _source_names(queue)
        else:
            rows = {row["name"]: row["attributes"] for row in admin.queues()}
            if queue.name not in rows:
                raise no_such_queue(queue)
            sources = sources_by_queue(rows).get(queue.name, ())
    except QueueNotFound:
        raise no_such_queue(queue) from None
    if not sources:
        raise not_dead_letter_queue(queue.name)


def _source_names(queue: Queue) -> tuple[str, ...]:
    """Empty if they may not be listed."""
    try:
        return tuple(sorted(source_urls(queue)))
    except QueueNotFound:
        raise
    except SqsError:
        return ()


def address(url: str, region: str, endpoint: str = "") -> str:
    """Where a queue is, to show before an action on it: the endpoint, or on AWS the region, and the account."""
    parts = urlsplit(url)
    host = urlsplit(endpoint).hostname or parts.hostname or ""
    path = parts.path.strip("/").split("/")
    account = f", account {path[-2]}" if len(path) > 1 else ""
    on_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
    return f"{f'AWS {region}' if on_aws else endpoint or f'{parts.scheme}://{parts.netloc}'}{account}"


def estimated(info: DeadLetterQueue, messages: Iterable[DeadLetterMessage], now: float) -> DeadLetterQueue:
    """The queue with ages from some of its messages."""
    times = [message.sent for message in messages if message.sent]
    if not times:
        return info
    oldest = min(times)
    return replace(
        info,
        oldest_age=max(0.0, now - oldest),
        first_expires=oldest + info.retention,
        estimated=len(times) < info.depth,
    )


def _on_broker(client: Client, admin: Admin, now: float, only: str | None = None) -> list[DeadLetterQueue]:
    rows = {row["name"]: row for row in admin.queues()}
    sources = sources_by_queue({name: row["attributes"] for name, row in rows.items()})
    infos = []
    for name, row in sorted(rows.items()):
        if name == only or (only is None and (name in sources or is_called_so(name))):
            counts = dict(zip(_COUNTS, (row["visible"], row["in_flight"], row["delayed"]), strict=True))
            url = f"{client.endpoint}/{row['arn'].split(':')[4]}/{name}"
            info = _info(name, url, row["attributes"] | counts | {"QueueArn": row["arn"]}, sources.get(name, ()))
            infos.append(_dated(admin, info, now) if info.depth else info)
    return infos


def _dated(admin: Admin, info: DeadLetterQueue, now: float) -> DeadLetterQueue:
    """The queue with ages from its first thousand messages: a moved message keeps its sent time, so the first one need
    not be the oldest."""
    page = admin.peek(info.name, limit=MOST, bodies=False)
    messages = [DeadLetterMessage.peeked(shown, info.name) for shown in page.messages]
    if not messages:
        return info
    return replace(
        info,
        oldest_age=max(0.0, now - min(message.sent for message in messages)),
        first_expires=min((message.expires for message in messages if message.expires), default=None),
        estimated=page.next is not None,
    )


def _info(name: str, url: str, attributes: Mapping[str, Any], sources: Iterable[str]) -> DeadLetterQueue:
    def number(key: str, otherwise: float) -> float:
        try:
            return float(attributes[key])
        except (KeyError, TypeError, ValueError):
            return otherwise

    visible, in_flight, delayed = (int(number(name, 0)) for name in _COUNTS)
    return DeadLetterQueue(
        name=name,
        url=url,
        arn=str(attributes.get("QueueArn", "")),
        fifo=name.endswith(".fifo"),
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        retention=number("MessageRetentionPeriod", _RETENTION),
        sources=tuple(sources),
        max_receives=max_receives(attributes),
    )

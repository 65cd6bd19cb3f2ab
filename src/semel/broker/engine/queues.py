"""Queues themselves: create, find, list, set, tag, permit, purge, delete."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

from semel.broker.engine.attributes import Arn, checked, normalised, parse_redrive, parse_redrive_allow, same_value
from semel.broker.engine.expiry import expire_all
from semel.broker.engine.generation import MessageState
from semel.broker.engine.lookup import OWNER_ONLY, authorize, url_of
from semel.broker.engine.schema import DELAYED, IN_FLIGHT, NUMBER_MASK, READY
from semel.broker.engine.store import Caller, Queue, Store
from semel.sqs import limits
from semel.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_PARAMETER_VALUE,
    OVER_LIMIT,
    PURGE_QUEUE_IN_PROGRESS,
    QUEUE_DELETED_RECENTLY,
    QUEUE_NAME_EXISTS,
    ServiceError,
    invalid_value,
    missing,
)
from semel.sqs.service_model import enum_values

_NEXT_QUEUE_ID = "SELECT coalesce(max(value), 0) + 1 FROM meta WHERE key = 'last-queue'"
_SAVE_QUEUE_ID = "INSERT OR REPLACE INTO meta VALUES ('last-queue', ?)"
_DELETED_AT = "SELECT at FROM deleted_queues WHERE region = ? AND account = ? AND name = ?"
_FORGET_DELETED = "DELETE FROM deleted_queues WHERE region = ? AND account = ? AND name = ?"
_REMEMBER_DELETED = "INSERT OR REPLACE INTO deleted_queues (region, account, name, at) VALUES (?, ?, ?, ?)"
_DELETE_QUEUE = "DELETE FROM queues WHERE id = ?"
_ALL_OF_THEM = "SELECT id, enqueued, grp FROM messages WHERE id >= ? AND id < ? ORDER BY id"
_COUNTS: Final = {
    "ApproximateNumberOfMessages": READY,
    "ApproximateNumberOfMessagesNotVisible": IN_FLIGHT,
    "ApproximateNumberOfMessagesDelayed": DELAYED,
}
_ACTIONS: Final = frozenset(
    {
        "*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes",
        "GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue", "ListQueues", "CreateQueue", "DeleteQueue",
        "SetQueueAttributes", "AddPermission", "RemovePermission", "ListQueueTags", "TagQueue", "UntagQueue",
        "StartMessageMoveTask", "CancelMessageMoveTask", "ListMessageMoveTasks",
    }
)  # fmt: skip


# Create and delete.


def create(store: Store, params: dict[str, Any], caller: Caller, *, cooldowns: bool) -> dict[str, Any]:
    name: str = params["QueueName"]
    requested = normalised(params.get("Attributes") or {})
    fifo = _checked_name(name, requested)
    arn = store.own(caller, name)
    existing = store.by_arn(arn)
    if existing is not None:
        authorize(existing, caller, "CreateQueue")
        _check_same(existing, requested)
        return {"QueueUrl": url_of(existing, caller)}
    attributes = checked(requested, {}, fifo=fifo)
    _check_redrive(store, arn, attributes)
    tags = _checked_tags(name, params.get("tags") or {})
    _check_recreation(store, arn, caller.now, cooldowns)
    (number,) = store.db.execute(_NEXT_QUEUE_ID).fetchone()
    store.db.execute(_SAVE_QUEUE_ID, (number,))
    group_dedup = attributes.get("DeduplicationScope") == "messageGroup"
    now, generation, key = caller.now, store.new_generation(1, fifo=fifo), store.key(arn)
    queue = Queue(number, name, arn, generation, attributes, tags, group_dedup, now, now, 0, key=key)
    store.save_queue(queue)
    return {"QueueUrl": url_of(queue, caller)}


def _checked_name(name: str, requested: dict[str, str]) -> bool:
    """Whether it names a FIFO queue; name and FifoQueue must agree."""
    fifo = name.endswith(".fifo")
    if not limits.QUEUE_NAME.match(name):
        raise ServiceError(
            INVALID_PARAMETER_VALUE,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    if fifo and requested.get("FifoQueue") != "true":
        raise ServiceError(
            INVALID_PARAMETER_VALUE,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length; set FifoQueue to true to create one.",
        )
    if not fifo and requested.get("FifoQueue") == "true":
        raise ServiceError(
            INVALID_PARAMETER_VALUE,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length.",
        )
    return fifo


def _check_same(queue: Queue, requested: dict[str, str]) -> None:
    wanted = checked(requested, {}, fifo=queue.fifo)
    for attribute in requested:
        if not same_value(attribute, wanted.get(attribute, ""), queue.effective.get(attribute, "")):
            raise ServiceError(
                QUEUE_NAME_EXISTS,
                f"A queue already exists with the same name and a different value for attribute {attribute}",
            )


def _check_recreation(store: Store, arn: Arn, now: int, cooldowns: bool) -> None:
    row = store.db.execute(_DELETED_AT, (arn.region, arn.account, arn.name)).fetchone()
    if row is None:
        return
    if cooldowns and now - row[0] < limits.RECREATE_PAUSE * 1000:
        raise ServiceError(
            QUEUE_DELETED_RECENTLY,
            "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        )
    store.db.execute(_FORGET_DELETED, (arn.region, arn.account, arn.name))


def delete(store: Store, queue: Queue, caller: Caller) -> dict[str, Any]:
    store.db.execute(_DELETE_QUEUE, (queue.id,))
    store.db.execute(_REMEMBER_DELETED, (queue.arn.region, queue.arn.account, queue.name, caller.now))
    store.retire_generation(queue.generation)
    del store.queues[queue.key]
    store.forget_addresses()
    store.forget_counts(queue.key)
    # Polls that wait for this queue must get the error that it is gone.
    store.woken.add(queue.key)
    return {}


def purge(store: Store, queue: Queue, caller: Caller, *, cooldowns: bool) -> dict[str, Any]:
    """A purged queue starts a new generation: nothing of the old one is visible, in flight, delayed or remembered."""
    if cooldowns and queue.purged and caller.now - queue.purged < limits.PURGE_PAUSE * 1000:
        raise ServiceError(
            PURGE_QUEUE_IN_PROGRESS, f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
        )
    old = queue.generation
    queue.generation = store.new_generation(old.next_number, fifo=queue.fifo)
    queue.purged = caller.now
    store.retire_generation(old)
    store.save_queue(queue)
    return {}


# Attributes.


def get_attributes(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    asked = params.get("AttributeNames") or []
    known = enum_values("QueueAttributeName")
    for name in asked:
        if name not in known:
            raise ServiceError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    if not asked:
        return {}
    expire_all(store, queue, caller.now)
    values = {
        **queue.effective,
        **{name: str(queue.generation.counts[state]) for name, state in _COUNTS.items()},
        "QueueArn": str(queue.arn),
        "CreatedTimestamp": str(queue.created // 1000),
        "LastModifiedTimestamp": str(queue.modified // 1000),
    }
    if values.get("KmsDataKeyReusePeriodSeconds") == "300":
        del values["KmsDataKeyReusePeriodSeconds"]
    chosen = values if "All" in asked else {name: values[name] for name in asked if name in values}
    return {"Attributes": chosen} if chosen else {}


def set_attributes(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    requested = params["Attributes"]
    attributes = checked(requested, queue.attributes, fifo=queue.fifo)
    if requested.get("RedrivePolicy"):
        _check_redrive(store, queue.arn, attributes)
    expire_all(store, queue, caller.now)
    delay = queue.delay
    queue.apply(attributes)
    queue.modified = caller.now
    queue.generation.expiry_floor = 0
    store.save_queue(queue)
    if queue.fifo and queue.delay != delay:
        _redelay(store, queue, caller.now)
    store.woken.add(queue.key)
    return {}


def _redelay(store: Store, queue: Queue, now: int) -> None:
    """A FIFO queue's delay also applies to messages that are already in it, if nobody has received them yet."""
    generation = queue.generation
    store.touched.add(generation)
    store.write_out()
    for row, enqueued, name in store.db.execute(_ALL_OF_THEM, (generation.low, generation.high)).fetchall():
        number, due = row & NUMBER_MASK, enqueued + queue.delay
        state = generation.states.get(number)
        if state is not None and (state.receives or state.state == IN_FLIGHT):
            continue
        if state is not None and state.state == DELAYED:
            if due <= now:
                generation.make_ready(state)
                continue
        elif due <= now:
            continue
        else:
            generation.forget(number, name)
            generation.counts[DELAYED] += 1
            group = generation.group(name)
            group.delayed += 1
            state = generation.states[number] = MessageState(number, group, DELAYED, due)
        state.due = due
        generation.hide(state)


def _check_redrive(store: Store, source: Arn, attributes: dict[str, str]) -> None:
    """A dead-letter queue must exist, be of the same account, region and type, and allow this source."""
    text = attributes.get("RedrivePolicy")
    if text is None:
        return
    target = parse_redrive(text).target
    if target.account != source.account:
        raise invalid_value(text, "RedrivePolicy", "Dead-letter target owner should be same as the source.")
    if target.region != source.region:
        raise invalid_value(text, "RedrivePolicy", "Dead-letter queue must be in same region as the source.")
    dead_letter_queue = store.by_arn(target)
    if dead_letter_queue is None:
        raise invalid_value(text, "RedrivePolicy", "Dead letter target does not exist.")
    if dead_letter_queue.fifo != source.name.endswith(".fifo"):
        raise invalid_value(text, "RedrivePolicy", "Dead-letter queue must be same type of queue as the source.")
    allow = dead_letter_queue.attributes.get("RedriveAllowPolicy")
    if allow is not None and not parse_redrive_allow(allow)(source):
        reason = f"Queue {source} is not allowed to use {target} as its dead-letter queue by its RedriveAllowPolicy."
        raise invalid_value(text, "RedrivePolicy", reason)


# Lists, tags, permissions.


def list_queues(store: Store, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    own = store.own(caller, params.get("QueueNamePrefix") or "")
    mine = [queue for queue in store.queues.values() if queue.name.startswith(own.name) and _beside(queue.arn, own)]
    return _page(mine, "QueueUrls", params, caller, always=False)


def _beside(arn: Arn, other: Arn) -> bool:
    return arn.region == other.region and arn.account == other.account


def list_sources(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    sources = [
        other for other in store.queues.values() if other.redrive is not None and other.redrive.target == queue.arn
    ]
    return _page(sources, "queueUrls", params, caller, always=True)


def _page(listed: list[Queue], key: str, params: dict[str, Any], caller: Caller, *, always: bool) -> dict[str, Any]:
    """One page of these queues, which are all of one region and account."""
    limit = params.get("MaxResults")
    if limit is not None and not 1 <= limit <= limits.MAX_LISTED:
        raise invalid_value(limit, "MaxResults", "MaxResults must be an integer between 1 and 1000.")
    token, last = params.get("NextToken"), ""
    if token:
        if limit is None:
            raise ServiceError(INVALID_PARAMETER_VALUE, "The NextToken parameter needs MaxResults to be given as well.")
        try:
            last = urlsafe_b64decode(token.encode()).decode()
        except ValueError:
            raise ServiceError(INVALID_PARAMETER_VALUE, "Invalid or expired next token.") from None
    queues = sorted((queue for queue in listed if queue.name > last), key=lambda queue: queue.name)
    page = queues[: limit or limits.MAX_LISTED]
    answer: dict[str, Any] = {}
    if page or always:
        answer[key] = [url_of(queue, caller) for queue in page]
    if limit is not None and len(queues) > len(page):
        answer["NextToken"] = urlsafe_b64encode(page[-1].name.encode()).decode()
    return answer


def _checked_tags(queue: str, tags: dict[str, str]) -> dict[str, str]:
    """All the tags that a queue will have."""
    if "" in tags:
        raise ServiceError(INVALID_PARAMETER_VALUE, "Tag keys must be 1 to 128 characters long.")
    if len(tags) > limits.MAX_TAGS:
        raise ServiceError(INVALID_PARAMETER_VALUE, f"Too many tags added for queue {queue}.")
    return tags


def tag(store: Store, queue: Queue, params: dict[str, Any]) -> dict[str, Any]:
    if not params["Tags"]:
        raise missing("Tags")
    queue.tags = _checked_tags(queue.name, {**queue.tags, **params["Tags"]})
    store.save_queue(queue)
    return {}


def untag(store: Store, queue: Queue, params: dict[str, Any]) -> dict[str, Any]:
    if not params["TagKeys"]:
        raise missing("TagKeys")
    queue.tags = {key: value for key, value in queue.tags.items() if key not in params["TagKeys"]}
    store.save_queue(queue)
    return {}


def add_permission(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    label, accounts, actions = params["Label"], params["AWSAccountIds"], params["Actions"]
    if not limits.LABEL.match(label):
        reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        raise invalid_value(label, "Label", reason)
    if not accounts or not actions:
        raise missing("PrincipalId" if not accounts else "Actions")
    if len(actions) > 7:
        raise ServiceError(OVER_LIMIT, f"{len(actions)} Actions were found, maximum allowed is 7.")
    for action in actions:
        if action not in _ACTIONS:
            raise invalid_value(
                action, "ActionName", "Please refer to the appropriate WSDL for a list of valid actions."
            )
        if action in OWNER_ONLY:
            reason = "Only the queue owner is allowed to invoke this action."
            raise invalid_value(f"SQS:{action}", "ActionName", reason)
    policy = _policy(queue)
    if any(statement.get("Sid") == label for statement in policy["Statement"]):
        raise invalid_value(label, "Label", "Already exists.")
    if len(policy["Statement"]) >= 20:
        raise ServiceError(OVER_LIMIT, "A policy can have 20 statements at most.")
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    named = [f"SQS:{action}" for action in actions]
    policy["Statement"].append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
            "Action": named[0] if len(named) == 1 else named,
            "Resource": str(queue.arn),
        }
    )
    return _set_policy(store, queue, policy, caller)


def remove_permission(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    policy, label = _policy(queue), params["Label"]
    kept = [statement for statement in policy["Statement"] if statement.get("Sid") != label]
    if len(kept) == len(policy["Statement"]):
        raise invalid_value(label, "Label", "can't find label.")
    return _set_policy(store, queue, {**policy, "Statement": kept}, caller)


def _policy(queue: Queue) -> dict[str, Any]:
    text = queue.attributes.get("Policy")
    if text is None:
        return {"Version": "2008-10-17", "Id": f"{queue.arn}/SQSDefaultPolicy", "Statement": []}
    policy: dict[str, Any] = json.loads(text)
    statements = policy.get("Statement", [])
    policy["Statement"] = list(statements) if isinstance(statements, list) else [statements]
    return policy


def _set_policy(store: Store, queue: Queue, policy: dict[str, Any], caller: Caller) -> dict[str, Any]:
    text = json.dumps(policy, separators=(",", ":")) if policy["Statement"] else ""
    queue.apply(checked({"Policy": text}, queue.attributes, fifo=queue.fifo))
    queue.modified = caller.now
    store.save_queue(queue)
    return {}

"""SendMessage and SendMessageBatch: checks, deduplication, and the row that a message becomes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, NamedTuple

from semel.broker.engine.dedup import digest_of
from semel.broker.engine.generation import Generation, MessageState
from semel.broker.engine.rows import packed, wire_of
from semel.broker.engine.schema import DELAYED, GENERATION_BITS, NUMBER_MASK, READY
from semel.broker.engine.store import Caller, Queue, Store, sequence_number
from semel.broker.engine.validation import (
    byte_length,
    check_batch,
    check_body,
    check_token,
    checked_attributes,
    checked_trace_header,
)
from semel.sqs import limits
from semel.sqs.checksums import md5_of_attributes
from semel.sqs.errors import (
    BATCH_REQUEST_TOO_LONG,
    INVALID_PARAMETER_VALUE,
    ServiceError,
    invalid_value,
    missing,
)

_WRONG_QUEUE_TYPE: Final = "The request include parameter that is not valid for this queue type."
_NO_DEDUP_ID: Final = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


class Draft(NamedTuple):
    """A message that passed all checks."""

    body: str
    size: int
    delay: int  # milliseconds
    attributes: dict[str, dict[str, Any]] | None
    trace: dict[str, dict[str, Any]] | None
    group: str | None
    dedup: str | None
    is_plain: bool = False  # it has only a body, and no delay


def send(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    draft = _draft(queue, params)
    if draft.size > queue.max_bytes:
        raise _too_long(queue, "are invalid")
    if draft.is_plain and caller.trace is None and _sender(queue, caller) is None:
        _count_sent(store, queue, 1, draft.size)
        return _enqueue_plain(store, queue, draft.body, caller)
    (result,) = _enqueue(store, queue, [draft], caller)
    return result


def send_batch(store: Store, queue: Queue, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    entries = params["Entries"]
    check_batch(entries, "SendMessageBatchRequestEntry")
    if queue.fifo:
        _check_fifo_batch(queue, entries)
    drafts, ids, failed, total = [], [], [], 0
    for entry in entries:
        try:
            draft = _draft(queue, entry)
        except ServiceError as error:
            failed.append(error.as_batch_entry(entry["Id"]))
            continue
        total += draft.size
        if draft.size > queue.max_bytes:
            failed.append(_too_long(queue, "cannot be validated").as_batch_entry(entry["Id"]))
            continue
        drafts.append(draft)
        ids.append(entry["Id"])
    if total > limits.MAX_BATCH_BYTES:
        raise ServiceError(
            BATCH_REQUEST_TOO_LONG,
            f"Batch requests cannot be longer than {limits.MAX_BATCH_BYTES} bytes. You have sent {total} bytes.",
        )
    results = _enqueue(store, queue, drafts, caller)
    for entry_id, result in zip(ids, results, strict=True):
        result["Id"] = entry_id
    answer: dict[str, Any] = {}
    if results:
        answer["Successful"] = results
    if failed:
        answer["Failed"] = failed
    return answer


def _too_long(queue: Queue, verdict: str) -> ServiceError:
    reason = f"Message must be shorter than {queue.max_bytes} bytes."
    return ServiceError(INVALID_PARAMETER_VALUE, f"One or more parameters {verdict}. Reason: {reason}")


def _check_fifo_batch(queue: Queue, entries: list[dict[str, Any]]) -> None:
    """A missing dedup id fails the whole batch. So does a missing group, with another error than for one message."""
    for entry in entries:
        if "MessageGroupId" not in entry:
            raise ServiceError(INVALID_PARAMETER_VALUE, missing("MessageGroupId").message)
        if "MessageDeduplicationId" not in entry and not queue.content_dedup:
            raise ServiceError(INVALID_PARAMETER_VALUE, _NO_DEDUP_ID)


def _draft(queue: Queue, params: dict[str, Any]) -> Draft:
    """One message's parameters, checked against the queue."""
    body: str = params["MessageBody"]
    check_body(body)
    size = byte_length(body)
    if not queue.fifo and params.keys() <= _PLAIN:
        return Draft(body, size, queue.delay, None, None, None, None, queue.delay == 0)
    attributes = trace = None
    if params.get("MessageAttributes"):
        attributes, extra = checked_attributes(params["MessageAttributes"])
        size += extra
    if params.get("MessageSystemAttributes"):
        header = checked_trace_header(params["MessageSystemAttributes"])
        trace = {"AWSTraceHeader": {"StringValue": header, "DataType": "String"}}
    group = params.get("MessageGroupId")
    if group is None and queue.fifo:
        raise missing("MessageGroupId")
    if group is not None:
        check_token(group, "MessageGroupId")
    return Draft(body, size, _delay(queue, params), attributes, trace, group, _dedup_id(queue, params))


_PLAIN: Final = frozenset({"QueueUrl", "Id", "MessageBody"})


def _delay(queue: Queue, params: dict[str, Any]) -> int:
    seconds = params.get("DelaySeconds")
    if seconds is None or (queue.fifo and seconds == 0):
        return queue.delay
    if queue.fifo:
        raise invalid_value(seconds, "DelaySeconds", _WRONG_QUEUE_TYPE)
    if not 0 <= seconds <= limits.MAX_DELAY:
        raise invalid_value(seconds, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    return int(seconds) * 1000


def _dedup_id(queue: Queue, params: dict[str, Any]) -> str | None:
    dedup_id: str | None = params.get("MessageDeduplicationId")
    if dedup_id is not None:
        if not queue.fifo:
            raise invalid_value(dedup_id, "MessageDeduplicationId", _WRONG_QUEUE_TYPE)
        check_token(dedup_id, "MessageDeduplicationId")
        return dedup_id
    if not queue.fifo:
        return None
    if not queue.content_dedup:
        raise ServiceError(INVALID_PARAMETER_VALUE, _NO_DEDUP_ID)
    return sha256(params["MessageBody"].encode()).hexdigest()


def _count_sent(store: Store, queue: Queue, number: int, size: int) -> None:
    store.touched.add(queue.generation)
    store.woken.add(queue.key)
    store.count(queue, "sent", number)
    store.count(queue, "sent_bytes", size)


def _enqueue_plain(store: Store, queue: Queue, body: str, caller: Caller) -> dict[str, Any]:
    """The fast path for most messages: no attributes, no group, no delay."""
    generation, message_id = queue.generation, store.new_id()
    wire, md5 = wire_of(message_id, body)
    store.insert_plain(store.next_row(generation), caller.now, wire)
    generation.counts[READY] += 1
    return {"MD5OfMessageBody": md5, "MessageId": message_id}


def _enqueue(store: Store, queue: Queue, drafts: list[Draft], caller: Caller) -> list[dict[str, Any]]:
    generation, now = queue.generation, caller.now
    results, firsts, dropped = [], [], 0
    _count_sent(store, queue, len(drafts), sum([draft.size for draft in drafts]))
    may_be_plain = _sender(queue, caller) is None and caller.trace is None
    digests = (
        [digest_of(generation.id, d.group or "" if queue.group_dedup else "", d.dedup or "") for d in drafts]
        if queue.fifo
        else []
    )
    known = store.dedup.known(digests, now) if digests else {}
    for number, draft in enumerate(drafts):
        if draft.is_plain and may_be_plain:
            results.append(_enqueue_plain(store, queue, draft.body, caller))
            continue
        message_id = store.new_id()
        wire, md5 = wire_of(message_id, draft.body)
        result: dict[str, Any] = {"MD5OfMessageBody": md5, "MessageId": message_id}
        if draft.attributes:
            result["MD5OfMessageAttributes"] = md5_of_attributes(draft.attributes)
        if draft.trace:
            result["MD5OfMessageSystemAttributes"] = md5_of_attributes(draft.trace)
        results.append(result)
        if digests and digests[number] in known:
            result["MessageId"], first_row = known[digests[number]]
            result["SequenceNumber"] = sequence_number(first_row & NUMBER_MASK)
            dropped += 1
            continue
        row = store.next_row(generation)
        if digests:
            known[digests[number]] = message_id, row
            firsts.append((digests[number], message_id, row))
            result["SequenceNumber"] = sequence_number(row & NUMBER_MASK)
        due = now + draft.delay if draft.delay else 0
        # A FIFO queue's delay is known from its attributes.
        store.insert(row, now, wire, draft.group, _extra(queue, draft, caller), due if due and not queue.fifo else None)
        enter(generation, row & NUMBER_MASK, draft.group, due, now)
    if firsts:
        store.dedup.remember(firsts, now)
    if dropped:
        store.count(queue, "deduplicated", dropped)
    return results


def enter(generation: Generation, number: int, group_name: str | None, due: int, now: int) -> None:
    """Adds a new message to a queue: ready, or delayed until `due`."""
    group = None
    if group_name is not None:
        group = generation.group(group_name)
        group.sent = now
    if due:
        state = generation.states[number] = MessageState(number, group, DELAYED, due)
        generation.counts[DELAYED] += 1
        generation.hide(state)
        if group is not None:
            group.delayed += 1
        return
    generation.counts[READY] += 1
    if group is not None:
        key = number << GENERATION_BITS | number
        group.add(key)
        if group.items[group.start] == key:  # also before one at the back of the queue, after the broker was killed
            generation.offer(group)


def _sender(queue: Queue, caller: Caller) -> str | None:
    """Who sent a message, if it is not simply the queue's account."""
    return None if caller.sender == queue.arn.account else caller.sender


def _extra(queue: Queue, draft: Draft, caller: Caller) -> str | None:
    extra: dict[str, Any] = {}
    if draft.attributes:
        extra["attributes"] = draft.attributes
    trace = draft.trace["AWSTraceHeader"]["StringValue"] if draft.trace else caller.trace
    if trace:
        extra["trace"] = trace
    if draft.dedup:
        extra["dedup"] = draft.dedup
    sender = _sender(queue, caller)
    if sender:
        extra["sender"] = sender
    return packed(extra)

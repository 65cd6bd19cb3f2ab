"""From the outbox to SQS: what a committed transaction has sent is handed over, at least once, always with one key."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from semel.consumer.attempts import Attempt, Step
from semel.consumer.context import logger
from semel.consumer.lane import Tools
from semel.ledger.contract import Ledger, Outgoing
from semel.sqs import Client, Entry, Sent
from semel.sqs.errors import SqsError
from semel.sqs.letters import CARRIED_KEY

AT_ONCE = 100


class Dispatched(NamedTuple):
    """Ids of the messages that SQS took, and of those that it did not: they stay, and are tried again later."""

    sent: list[str]
    kept: list[str]


def dispatch(ledger: Ledger, client: Client, tools: Tools) -> Dispatched:
    """Hand over what waits."""
    waiting = ledger.take_outgoing(AT_ONCE)
    by_queue: defaultdict[str, list[Outgoing]] = defaultdict(list)
    for message in waiting:
        by_queue[message.queue].append(message)
    sent: list[str] = []
    for name, messages in by_queue.items():
        try:
            queue = client.queue(name)
            outcomes = queue.send_many([_entry(message, fifo=queue.fifo) for message in messages])
        except SqsError as error:
            logger.error("the outbox keeps %d messages for %s: %s", len(messages), name, error)
            continue
        tools.crash("after_outbox_send")
        gone = [m.id for m, outcome in zip(messages, outcomes, strict=True) if isinstance(outcome, Sent)]
        for outcome in outcomes:
            if not isinstance(outcome, Sent):
                logger.error("the outbox keeps a message for %s: %s", name, outcome.message)
        tools.metrics.lane(queue.name).outbox_sent.add(len(gone))
        if tools.log is not None:
            now = tools.now()
            tools.log.add_all([Attempt(now, Step.SENT, queue.name, "", _key(message)) for message in messages])
        sent += gone
    if sent:
        ledger.sent_outgoing(sent)
    return Dispatched(sent, [message.id for message in waiting if message.id not in set(sent)])


def _key(message: Outgoing) -> str:
    return message.key or f"outbox/{message.id}"


def _entry(message: Outgoing, *, fifo: bool) -> Entry:
    return Entry(
        message.body,
        attributes={**message.attributes, CARRIED_KEY: _key(message)},
        delay=message.delay,
        group=(message.group or "outbox") if fifo else message.group,
        dedup=f"outbox-{message.id}" if fifo else None,
    )

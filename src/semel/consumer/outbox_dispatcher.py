"""Sends the messages of committed transactions from the outbox to SQS: at least once, always with the same key.

The rules: messages of a FIFO group are sent in order, so a message waits until SQS has accepted the one before it. A
message that SQS refuses stays in the outbox, with the reason, and is tried again after longer and longer waits; it
holds up its group only.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from semel.consumer.context import logger
from semel.consumer.queue_setup import Tools
from semel.ledger.contract import Ledger, LedgerError, OutboxStatus, Outgoing
from semel.ledger.outgoing import DEFAULT_GROUP
from semel.messages.dead_letter_attributes import CARRIED_KEY
from semel.sqs import Client, Entry, Failure, Sent
from semel.sqs.errors import AccessDenied, BadRequest, CredentialsRefused, SqsError
from semel.telemetry.attempt_log import Attempt, Step

AT_ONCE: Final = 100
FIRST_WAIT: Final = 30.0  # seconds after the first refusal; they double
LONGEST_WAIT: Final = 900.0
LOOK_EVERY: Final = 1.0  # seconds; a commit of this process is seen at once
IDLE_LOOK_EVERY: Final = 60.0  # if no handler sends: messages that an earlier version of the app left are still sent
STATUS_EVERY: Final = 10.0


class Dispatched(NamedTuple):
    """Ids of the messages that SQS accepted, and of those that it did not: they stay, and are tried again later."""

    sent: list[str]
    kept: list[str]


class OutboxDispatcher:
    """`sends`: whether a handler of this process can put messages into the outbox."""

    def __init__(self, ledger: Ledger, client: Client, tools: Tools, *, sends: bool = True) -> None:
        self._ledger = ledger
        self._client = client
        self._tools = tools
        self._look_every = LOOK_EVERY if sends else IDLE_LOOK_EVERY
        self._committed = threading.Event()
        self.status = OutboxStatus()  # as it was when it was last read
        self.unsendable: set[str] = set()  # ids of messages that SQS did not accept

    def on_commit(self) -> None:
        """A transaction may have sent something."""
        self._committed.set()

    def run(self, stopping: threading.Event) -> None:
        read_at = -STATUS_EVERY
        while not stopping.is_set():
            sent = self.run_once()
            if not sent:
                if (now := self._tools.monotonic()) - read_at >= STATUS_EVERY:
                    read_at = now
                    self.read_status()
                self._committed.wait(self._look_every)
                self._committed.clear()

    def run_once(self) -> int:
        """Send messages that wait in the outbox. Returns how many of them SQS accepted."""
        try:
            dispatched = dispatch(self._ledger, self._client, self._tools)
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)
            return 0
        self.unsendable.update(dispatched.kept)
        self.unsendable.difference_update(dispatched.sent)
        return len(dispatched.sent)

    def read_status(self) -> None:
        try:
            self.status = self._ledger.outbox_status()
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)

    def flush(self, deadline: float) -> int:
        """Send what waits in the outbox, until the deadline. Returns how many messages are left; another worker may be
        sending them."""
        while self._tools.monotonic() < deadline and self.run_once():
            pass
        try:
            return self._ledger.count_outgoing()
        except LedgerError as error:
            logger.warning("the outbox cannot be read: %s", error)
            return 0


def dispatch(ledger: Ledger, client: Client, tools: Tools) -> Dispatched:
    """Send messages that wait in the outbox."""
    waiting = ledger.take_outgoing(AT_ONCE)
    by_queue: defaultdict[str, list[Outgoing]] = defaultdict(list)
    for message in waiting:
        by_queue[message.queue].append(message)
    sent: list[str] = []
    for name, messages in by_queue.items():
        accepted: list[Outgoing] = []
        refused: list[tuple[Outgoing, str]] = []
        for message, outcome in _hand_over(client, name, messages):
            if isinstance(outcome, Sent):
                accepted.append(message)
            elif _is_refusal(outcome):
                refused.append((message, outcome.message if isinstance(outcome, Failure) else str(outcome)))
            else:
                logger.error("the outbox keeps a message for %s: %s", name, outcome)
        tools.crash("after_outbox_send")
        _count(tools, name, accepted, len(refused))
        _put_off(ledger, name, refused)
        sent += [message.id for message in accepted]
    if sent:
        ledger.sent_outgoing(sent)
    gone = set(sent)
    return Dispatched(sent, [message.id for message in waiting if message.id not in gone])


def _is_refusal(outcome: Failure | SqsError) -> bool:
    """Whether SQS refuses the message, so that trying again at once cannot help. Other failures pass: the message is
    taken from the outbox again after its lease."""
    if isinstance(outcome, Failure):
        return outcome.sender_fault
    # Credentials that have expired may be renewed; a missing permission stays missing.
    return isinstance(outcome, BadRequest | AccessDenied) and not isinstance(outcome, CredentialsRefused)


def _hand_over(
    client: Client, name: str, messages: Sequence[Outgoing]
) -> Iterator[tuple[Outgoing, Sent | Failure | SqsError]]:
    """Send messages to one queue. Yields the outcome of each message that was tried. A call has one message of each
    FIFO group, and after a failure no more messages of that group are tried."""
    left, stuck = list(messages), set[str | None]()
    while left:
        calls = left
        try:
            queue = client.queue(name)
            calls, left = _next_call([message for message in left if message.group not in stuck], fifo=queue.fifo)
            outcomes = queue.send_many([_entry(message, fifo=queue.fifo) for message in calls])
        except SqsError as error:
            # Without the queue, or the permission to send to it, none can be sent. Any other error is reported once.
            yield from ((message, error) for message in ([*calls, *left] if _is_refusal(error) else calls[:1]))
            return
        for message, outcome in zip(calls, outcomes, strict=True):
            if queue.fifo and not isinstance(outcome, Sent):
                stuck.add(message.group)
            yield message, outcome


def _next_call(left: Sequence[Outgoing], *, fifo: bool) -> tuple[list[Outgoing], list[Outgoing]]:
    """The messages of the next call, and those that are left for later calls."""
    if not fifo:
        return list(left), []
    firsts: dict[str | None, Outgoing] = {}
    for message in left:
        firsts.setdefault(message.group, message)
    chosen = {message.id for message in firsts.values()}
    return list(firsts.values()), [message for message in left if message.id not in chosen]


def _put_off(ledger: Ledger, name: str, refused: Sequence[tuple[Outgoing, str]]) -> None:
    if not refused:
        return
    logger.error(
        "SQS refuses %d messages of the outbox for %s: %s; they stay in the outbox and are tried again",
        len(refused),
        name,
        refused[0][1],
    )
    together: defaultdict[tuple[str, float], list[str]] = defaultdict(list)
    for message, error in refused:
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(message.attempts, 10))
        together[error, wait].append(message.id)
    for (error, wait), ids in together.items():
        ledger.refused_outgoing(ids, error=error, wait=wait)


def _count(tools: Tools, name: str, accepted: Sequence[Outgoing], refused: int) -> None:
    queue = name.rstrip("/").replace(":", "/").rpartition("/")[2]  # also of a URL or an ARN
    metrics = tools.metrics.queue(queue)
    metrics.outbox_sent.add(len(accepted))
    metrics.outbox_refused.add(refused)
    if tools.log is not None:
        now = tools.now()
        tools.log.add_all([Attempt(now, Step.SENT, queue, "", _key(message)) for message in accepted])


def described_status(status: OutboxStatus) -> dict[str, Any]:
    """For /health and --explain."""
    described: dict[str, Any] = {"waiting": status.waiting, "refused": status.refused}
    if status.examples:
        described["examples"] = [
            {"queue": message.queue, "key": _key(message), "attempts": message.attempts, "error": message.error}
            for message in status.examples
        ]
    return described


def _key(message: Outgoing) -> str:
    return message.key or f"outbox/{message.id}"


def _entry(message: Outgoing, *, fifo: bool) -> Entry:
    return Entry(
        message.body,
        attributes={**message.attributes, CARRIED_KEY: _key(message)},
        delay=message.delay,
        group=message.group or (DEFAULT_GROUP if fifo else None),
        dedup=f"outbox-{message.id}" if fifo else None,
    )

"""What the clients of a crashing broker saw, and what must be true because of it.

Rules: the broker is bound only by its answers. A call without an answer may have happened or not, until the next
inspection of the queues shows which. A message is identified by its body, which stays the same when it is redelivered,
dead-lettered and redriven. Times are the clients' own; where a time is a bound, it errs in favour of the broker.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from time import monotonic
from typing import Any, Final

Shown = Mapping[str, Any]

# A message that is hidden for no longer than this may become visible during an inspection.
_BLINK: Final = 0.1
# The broker's time is in whole milliseconds, rounded down.
_TICK: Final = 0.001


class Promise(StrEnum):
    KEEPS_SENDS = "no acknowledged send is lost"
    KEEPS_DELETES = "no acknowledged delete comes back"
    ONE_COPY = "no message is there twice"
    COUNTS_RECEIVES = "receive counts never go backwards"
    HIDES = "what was received stays hidden for its time"
    ORDER = "FIFO groups are received in order"
    DEDUP = "a repeated send gives the first one's id and no second copy"
    SEQUENCE = "sequence numbers strictly increase"
    MOVES = "move tasks go on after a crash"
    COUNTS = "a queue's counts are those of its messages"
    CALM = "the broker starts, answers and complains about nothing"


@dataclass(eq=False, slots=True)
class Message:
    """One message, by its body."""

    body: str
    queue: str
    group: str | None = None
    number: int = 0
    exceeds: int = 0  # a sequence number that was known before this one was asked for
    message_id: str | None = None  # of the acknowledged send
    sequence: int = 0
    asks: list[float] = field(default_factory=list)  # deletes that were asked for and not refused
    gone: float = inf  # the time from which it is certainly deleted


@dataclass(eq=False, slots=True)
class Hold:
    """One delivery of a message, which certainly hides it until `until`."""

    message: Message
    queue: str
    handle: str
    message_id: str
    until: float


class Witness:
    """Keeps every answer, and checks each one against the earlier ones. Can be used from any thread."""

    def __init__(self) -> None:
        self.complaints: dict[Promise, list[str]] = defaultdict(list)
        self.messages: dict[str, Message] = {}
        self.alive: Counter[str] = Counter()  # messages not deleted yet, by the queue they were sent to
        self._groups: dict[str, list[Message]] = defaultdict(list)
        self._surely_gone: dict[str, int] = defaultdict(int)  # how many from the start of each group are deleted
        self._receives: dict[str, list[tuple[float, int]]] = defaultdict(list)  # by message id
        self._holds: dict[str, Hold] = {}  # the newest, by message id
        self._highest_sequence = 0
        self._moved: dict[int, tuple[str, int]] = {}  # move tasks by their start
        self._lock = threading.Lock()

    def complain(self, promise: Promise, text: str) -> None:
        self.complaints[promise].append(text)

    # Sending.

    def write(self, queue: str, group: str | None = None) -> Message:
        """A new message that a client is about to send."""
        with self._lock:
            message = Message(f"{queue} {len(self.messages)}", queue, group, exceeds=self._highest_sequence)
            if group is not None:
                message.number = len(self._groups[group])
                message.body = f"{group} {message.number}"
                self._groups[group].append(message)
            self.messages[message.body] = message
            self.alive[queue] += 1
            return message

    def sent(self, message: Message, answer: Shown) -> None:
        message_id, sequence = answer["MessageId"], int(answer.get("SequenceNumber", 0))
        with self._lock:
            if message.message_id is not None:
                if (message.message_id, message.sequence) != (message_id, sequence):
                    first = f"{message.message_id}/{message.sequence}"
                    self.complain(Promise.DEDUP, f"{message.body}: {first} first, then {message_id}/{sequence}")
                return
            message.message_id, message.sequence = message_id, sequence
            if message.group is not None:
                before = self._groups[message.group][message.number - 1].sequence if message.number else 0
                if sequence <= max(before, message.exceeds):
                    self.complain(Promise.SEQUENCE, f"{message.body}: {sequence} after {max(before, message.exceeds)}")
                self._highest_sequence = max(self._highest_sequence, sequence)

    # Receiving.

    def received(self, queue: str, deliveries: Iterable[Shown], asked: float, visibility: float) -> list[Hold]:
        """The result of a receive whose call was sent at `asked`."""
        now = monotonic()
        with self._lock:
            holds: list[Hold] = []
            for delivery in deliveries:
                message = self.messages[delivery["Body"]]
                self._check_delivery(message, delivery, asked, now)
                self._check_order(message, [hold.message for hold in holds], now)
                hold = Hold(message, queue, delivery["ReceiptHandle"], delivery["MessageId"], asked + visibility)
                self._holds[hold.message_id] = hold
                holds.append(hold)
            return holds

    def _check_delivery(self, message: Message, delivery: Shown, asked: float, now: float) -> None:
        message_id, count = delivery["MessageId"], int(delivery["Attributes"]["ApproximateReceiveCount"])
        if message.gone < asked:
            self.complain(Promise.KEEPS_DELETES, f"{message.body} was received after its delete was acknowledged")
        earlier = max((number for at, number in self._receives[message_id] if at < asked), default=0)
        if count <= earlier:
            self.complain(Promise.COUNTS_RECEIVES, f"{message.body}: receive {count} after receive {earlier}")
        self._receives[message_id].append((now, count))
        hold = self._holds.get(message_id)
        if hold is not None and hold.until - _TICK > now:
            self.complain(Promise.HIDES, f"{message.body} was received {hold.until - now:.3f} s before its time")

    def _check_order(self, message: Message, before: list[Message], now: float) -> None:
        """Every earlier message of the group must come earlier in the same receive, or be deleted; a delete without an
        answer is enough."""
        if message.group is None:
            return
        group, start = self._groups[message.group], self._surely_gone[message.group]
        while start < len(group) and group[start].gone < inf:
            start += 1
        self._surely_gone[message.group] = start
        for other in group[start : message.number]:
            if not other.asks and other.gone > now and other not in before:
                self.complain(Promise.ORDER, f"{message.body} was received before {other.body}")

    # Deleting and hiding.

    def deleting(self, hold: Hold) -> float:
        ask = monotonic()
        with self._lock:
            hold.message.asks.append(ask)
        return ask

    def deleted(self, hold: Hold) -> None:
        """A delete that was answered while the message was hidden is final. A later one may have had no effect."""
        with self._lock:
            now = monotonic()
            if now < hold.until:
                self._mark_gone(hold.message, now)

    def not_deleted(self, hold: Hold, ask: float) -> None:
        with self._lock:
            hold.message.asks.remove(ask)

    def hiding(self, hold: Hold, seconds: float) -> tuple[float, float]:
        """The end of the hold may change now. Until the answer, it is certain only up to the earlier of both ends."""
        with self._lock:
            asked, before = monotonic(), hold.until
            hold.until = min(before, asked + seconds)
            return asked, before

    def hidden(self, hold: Hold, seconds: float, asked: float, before: float) -> None:
        with self._lock:
            if monotonic() < before:
                hold.until = asked + seconds

    # Inspecting the queues while there are no calls.

    def inspect(self, peeked: Mapping[str, list[dict[str, Any]]], homes: Mapping[str, str]) -> dict[str, Promise]:
        """What is wrong with the queues as they are now. `homes`: for each queue, the one its messages were sent to."""
        wrong: dict[str, Promise] = {}
        copies: dict[str, list[Shown]] = defaultdict(list)
        for queue, messages in peeked.items():
            for copy in messages:
                message = self.messages.get(copy["Body"])
                if message is None or message.queue != homes[queue]:
                    wrong[f"{copy['Body']} is in {queue}"] = Promise.ONE_COPY
                    continue
                copies[message.body].append(copy)
                wrong |= self._check_lying(message, copy)
        for message in self.messages.values():
            there = len(copies[message.body])
            if there > 1:
                wrong[f"{message.body} is there {there} times"] = Promise.DEDUP if message.group else Promise.ONE_COPY
            if there and message.gone < inf:
                wrong[f"{message.body} is there after its delete was acknowledged"] = Promise.KEEPS_DELETES
            if not there and message.message_id and not message.asks and message.gone == inf:
                wrong[f"{message.body} was acknowledged and is not there"] = Promise.KEEPS_SENDS
        return wrong

    def _check_lying(self, message: Message, copy: Shown) -> dict[str, Promise]:
        wrong: dict[str, Promise] = {}
        message_id, attributes = copy["MessageId"], copy["Attributes"]
        if message.group and message.message_id and message.message_id != message_id:
            wrong[f"{message.body} is there as {message_id}, not as {message.message_id}"] = Promise.DEDUP
        if message.sequence and int(attributes["SequenceNumber"]) != message.sequence:
            wrong[f"{message.body} has another sequence number than it was given"] = Promise.SEQUENCE
        count, receives = int(attributes["ApproximateReceiveCount"]), self._receives.get(message_id, [])
        if count < max((number for _, number in receives), default=0):
            wrong[f"{message.body} has {count} receives, fewer than were answered"] = Promise.COUNTS_RECEIVES
        hold = self._holds.get(message_id)
        if hold is not None and hold.until > monotonic() + _BLINK and copy["State"] != "in_flight":
            wrong[f"{message.body} is {copy['State']} while it should be hidden"] = Promise.HIDES
        return wrong

    def learn(self, peeked: Mapping[str, list[dict[str, Any]]]) -> None:
        """After an inspection without findings: calls with an unknown outcome are decided by what the queues have."""
        there = {copy["Body"] for messages in peeked.values() for copy in messages}
        now = monotonic()
        for message in self.messages.values():
            if message.body in there:
                message.asks.clear()
            elif message.gone == inf and (message.message_id or message.group is None):
                self._mark_gone(message, now)

    def _mark_gone(self, message: Message, now: float) -> None:
        if message.gone == inf:
            message.gone = now
            self.alive[message.queue] -= 1

    def see_moves(self, tasks: Iterable[Shown]) -> bool:
        """Checks a list of move tasks against the previous one. Returns whether a task is running."""
        listed = {
            task["StartedTimestamp"]: (task["Status"], task["ApproximateNumberOfMessagesMoved"]) for task in tasks
        }
        newest_ten = sorted(self._moved.keys() | listed.keys())[-10:]
        for start in newest_ten:
            before, moved_before = self._moved.get(start, ("RUNNING", 0))
            status, moved = listed.get(start, ("not listed", 0))
            wanted = ("COMPLETED",) if before == "COMPLETED" else ("RUNNING", "COMPLETED")
            if status not in wanted or moved < moved_before:
                self.complain(Promise.MOVES, f"{before} with {moved_before} moved, then {status} with {moved} moved")
        self._moved |= listed
        return any(status == "RUNNING" for status, _ in listed.values())

    @property
    def moved(self) -> int:
        return sum(moved for _, moved in self._moved.values())

    def acknowledged(self, group: str) -> list[Message]:
        return [message for message in list(self._groups[group]) if message.message_id]

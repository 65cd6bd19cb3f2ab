"""What the clients of a crashing broker saw, and what must follow from it.

Rules: only what the broker answered is held against it. A call without an answer has happened or not, until the next
look at the queues tells. A message is known by its body, which stays the same through redelivery, dead letter and
redrive. Times are the clients' own; where one is a bound, it errs on the broker's side.
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

# A message that is hidden for no longer than this may become visible while we look.
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
class Letter:
    """One message, by its body."""

    body: str
    queue: str
    group: str | None = None
    number: int = 0
    exceeds: int = 0  # a sequence number that was known before this one was asked for
    message_id: str | None = None  # of the acknowledged send
    sequence: int = 0
    asks: list[float] = field(default_factory=list)  # deletes that were asked for and not refused
    gone: float = inf  # from when on it surely is deleted


@dataclass(eq=False, slots=True)
class Hold:
    """One delivery of a message, which surely hides it until `until`."""

    letter: Letter
    queue: str
    handle: str
    message_id: str
    until: float


class Witness:
    """Remembers every answer and checks each one against those before it. Works from any thread."""

    def __init__(self) -> None:
        self.complaints: dict[Promise, list[str]] = defaultdict(list)
        self.letters: dict[str, Letter] = {}
        self.alive: Counter[str] = Counter()  # messages not deleted yet, by the queue they were sent to
        self._groups: dict[str, list[Letter]] = defaultdict(list)
        self._surely_gone: dict[str, int] = defaultdict(int)  # of each group, so many from its start
        self._receives: dict[str, list[tuple[float, int]]] = defaultdict(list)  # by message id
        self._holds: dict[str, Hold] = {}  # the newest, by message id
        self._highest_sequence = 0
        self._moved: dict[int, tuple[str, int]] = {}  # move tasks by their start
        self._lock = threading.Lock()

    def complain(self, promise: Promise, text: str) -> None:
        self.complaints[promise].append(text)

    # Sending.

    def write(self, queue: str, group: str | None = None) -> Letter:
        """A new message, which a client is about to send."""
        with self._lock:
            letter = Letter(f"{queue} {len(self.letters)}", queue, group, exceeds=self._highest_sequence)
            if group is not None:
                letter.number = len(self._groups[group])
                letter.body = f"{group} {letter.number}"
                self._groups[group].append(letter)
            self.letters[letter.body] = letter
            self.alive[queue] += 1
            return letter

    def sent(self, letter: Letter, answer: Shown) -> None:
        message_id, sequence = answer["MessageId"], int(answer.get("SequenceNumber", 0))
        with self._lock:
            if letter.message_id is not None:
                if (letter.message_id, letter.sequence) != (message_id, sequence):
                    first = f"{letter.message_id}/{letter.sequence}"
                    self.complain(Promise.DEDUP, f"{letter.body}: {first} first, then {message_id}/{sequence}")
                return
            letter.message_id, letter.sequence = message_id, sequence
            if letter.group is not None:
                before = self._groups[letter.group][letter.number - 1].sequence if letter.number else 0
                if sequence <= max(before, letter.exceeds):
                    self.complain(Promise.SEQUENCE, f"{letter.body}: {sequence} after {max(before, letter.exceeds)}")
                self._highest_sequence = max(self._highest_sequence, sequence)

    # Receiving.

    def received(self, queue: str, messages: Iterable[Shown], asked: float, visibility: float) -> list[Hold]:
        """What a receive that was asked for at `asked` has brought."""
        now = monotonic()
        with self._lock:
            holds: list[Hold] = []
            for message in messages:
                letter = self.letters[message["Body"]]
                self._check_delivery(letter, message, asked, now)
                self._check_order(letter, [hold.letter for hold in holds], now)
                hold = Hold(letter, queue, message["ReceiptHandle"], message["MessageId"], asked + visibility)
                self._holds[hold.message_id] = hold
                holds.append(hold)
            return holds

    def _check_delivery(self, letter: Letter, message: Shown, asked: float, now: float) -> None:
        message_id, count = message["MessageId"], int(message["Attributes"]["ApproximateReceiveCount"])
        if letter.gone < asked:
            self.complain(Promise.KEEPS_DELETES, f"{letter.body} was received after its delete was acknowledged")
        earlier = max((seen for at, seen in self._receives[message_id] if at < asked), default=0)
        if count <= earlier:
            self.complain(Promise.COUNTS_RECEIVES, f"{letter.body}: receive {count} after receive {earlier}")
        self._receives[message_id].append((now, count))
        hold = self._holds.get(message_id)
        if hold is not None and hold.until - _TICK > now:
            self.complain(Promise.HIDES, f"{letter.body} was received {hold.until - now:.3f} s before its time")

    def _check_order(self, letter: Letter, before: list[Letter], now: float) -> None:
        """Whatever stands before a message in its group is deleted, or was received just before it."""
        if letter.group is None:
            return
        group, start = self._groups[letter.group], self._surely_gone[letter.group]
        while start < len(group) and group[start].gone < inf:
            start += 1
        self._surely_gone[letter.group] = start
        for other in group[start : letter.number]:
            if not other.asks and other.gone > now and other not in before:
                self.complain(Promise.ORDER, f"{letter.body} was received before {other.body}")

    # Settling.

    def deleting(self, hold: Hold) -> float:
        ask = monotonic()
        with self._lock:
            hold.letter.asks.append(ask)
        return ask

    def deleted(self, hold: Hold) -> None:
        """A late delete may have come too late to matter; one that was answered in time is for good."""
        with self._lock:
            now = monotonic()
            if now < hold.until:
                self._bury(hold.letter, now)

    def not_deleted(self, hold: Hold, ask: float) -> None:
        with self._lock:
            hold.letter.asks.remove(ask)

    def hiding(self, hold: Hold, seconds: float) -> tuple[float, float]:
        """The hold's end may change now: it surely lasts no longer than both the old end and the new one."""
        with self._lock:
            asked, before = monotonic(), hold.until
            hold.until = min(before, asked + seconds)
            return asked, before

    def hidden(self, hold: Hold, seconds: float, asked: float, before: float) -> None:
        with self._lock:
            if monotonic() < before:
                hold.until = asked + seconds

    # Looking at the queues while nobody calls.

    def inspect(self, peeked: Mapping[str, list[dict[str, Any]]], homes: Mapping[str, str]) -> dict[str, Promise]:
        """What is wrong with the queues as they are now; `homes` says for each queue where its messages were sent."""
        wrong: dict[str, Promise] = {}
        copies: dict[str, list[Shown]] = defaultdict(list)
        for queue, messages in peeked.items():
            for message in messages:
                letter = self.letters.get(message["Body"])
                if letter is None or letter.queue != homes[queue]:
                    wrong[f"{message['Body']} is in {queue}"] = Promise.ONE_COPY
                    continue
                copies[letter.body].append(message)
                wrong |= self._check_lying(letter, message)
        for letter in self.letters.values():
            there = len(copies[letter.body])
            if there > 1:
                wrong[f"{letter.body} is there {there} times"] = Promise.DEDUP if letter.group else Promise.ONE_COPY
            if there and letter.gone < inf:
                wrong[f"{letter.body} is there after its delete was acknowledged"] = Promise.KEEPS_DELETES
            if not there and letter.message_id and not letter.asks and letter.gone == inf:
                wrong[f"{letter.body} was acknowledged and is not there"] = Promise.KEEPS_SENDS
        return wrong

    def _check_lying(self, letter: Letter, message: Shown) -> dict[str, Promise]:
        wrong: dict[str, Promise] = {}
        message_id, attributes = message["MessageId"], message["Attributes"]
        if letter.group and letter.message_id and letter.message_id != message_id:
            wrong[f"{letter.body} is there as {message_id}, not as {letter.message_id}"] = Promise.DEDUP
        if letter.sequence and int(attributes["SequenceNumber"]) != letter.sequence:
            wrong[f"{letter.body} has another sequence number than it was given"] = Promise.SEQUENCE
        count, seen = int(attributes["ApproximateReceiveCount"]), self._receives.get(message_id, [])
        if count < max((number for _, number in seen), default=0):
            wrong[f"{letter.body} has {count} receives, fewer than were answered"] = Promise.COUNTS_RECEIVES
        hold = self._holds.get(message_id)
        if hold is not None and hold.until > monotonic() + _BLINK and message["State"] != "in_flight":
            wrong[f"{letter.body} is {message['State']} while it should be hidden"] = Promise.HIDES
        return wrong

    def learn(self, peeked: Mapping[str, list[dict[str, Any]]]) -> None:
        """After a look that found nothing wrong: what was open is decided by what is there and what is not."""
        there = {message["Body"] for messages in peeked.values() for message in messages}
        now = monotonic()
        for letter in self.letters.values():
            if letter.body in there:
                letter.asks.clear()
            elif letter.gone == inf and (letter.message_id or letter.group is None):
                self._bury(letter, now)

    def _bury(self, letter: Letter, now: float) -> None:
        if letter.gone == inf:
            letter.gone = now
            self.alive[letter.queue] -= 1

    def see_moves(self, tasks: Iterable[Shown]) -> bool:
        """Checks a list of move tasks against the one before. True if one is running."""
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

    def acknowledged(self, group: str) -> list[Letter]:
        return [letter for letter in list(self._groups[group]) if letter.message_id]

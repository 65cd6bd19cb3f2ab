"""A model of SQS in lists and loops: what the engine must do, written so simply that reading is enough to check it.

Nothing here is indexed, cached or postponed: every question goes through all messages. Numbers in brackets are the
rules of the specification. What SQS leaves open (ids, handles, which messages a Standard queue picks) is not decided
here: the test tells the model what it saw, and the model checks whether that was allowed. Times are in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256

SECOND = 1000
DEDUP_WINDOW = 300 * SECOND
ATTEMPT_WINDOW = 300 * SECOND
TWELVE_HOURS = 12 * 3600 * SECOND
LONGEST_MOVE = 36 * 3600 * SECOND
BACK_OF_THE_QUEUE = 3  # receives after which a Standard queue prefers others [22]

BAD_VALUE = "InvalidParameterValue"
MISSING = "MissingParameter"
BAD_HANDLE = "ReceiptHandleIsInvalid"
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
NOT_FOUND = "ResourceNotFoundException"
OVER_LIMIT = "OverLimit"


class Refusal(Exception):
    """An error answer, by its query code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class State(Enum):
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"


@dataclass(frozen=True)
class Entry:
    """What a client asks to send."""

    body: str
    group: str | None = None
    dedup_id: str | None = None
    delay: int | None = None  # seconds
    tag: str | None = None  # a message attribute


@dataclass(eq=False)
class Message:
    """One message in one queue. A move makes a new one, so a handle never leads into another queue."""

    number: int  # in order of arrival
    body: str
    tag: str | None
    group: str | None
    dedup_id: str | None
    sent: int  # SentTimestamp
    enqueued: int  # retention counts from here
    arrived: int  # in this queue
    delayed_until: int = 0  # Standard only
    message_id: str = ""  # learnt from the engine; empty until a moved message has been seen
    sequence: int = 0
    source: str | None = None  # the queue that it was dead-lettered from
    prior: int = 0  # receives in other queues
    receives: int = 0  # receives in this one
    first_received: int = 0
    received: int = 0
    hidden_until: int = 0
    handle: str = ""  # of the newest receive
    receipt: int = 0  # number of the newest receive, in all queues
    behind: int = 0  # the newest number when it was last sent to the back of the queue [22]
    here: bool = True


@dataclass(frozen=True)
class Redrive:
    target: str
    max_receives: int


@dataclass(frozen=True)
class Accepted:
    """What a FIFO queue keeps of a send for five minutes."""

    at: int
    message: Message


@dataclass(frozen=True)
class Attempt:
    """The answer to a ReceiveRequestAttemptId: each message, the number of its receive, and until when it is hidden."""

    at: int
    messages: list[tuple[Message, int, int]]


@dataclass(eq=False)
class Queue:
    name: str
    group_scope: bool = False  # dedup per group, as at creation [32]
    content_dedup: bool = False
    visibility: int = 30 * SECOND
    delay: int = 0
    retention: int = 4 * 24 * 3600 * SECOND
    redrive: Redrive | None = None
    look_ahead: int = 120_000  # how many messages a FIFO queue looks at to find groups
    messages: list[Message] = field(default_factory=list)  # in the order in which they are to be received
    accepted: dict[tuple[str | None, str], Accepted] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    last_sequence: int = 0
    turns: dict[str, int] = field(default_factory=dict)  # FIFO groups: larger if the group was served later

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    def due(self, message: Message) -> int:
        """When a message becomes visible, or became so."""
        if message.receives:
            return message.hidden_until
        # A FIFO queue's delay applies also to messages that are already in it [17].
        return message.enqueued + self.delay if self.fifo else message.delayed_until

    def state(self, message: Message, now: int) -> State:
        if self.due(message) <= now:
            return State.VISIBLE
        return State.IN_FLIGHT if message.receives else State.DELAYED

    def count(self, state: State, now: int) -> int:
        return sum(self.state(message, now) is state for message in self.messages)

    def groups(self) -> dict[str | None, list[Message]]:
        groups: dict[str | None, list[Message]] = {}
        for message in self.messages:
            groups.setdefault(message.group, []).append(message)
        return groups

    def busy_groups(self, now: int) -> int:
        busy = {message.group for message in self.messages if self.state(message, now) is State.IN_FLIGHT}
        return len(busy - {None})

    def receivable(self, now: int) -> list[Message]:
        """The messages that a receive may return, for a FIFO queue in the order in which it must."""
        if not self.fifo:
            return [message for message in self.messages if self.state(message, now) is State.VISIBLE]
        runs = []
        for group in self.groups().values():
            # The first hidden message of a group blocks all messages behind it, and none before it [36, 38].
            run = []
            for message in group:
                if self.state(message, now) is not State.VISIBLE:
                    break
                run.append(message)
            if run:
                runs.append(run)
        # The group that has waited longest comes first [54], and all of it before the next group [37].
        runs.sort(key=lambda run: (self.turns.get(run[0].group or "", 0), self.messages.index(run[0])))
        return [message for run in runs if self.messages.index(run[0]) < self.look_ahead for message in run]


@dataclass(frozen=True)
class Receipt:
    queue: Queue
    message: Message


@dataclass(eq=False)
class Task:
    """A move task. `left`: the messages that were in the source at its start and are still to do, oldest first."""

    handle: str
    source: str
    destination: str | None
    rate: int | None
    started: int
    left: list[Message]
    status: str = "RUNNING"
    moved: int = 0


@dataclass(eq=False)
class Model:
    max_in_flight: int = 120_000
    look_ahead: int = 120_000
    move_step: int = 200  # messages that a move task moves at a time
    queues: dict[str, Queue] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    message_ids: set[str] = field(default_factory=set)
    serial: int = 0

    def next_number(self) -> int:
        self.serial += 1
        return self.serial

    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise Refusal(NO_QUEUE)
        return self.queues[name]

    def let_time_pass(self, now: int) -> None:
        """Remove messages that are past their retention, visible or not [18]."""
        for queue in self.queues.values():
            for message in list(queue.messages):
                if message.enqueued + queue.retention <= now:
                    self.remove(queue, message)

    def remove(self, queue: Queue, message: Message) -> None:
        queue.messages.remove(message)
        message.here = False

    def learn_id(self, message: Message, message_id: str) -> None:
        assert message_id not in self.message_ids, "a MessageId was given twice"
        self.message_ids.add(message_id)
        message.message_id = message_id

    def learn_sequence(self, queue: Queue, message: Message, sequence: str) -> None:
        """A message's sequence number must fit those of the messages around it [35]."""
        assert len(sequence) == 20
        for other in queue.messages:
            if other.sequence and other is not message:
                assert (other.number < message.number) == (other.sequence < int(sequence)), "sequence numbers must grow"
        message.sequence = int(sequence)
        queue.last_sequence = max(queue.last_sequence, message.sequence)

    # Send.

    def send(self, queue: Queue, entry: Entry, now: int) -> tuple[Message, bool]:
        """The message that the answer is about, and whether it is new."""
        dedup_id = self._checked(queue, entry)
        key = (entry.group if queue.group_scope else None, dedup_id or "")
        if queue.fifo:
            accepted = queue.accepted.get(key)
            if accepted is not None and now < accepted.at + DEDUP_WINDOW:
                return accepted.message, False
        delay = queue.delay if entry.delay is None else entry.delay * SECOND
        message = Message(
            self.next_number(), entry.body, entry.tag, entry.group, dedup_id, sent=now, enqueued=now, arrived=now
        )
        message.delayed_until = now + delay
        queue.messages.append(message)
        if queue.fifo:
            queue.accepted[key] = Accepted(now, message)
        return message, True

    def _checked(self, queue: Queue, entry: Entry) -> str | None:
        """Check the entry; returns its deduplication id [33, 40]."""
        if not queue.fifo:
            if entry.dedup_id is not None:
                raise Refusal(BAD_VALUE)
            return None
        if entry.group is None:
            raise Refusal(MISSING)
        if entry.delay:
            raise Refusal(BAD_VALUE)
        if entry.dedup_id is not None:
            return entry.dedup_id
        if not queue.content_dedup:
            raise Refusal(BAD_VALUE)
        return sha256(entry.body.encode()).hexdigest()

    # Receive.

    def exhausted(self, queue: Queue, message: Message) -> bool:
        """Whether the next receive dead-letters it instead of handing it out [23]."""
        redrive = queue.redrive
        return redrive is not None and redrive.target in self.queues and message.receives >= redrive.max_receives

    def room(self, queue: Queue, now: int) -> int:
        """How many more messages may be in flight. On a Standard queue, it is an error if there is no room."""
        room = self.max_in_flight - queue.count(State.IN_FLIGHT, now)
        if room <= 0 and not queue.fifo:
            raise Refusal(OVER_LIMIT)
        return room

    def fifo_choice(self, queue: Queue, limit: int, now: int) -> tuple[list[Message], list[Message]]:
        """The messages that a receive from a FIFO queue hands out, and those that it dead-letters."""
        handed: list[Message] = []
        dead_letters: list[Message] = []
        group: str | None = None
        while len(handed) < limit:
            # Dead-lettered messages make room within the look-ahead. A group that was begun is continued first.
            left = replace(queue, messages=[message for message in queue.messages if message not in dead_letters])
            candidates = [message for message in left.receivable(now) if message not in handed]
            candidates.sort(key=lambda message: message.group != group)
            if not candidates:
                break
            for message in candidates[: limit - len(handed)]:
                group = message.group
                (dead_letters if self.exhausted(queue, message) else handed).append(message)
        return handed, dead_letters

    def check_standard_choice(
        self, queue: Queue, limit: int, handed: list[Message], dead_letters: list[Message], now: int
    ) -> None:
        """As many messages as there are, each once, in any order. Without groups, older messages come first."""
        visible = queue.receivable(now)
        spent = [message for message in visible if self.exhausted(queue, message)]
        fresh = [message for message in visible if message not in spent]
        assert len(handed) == min(limit, len(fresh))
        assert len(set(handed)) == len(handed)
        assert all(message in fresh for message in handed)
        assert all(message in spent for message in dead_letters)
        assert len(handed) == limit or len(dead_letters) == len(spent)
        if any(message.group is not None for message in visible):
            return  # fairness between tenants decides [41]
        for left_out in fresh:
            if left_out not in handed and not left_out.behind:
                assert all((message.behind or message.number) < left_out.number for message in handed)

    def hand_out(self, queue: Queue, message: Message, handle: str, visibility: int, now: int) -> None:
        assert handle not in self.receipts, "every receive gives a new handle"  # [6]
        message.receives += 1
        message.first_received = message.first_received or now
        message.received, message.hidden_until = now, now + visibility
        message.handle, message.receipt = handle, self.next_number()
        self.receipts[handle] = Receipt(queue, message)
        if message.receives >= BACK_OF_THE_QUEUE:
            message.behind = self.serial

    def dead_letter(self, queue: Queue, message: Message, now: int) -> None:
        """Moves it to the dead-letter queue [19, 20, 24, 25]."""
        assert queue.redrive is not None
        self.remove(queue, message)
        dlq_message = Message(
            self.next_number(),
            message.body,
            message.tag,
            message.group,
            message.message_id if queue.fifo else None,
            sent=message.sent,
            enqueued=now if queue.fifo else message.enqueued,
            arrived=now,
            message_id=message.message_id,
            source=queue.name,
            prior=message.prior + message.receives,
            first_received=message.first_received,
        )
        self.queues[queue.redrive.target].messages.append(dlq_message)

    def replay(self, queue: Queue, attempt: str, now: int) -> list[Message]:
        """The messages with which this attempt id was answered, if it must be answered with them again [39]."""
        earlier = queue.attempts.get(attempt)
        if earlier is None or now >= earlier.at + ATTEMPT_WINDOW:
            return []
        for message, receipt, hidden_until in earlier.messages:
            if not message.here or message.receipt != receipt:
                return []
            # Only as long as they are still hidden by that receive, and with an unchanged timeout.
            if message.hidden_until != hidden_until or hidden_until <= now:
                return []
        return [message for message, _, _ in earlier.messages]

    def hide_again(self, message: Message, visibility: int, now: int) -> None:
        """A receive that is answered again counts as a receive: its twelve hours start again, too [3, 39]."""
        # Never the time of the earlier receive, so that the two can be distinguished.
        message.received, message.hidden_until = max(now, message.received + 1), now + visibility

    def remember_attempt(self, queue: Queue, attempt: str, messages: list[Message], now: int) -> None:
        if messages:
            queue.attempts[attempt] = Attempt(now, [(m, m.receipt, m.hidden_until) for m in messages])

    def give_back(self, handle: str, now: int) -> None:
        """Undo a receive whose client hung up before the answer: nobody knows its handle."""
        message = self.receipts[handle].message
        if message.received == now and self._holds(message, handle, now):
            del self.receipts[handle]
            message.receives -= 1
            message.hidden_until, message.handle, message.receipt = now, "", 0
            if message.receives + message.prior == 0:
                message.first_received = 0

    # Delete and change visibility.

    def deletable(self, queue: Queue, handle: str, now: int) -> list[Message]:
        """The message that a handle deletes; empty if it is already gone, which is no error [9, 12]."""
        message = self._behind(queue, handle)
        if not message.here:
            return []
        if queue.fifo and not self._holds(message, handle, now):
            raise Refusal(BAD_VALUE)  # [10]
        return [message]  # [7, 8]

    def change_visibility(self, queue: Queue, handle: str, seconds: int, now: int) -> None:
        if not 0 <= seconds * SECOND <= TWELVE_HOURS:
            raise Refusal(BAD_VALUE)
        message = self._behind(queue, handle)
        if not message.here:
            raise Refusal(BAD_VALUE)  # [5]
        if queue.fifo and not self._holds(message, handle, now):
            raise Refusal(BAD_VALUE)
        if now >= message.hidden_until or not message.receives:
            return  # [4]; an older handle of a message in flight has an effect [55]
        if now + seconds * SECOND > message.received + TWELVE_HOURS:
            raise Refusal(BAD_VALUE)  # [3]
        message.hidden_until = now + seconds * SECOND

    def _behind(self, queue: Queue, handle: str) -> Message:
        receipt = self.receipts.get(handle)
        if receipt is None or receipt.queue is not queue:
            raise Refusal(BAD_HANDLE)  # [11]
        return receipt.message

    def _holds(self, message: Message, handle: str, now: int) -> bool:
        return message.handle == handle and now < message.hidden_until

    # Queues.

    def purge(self, queue: Queue) -> None:
        """Delete all messages, whatever their state, and all deduplication ids [31, 45]."""
        for message in list(queue.messages):
            self.remove(queue, message)
        queue.accepted.clear()
        queue.attempts.clear()

    def delete_queue(self, queue: Queue) -> None:
        self.purge(queue)
        del self.queues[queue.name]

    # Move tasks.

    def start_move(self, handle: str, source: str, destination: str | None, rate: int | None, now: int) -> None:
        here = sorted(self.queues[source].messages, key=lambda message: message.number)
        self.tasks.append(Task(handle, source, destination, rate, now, here))

    def check_move(self, source: str, destination: str | None) -> None:
        """Whether a task may start [28]."""
        if source not in self.queues:
            raise Refusal(NOT_FOUND)
        if not any(queue.redrive and queue.redrive.target == source for queue in self.queues.values()):
            raise Refusal(BAD_VALUE)
        if destination is not None and destination not in self.queues:
            raise Refusal(NOT_FOUND)
        if any(task.source == source and task.status == "RUNNING" for task in self.tasks):
            raise Refusal(BAD_VALUE)

    def step_move(self, task: Task, now: int) -> list[tuple[Queue, Message]]:
        """Move the messages that may be moved by now, oldest first. Returns each with its new queue [28, 29]."""
        moved: list[tuple[Queue, Message]] = []
        source = self.queues.get(task.source)
        if source is None or now - task.started > LONGEST_MOVE:
            task.status = "FAILED"
            return moved
        budget = self.move_step
        if task.rate is not None:
            budget = min(budget, task.rate * (now - task.started) // SECOND - task.moved)
        if budget <= 0:
            return moved
        receivable = replace(source, look_ahead=len(source.messages)).receivable(now)
        ready = [message for message in task.left if message in receivable][:budget]
        for message in ready:
            target = self.queues.get(task.destination or message.source or "")
            if target is None:
                task.status = "FAILED"
                return moved
            moved.append((target, self._move(source, message, target, now)))
            task.moved += 1
            task.left = task.left[task.left.index(message) + 1 :]
        if len(ready) < budget:
            task.status = "COMPLETED"
        return moved

    def _move(self, source: Queue, message: Message, target: Queue, now: int) -> Message:
        """A new message at the end of another queue, as if it were sent there now."""
        self.remove(source, message)
        number = self.next_number()
        moved = Message(number, message.body, message.tag, message.group, None, sent=now, enqueued=now, arrived=now)
        moved.delayed_until = now + target.delay
        target.messages.append(moved)
        return moved

    def cancel_move(self, task: Task) -> None:
        if task.source not in self.queues:
            raise Refusal(NOT_FOUND)  # [59]
        if task.status != "RUNNING":
            raise Refusal(BAD_VALUE)  # [30]
        task.status = "CANCELLED"

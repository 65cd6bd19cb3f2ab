"""Known causes in an application's own log: plain loops that log the start, the end and the delete, but no receive.

The rule: a second delivery is counted when the broker makes it. The loop logs it only when it starts the message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from doctor.known_truth import PAUSE, SHORT, Causes, Truth
from driven import Place, new_place
from semel.sqs import Received

MAPPING: Final = "id=.id,time=.ts,event=.event,queue=.queue,worker=.host"
MAPPING_WITH_RECEIVES: Final = f"{MAPPING},receives=.receives"
# When the first worker is done and when it deletes, in seconds after the start.
LATE: Final = ((2.0, 2.01), (2.0, 2.1), (1.0, 2.1), (1.95, 2.5), (2.9, 3.0), (1.0, 3.5))
IN_TIME: Final = (0.1, 0.5, 1.0, 1.75)


def write_application_log(file: Path, messages: int) -> Truth:
    """Write the log of all scenarios, each on a queue with `messages` messages; returns the truth."""
    truth = Truth()
    with new_place() as place, file.open("w", encoding="utf-8") as lines:
        for queue, scenario in SCENARIOS.items():
            place.queue(queue, VisibilityTimeout=SHORT)
            first, second = (Loop(place, queue, lines, host) for host in ("web-1", "web-2"))
            causes: Causes = Counter()
            for number in range(messages):
                place.send("{}", queue)
                causes += scenario(first, second, number)
            truth.causes[queue] = dict(causes)
            truth.messages[queue] = messages
    return truth


class Loop:
    """An application's worker: it receives messages and processes them one after the other."""

    def __init__(self, place: Place, queue: str, lines: TextIO, host: str) -> None:
        self.place, self.host, self._lines = place, host, lines
        self._name, self._queue = queue, place.client.queue(queue)
        self.received_at = 0.0

    def receive(self) -> Received:
        (message,) = self._queue.receive(wait=0)
        self.received_at = self.place.clock.now()
        return message

    def log(self, event: str, message: Received) -> None:
        line = {"ts": self.place.clock.now(), "event": event, "id": message.message_id, "queue": self._name}
        print(json.dumps(line | {"host": self.host, "receives": message.receive_count}), file=self._lines)

    def delete(self, message: Received) -> None:
        self._queue.delete([message.receipt])
        self.log("deleted", message)

    def end(self, message: Received) -> None:
        self.log("done", message)
        self.delete(message)

    def work(self, message: Received, seconds: float = 0.1) -> None:
        self.log("start", message)
        self.place.clock.advance(seconds)
        self.end(message)

    def fail(self, message: Received) -> None:
        self.log("failed", message)
        self._queue.change_visibility([(message.receipt, 0)])

    def wait_until(self, seconds: float) -> None:
        """Advance the clock to `seconds` after the receive."""
        self.place.clock.advance(max(0.0, self.received_at + seconds - self.place.clock.now()))


def healthy(first: Loop, second: Loop, number: int) -> Causes:
    worker = (first, second)[number % 2]
    worker.work(worker.receive())
    return Counter()


def failed(first: Loop, second: Loop, number: int) -> Causes:
    """The application itself makes a message visible again: no duplicate."""
    message = first.receive()
    first.log("start", message)
    if number % 2:
        first.wait_until(0.3)
        first.fail(message)
        first.place.clock.advance(PAUSE)
        second.work(second.receive())
    else:
        first.end(message)
    return Counter()


def deleted_late(first: Loop, second: Loop, number: int) -> Causes:
    """When the first worker deletes the message, the second one has received it; it starts it after that."""
    done, deleted = LATE[number % len(LATE)]
    message = first.receive()
    first.log("start", message)
    if done <= SHORT:
        first.wait_until(done)
        first.log("done", message)
    first.wait_until(SHORT + 0.005)
    again = second.receive()
    if done > SHORT:
        first.wait_until(done)
        first.log("done", message)
    first.wait_until(deleted)
    first.delete(message)
    first.place.clock.advance(PAUSE)
    second.work(again)
    return Counter({"visibility": again.receive_count - 1})


def overlapping(first: Loop, second: Loop, number: int) -> Causes:
    """The second worker starts while the first is still working; in the end the first one succeeds or fails."""
    message = first.receive()
    first.log("start", message)
    first.wait_until(SHORT + 0.05)
    again = second.receive()
    second.log("start", again)
    first.wait_until(SHORT + (0.4, 0.7, 1.5)[number % 3])
    if number % 2:
        first.end(message)
    else:
        first.log("failed", message)
    first.place.clock.advance(PAUSE)
    second.end(again)
    return Counter({"visibility": again.receive_count - 1})


def delete_lost(first: Loop, second: Loop, number: int) -> Causes:
    first.place.broker.faults.set("lost-delete", 1)
    first.work(first.receive(), IN_TIME[number % len(IN_TIME)])
    first.place.broker.faults.clear()
    first.wait_until(SHORT + 0.1)
    again = second.receive()
    second.work(again)
    return Counter({"lost-delete": again.receive_count - 1})


def killed(first: Loop, second: Loop, number: int) -> Causes:
    """The first worker dies while it works."""
    first.log("start", first.receive())
    first.wait_until(SHORT + (0.01, 0.5, 10)[number % 3])
    again = second.receive()
    second.work(again)
    return Counter({"crash": again.receive_count - 1})


SCENARIOS: Final[dict[str, Callable[[Loop, Loop, int], Causes]]] = {
    "healthy": healthy,
    "failed": failed,
    "deleted-late": deleted_late,
    "overlapping": overlapping,
    "delete-lost": delete_lost,
    "killed": killed,
}

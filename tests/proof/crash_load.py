"""Load for a broker that is killed: a lean client, workers in threads, and a fuse that kills at a chosen answer.

Rule: a worker reports to the witness before a call and after its answer. A call that the kill cut off has an unknown
outcome.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import IO, Any, Final

from crash_witness import Hold, Message, Witness

STANDARD, FIFO, WORK, DEAD = "plain", "ordered.fifo", "work", "work-dead"
ACCOUNT: Final = "000000000000"
_MOST_ALIVE: Final = {STANDARD: 300, FIFO: 400, WORK: 120}
_VISIBILITY: Final = 1
_KEPT: Final = 20
_PACE: Final = 0.005  # seconds that a worker sleeps when it has nothing to do


class UnansweredError(Exception):
    """The broker died before it answered: the call may have happened or not."""


class RefusedError(Exception):
    """The broker answered with an error."""


class Process:
    """`semel serve` with a data folder, as a process of its own."""

    def __init__(self, data: Path, log: IO[bytes]) -> None:
        command = [str(Path(sys.executable).with_name("semel")), "serve", "--port", "0", "--data", str(data)]
        self._process = subprocess.Popen([*command], stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        line = self._output.readline().decode()
        self.port = int(line.rpartition(":")[2]) if line else 0

    def kill(self) -> None:
        self._process.kill()

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if one is given, and wait for the end. Returns the exit code."""
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(30)
        self._output.close()
        return code


class Fuse:
    """Kills the broker when the n-th answer from now on arrives, at once or after a short delay."""

    def __init__(self, broker: Process, answers: int, delay: float) -> None:
        self._kill, self._last, self._delay = broker.kill, answers, delay
        self._answers = count(1)
        self.blown = threading.Event()

    def answered(self) -> None:
        if next(self._answers) == self._last:
            moment = monotonic() + self._delay
            while monotonic() < moment:
                pass
            self._kill()
            self.blown.set()


class Wire:
    """One connection that speaks AWS JSON."""

    def __init__(self, port: int, fuse: Fuse | None = None) -> None:
        self._host, self._fuse = f"127.0.0.1:{port}", fuse
        self._buffer = b""
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), 20)
        except OSError:
            raise UnansweredError from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def call(self, operation: str, queue: str | None = None, **params: Any) -> dict[str, Any]:
        if queue is not None:
            params["QueueUrl"] = f"http://{self._host}/{ACCOUNT}/{queue}"
        head = f"POST / HTTP/1.1\r\nX-Amz-Target: AmazonSQS.{operation}\r\n"
        status, body = self._exchange(head, json.dumps(params).encode())
        if self._fuse is not None:
            self._fuse.answered()
        answer: dict[str, Any] = json.loads(body) if body else {}
        if status != 200:
            raise RefusedError(f"{operation} {queue}: {status} {answer['__type']} {answer['message']}")
        return answer

    def peek(self, queue: str) -> list[dict[str, Any]]:
        """Every message of a queue."""
        messages: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            target = f"/_semel/queues/{queue}/messages?limit=1000&after={after}"
            page = json.loads(self._exchange(f"GET {target} HTTP/1.1\r\n", b"")[1])
            messages += page["Messages"]
            after = page.get("Next")
        return messages

    def _exchange(self, head: str, body: bytes) -> tuple[int, bytes]:
        head += f"Host: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            self._socket.sendall(head.encode() + body)
            while b"\r\n\r\n" not in self._buffer:
                self._read()
            answered, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            length = int(answered.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            while len(self._buffer) < length:
                self._read()
        except OSError:
            raise UnansweredError from None
        content, self._buffer = self._buffer[:length], self._buffer[length:]
        return int(answered.split()[1]), content

    def _read(self) -> None:
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionResetError
        self._buffer += chunk


# What one worker does again and again.


class Worker:
    """One client. `step` makes a few calls. The object outlives the broker's crashes, and keeps what it needs then."""

    def __init__(self, witness: Witness, rng: Random, tally: Counter[str]) -> None:
        self.witness, self.rng, self.tally = witness, rng, tally

    def step(self, wire: Wire) -> None:
        raise NotImplementedError

    def call(self, wire: Wire, operation: str, queue: str, **params: Any) -> dict[str, Any]:
        try:
            answer = wire.call(operation, queue, **params)
        except UnansweredError:
            self.tally[f"{operation} unanswered"] += 1
            raise
        self.tally[operation] += 1
        return answer

    def send(self, wire: Wire, messages: Sequence[Message]) -> None:
        """One SendMessage or one SendMessageBatch. A FIFO message's deduplication id is made from its body."""
        queue = messages[0].queue
        entries = [
            {"MessageBody": message.body}
            | (
                {"MessageGroupId": message.group, "MessageDeduplicationId": message.body.replace(" ", "-")}
                if message.group
                else {}
            )
            for message in messages
        ]
        if len(messages) == 1:
            answers = [self.call(wire, "SendMessage", queue, **entries[0])]
        else:
            numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
            answers = self.call(wire, "SendMessageBatch", queue, Entries=numbered)["Successful"]
        for message, answer in zip(messages, answers, strict=True):
            self.witness.sent(message, answer)

    def receive(self, wire: Wire, queue: str, most: int = 10) -> list[Hold]:
        asked = monotonic()
        answer = self.call(
            wire,
            "ReceiveMessage",
            queue,
            MaxNumberOfMessages=self.rng.randint(1, most),
            VisibilityTimeout=_VISIBILITY,
            WaitTimeSeconds=self.rng.choice((0, 0, 1)),
            MessageSystemAttributeNames=["All"],
        )
        return self.witness.received(queue, answer.get("Messages", ()), asked, _VISIBILITY)

    def delete(self, wire: Wire, holds: Sequence[Hold]) -> None:
        asks = [self.witness.deleting(hold) for hold in holds]
        queue = holds[0].queue
        if len(holds) == 1:
            try:
                self.call(wire, "DeleteMessage", queue, ReceiptHandle=holds[0].handle)
                refused = set()
            except RefusedError:
                refused = {0}
        else:
            entries = [{"Id": str(number), "ReceiptHandle": hold.handle} for number, hold in enumerate(holds)]
            answer = self.call(wire, "DeleteMessageBatch", queue, Entries=entries)
            refused = {int(entry["Id"]) for entry in answer.get("Failed", ())}
        for number, (hold, ask) in enumerate(zip(holds, asks, strict=True)):
            if number in refused:
                self.tally["expired handles"] += 1
                self.witness.not_deleted(hold, ask)
            else:
                self.witness.deleted(hold)

    def hide(self, wire: Wire, hold: Hold, seconds: int) -> None:
        asked, before = self.witness.hiding(hold, seconds)
        try:
            self.call(wire, "ChangeMessageVisibility", hold.queue, ReceiptHandle=hold.handle, VisibilityTimeout=seconds)
        except RefusedError:
            self.tally["expired handles"] += 1
            return
        self.witness.hidden(hold, seconds, asked, before)


class Producer(Worker):
    """Sends to a Standard queue, one by one and in batches. A send without an answer is not repeated."""

    queue = STANDARD

    def step(self, wire: Wire) -> None:
        if self.witness.alive[self.queue] < _MOST_ALIVE[self.queue]:
            self.send(wire, [self.witness.write(self.queue) for _ in range(self.rng.choice((1, 1, 3, 10)))])
        else:
            sleep(_PACE)


class FifoProducer(Worker):
    """Sends to groups of its own, in order. Repeats sends without an answer, and sometimes those with an answer."""

    def __init__(self, witness: Witness, rng: Random, tally: Counter[str], groups: Sequence[str]) -> None:
        super().__init__(witness, rng, tally)
        self._groups = groups
        self._unanswered: list[Message] = []

    def step(self, wire: Wire) -> None:
        if self._unanswered:
            self.send(wire, self._unanswered)
            self.tally["sent again after a crash"] += len(self._unanswered)
            self._unanswered = []
            self._repeat(wire)
        if self.witness.alive[FIFO] >= _MOST_ALIVE[FIFO]:
            self._repeat(wire)
            sleep(_PACE)
            return
        size = self.rng.choice((1, 1, 3, 10))
        self._unanswered = [self.witness.write(FIFO, self.rng.choice(self._groups)) for _ in range(size)]
        self.send(wire, self._unanswered)
        self._unanswered = []

    def _repeat(self, wire: Wire) -> None:
        known = self.witness.acknowledged(self.rng.choice(self._groups))
        if known:
            self.send(wire, self.rng.sample(known, min(len(known), 5)))
            self.tally["sent twice"] += 1


class Consumer(Worker):
    """Receives, and deletes, returns, forgets or hides for longer what it got. What it hides, it deletes later."""

    def __init__(self, witness: Witness, rng: Random, tally: Counter[str], queue: str) -> None:
        super().__init__(witness, rng, tally)
        self._queue = queue
        self.kept: list[Hold] = []

    def step(self, wire: Wire) -> None:
        holds = self.receive(wire, self._queue)
        self.rng.shuffle(holds)
        share = len(holds) * 3 // 4
        if holds[:share]:
            self.delete(wire, holds[:share])
        for hold in holds[share:]:
            chance = self.rng.random()
            if chance < 0.4:
                self.delete(wire, [hold])
            elif chance < 0.6:
                self.hide(wire, hold, 0)
            elif chance < 0.9:
                self.kept.append(hold)
                self.hide(wire, hold, _KEPT)
        while len(self.kept) > (1 if self._queue == FIFO else 6):
            self.delete(wire, [self.kept[0]])
            del self.kept[0]


class WorkProducer(Producer):
    queue = WORK


class WorkConsumer(Worker):
    """Returns most messages, so that SQS dead-letters them, and deletes a few dead-letter messages."""

    def step(self, wire: Wire) -> None:
        for hold in self.receive(wire, WORK):
            if self.rng.random() < 0.15:
                self.delete(wire, [hold])
            elif self.rng.random() < 0.9:
                self.hide(wire, hold, 0)
        if self.rng.random() < 0.1:
            for hold in self.receive(wire, DEAD, 2):
                self.delete(wire, [hold])


class Mover(Worker):
    """Keeps a slow move task of the dead-letter queue running."""

    arn: Final = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{DEAD}"

    def step(self, wire: Wire) -> None:
        if not self.witness.see_moves(wire.call("ListMessageMoveTasks", SourceArn=self.arn, MaxResults=10)["Results"]):
            wire.call(
                "StartMessageMoveTask", SourceArn=self.arn, MaxNumberOfMessagesPerSecond=self.rng.choice((30, 80))
            )
            self.tally["move tasks"] += 1
        sleep(4 * _PACE)


class Load:
    """Workers on threads that start with `run` and stop by themselves when the broker dies."""

    def __init__(self, workers: Sequence[Worker], failed: Callable[[str], None]) -> None:
        self._workers, self._failed = workers, failed

    def run(self, broker: Process, fuse: Fuse) -> None:
        """Returns when the fuse has killed the broker and every worker has noticed."""
        threads = [threading.Thread(target=self._work, args=(worker, broker, fuse)) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, worker: Worker, broker: Process, fuse: Fuse) -> None:
        try:
            wire = Wire(broker.port, fuse)
            try:
                while not fuse.blown.is_set():
                    worker.step(wire)
            finally:
                wire.close()
        except UnansweredError:
            pass
        except Exception as error:  # noqa: BLE001 - any error of a worker is a finding
            self._failed(f"{type(worker).__name__}: {error!r}")

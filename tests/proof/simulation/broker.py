"""The real broker engine behind a simulated network, and the real client in front of it.

The engine's database is in memory, and each sync keeps a copy of it. A power cut leaves the last copy; a crash of the
process leaves all commits. The client is the real one with its retries; only its socket is replaced.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any, Final

import orjson

from semel.broker.engine import NEVER, Caller, Engine, Wanted
from semel.broker.engine import Queue as EngineQueue
from semel.broker.engine.schema import open_database
from semel.broker.protocol import json as wire
from semel.sqs import Cancel, Client
from semel.sqs.client import error_parser
from semel.sqs.client.connection import Answer
from semel.sqs.client.transport import CannotConnect
from semel.sqs.errors import INTERNAL_FAILURE, REQUEST_THROTTLED, SERVICE_UNAVAILABLE, Cancelled, ServiceError
from simulation.choices import Choices
from simulation.faults import CALL_FAULTS, SERVICE_FAULTS, CallFaults
from simulation.simulator import START, Process, Simulator, Task

ACCOUNT: Final = "000000000000"
ADDRESS: Final = "http://127.0.0.1:9324"
GROWING: Final = frozenset({"SendMessage", "SendMessageBatch", "CreateQueue"})
SWEEP_EVERY: Final = 60.0
LONGEST_POLL: Final = 300.0
QUIET: Final = frozenset({"GetQueueAttributes", "GetQueueUrl"})

Queues = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # the name of each queue, and its attributes as pairs


def url(queue: str) -> str:
    return f"{ADDRESS}/{ACCOUNT}/{queue}"


def arn(queue: str) -> str:
    return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"


def redrive_policy(dead_letters: str, receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": arn(dead_letters), "maxReceiveCount": receives})


@cache
def template(queues: Queues) -> bytes:
    """The database of a new broker with these queues."""
    wire.warm_up()
    connection = open_database(None)
    engine = Engine(connection, Random(0))
    engine.begin()
    for name, attributes in queues:
        engine.perform("CreateQueue", {"QueueName": name, "Attributes": dict(attributes)}, Caller(int(START * 1000)))
    engine.flush()
    engine.commit()
    engine.committed()
    return connection.serialize()


class ServiceFaults:
    """What SQS itself may do: make a message visible early, lose a delete, receive from a part of the queue only."""

    active = True

    def __init__(self, faults: CallFaults, choices: Choices) -> None:
        self._faults = faults
        self._choices = choices

    def short_poll(self, queue: str, want: int) -> int:
        return self._choices.below(want + 1) if self._faults.next() == "short poll" else want

    def visibility(self, queue: EngineQueue, timeout: int) -> int:
        return 0 if self._faults.next() == "visible early" and not queue.fifo else timeout

    def loses_delete(self, queue: EngineQueue) -> bool:
        return self._faults.next() == "lost delete"


class SimulatedBroker:
    """`on_request(process, operation, body, ended)` is called when a request is sent, and again when its sender no
    longer waits for it; `on_call(operation, params, answer)` is called after every call that was carried out."""

    def __init__(self, simulator: Simulator, queues: Queues, seed: int) -> None:
        self.simulator = simulator
        self.on_call: Callable[[str, dict[str, Any], dict[str, Any]], None] = lambda _o, _p, _a: None
        self.on_request: Callable[[Process, str, bytes, bool], None] = lambda _process, _operation, _body, _ended: None
        self.faults = CallFaults(simulator.choices, CALL_FAULTS)
        self.service_faults = CallFaults(simulator.choices, SERVICE_FAULTS)
        self.up = True
        self.disk_full = False
        self.sticks = False  # whether SQS may repeatedly fail to extend the same message
        self.stuck: dict[str, float] = {}  # receipt handles whose extensions fail, and until when
        self.calls = 0
        self.names: dict[str, str] = {}  # of messages, for the timeline
        self._seed = seed
        self._polls: dict[Task, None] = {}  # tasks that wait for a message, the oldest first
        self._moves_due: int | None = None
        self._swept = 0.0
        self._start(template(queues))

    def _start(self, data: bytes) -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
        connection.deserialize(data)
        self._seed += 1
        faults = ServiceFaults(self.service_faults, self.simulator.choices)
        self.engine = Engine(connection, Random(self._seed), faults=faults)
        self.synced = connection.serialize()  # includes the number of this start

    # Trouble.

    def crash(self, *, power_cut: bool) -> None:
        """The process dies. A power cut leaves only what was synced."""
        self.simulator.note(
            "broker", "crashes,", "only what was synced is left" if power_cut else "all commits are left"
        )
        data = self.synced if power_cut else self.engine.store.db.serialize()
        self.up = False
        self.close()
        self._start(data)

    def close(self) -> None:
        self.engine.store.db.close()

    def come_back(self) -> None:
        if not self.up:
            self.simulator.note("broker", "is up again")
            self.up = True

    def fill_disk(self, full: bool, *, noticed: bool = True) -> None:
        """SQLite gets no more pages. If `noticed`, the server also refuses calls that need room."""
        self.simulator.note("broker", "disk is full" if full else "disk has room again")
        self.disk_full = full and noticed
        database = self.engine.store.db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages if full else 1_073_741_823}").fetchall()

    # Calls.

    def now(self) -> int:
        return int(self.simulator.now * 1000)

    def perform(self, operation: str, body: bytes) -> dict[str, Any]:
        """Carry out one call in a transaction of its own, and sync it if necessary. Raises ServiceError."""
        self.calls += 1
        engine, now = self.engine, self.now()
        _, params = wire.parse(b"AmazonSQS." + operation.encode(), body)
        if self.disk_full and operation in GROWING:
            raise ServiceError(SERVICE_UNAVAILABLE, "The broker's disk is almost full: it takes no message now.")
        engine.begin()
        try:
            self._maintain(now)
            answer = engine.perform(operation, params, Caller(now, ADDRESS))
            engine.flush()
            engine.commit()
        except ServiceError:
            engine.flush()
            engine.commit()
            engine.committed()
            raise
        except sqlite3.Error as error:
            engine.rollback()
            raise ServiceError(INTERNAL_FAILURE, f"The broker failed: {error}") from error
        engine.committed()
        if engine.must_sync:
            self.synced = engine.store.db.serialize()
        if operation == "StartMessageMoveTask":
            self._moves_due = now
        self.on_call(operation, params, answer)
        if engine.woken():
            self._wake_one()
        return answer

    def _wake_one(self) -> None:
        """Wake the poll that has waited longest, among those whose process is alive and not paused."""
        for task in list(self._polls):
            if not task.process.alive:
                del self._polls[task]
            elif task.process.paused_until <= self.simulator.now:
                del self._polls[task]
                self.simulator.wake(task)
                return

    def _maintain(self, now: int) -> None:
        while self._moves_due is not None and self._moves_due <= now:
            self._moves_due = self.engine.step_moves(now)
        if self.simulator.now - self._swept > SWEEP_EVERY:
            self._swept = self.simulator.now
            self.engine.sweep(now)

    def wait_for_messages(self, queue: str) -> None:
        """A long poll: wait until a message may have become visible."""
        task = self.simulator.task
        self._polls[task] = None
        due = self.engine.next_look(queue)
        self.simulator.sleep(LONGEST_POLL if due == NEVER else max(1.0, due / 1000 - self.simulator.now))
        self._polls.pop(task, None)

    # What tests ask for.

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """All messages of the queue. A peek needs no transaction."""
        return list(self.engine.peek(queue, Wanted(), limit=1_000, now=self.now())["Messages"])

    def counts(self, queue: str) -> list[int]:
        """Messages that are ready, in flight and delayed."""
        return self.engine.store.queues[queue].generation.counts

    def client(self, process: Process) -> SimulatedClient:
        return SimulatedClient(self, process)


class SimulatedClient(Client):
    """The real client of one process; its requests and answers are lost, delayed, repeated and reordered."""

    def __init__(self, broker: SimulatedBroker, process: Process) -> None:
        simulator = broker.simulator
        self.__dict__.update(_prototype().__dict__)  # copied, because making a new client with botocore is slow
        self._queues = {}
        self._sleep = simulator.sleep
        self._chance = lambda: simulator.choices.below(16) / 16
        self._clock = process.now
        self._broker = broker
        self._process = process
        self._simulator = simulator

    def _attempt(
        self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None
    ) -> dict[str, Any]:
        if cancel is not None:
            return self._interruptible(operation, body, queue, timeout, cancel)
        self._broker.on_request(self._process, operation, body, False)
        try:
            return self._carry_out(operation, body, queue, timeout)
        finally:
            self._broker.on_request(self._process, operation, body, True)

    def pause(self, seconds: float, cancel: Cancel | None = None) -> None:
        """Pause in virtual time. The pause can be cancelled."""
        self._simulator.sleep(seconds)
        _check(cancel)

    def _interruptible(self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel) -> dict[str, Any]:
        """A call that another task may cancel. Its request may still arrive."""
        call = Interruptible(self._simulator)
        if not cancel.begin(call):
            raise Cancelled(f"{operation}: cancelled")
        calls = self._broker.calls
        try:
            return self._carry_out(operation, body, queue, timeout, cancel)
        except Cancelled:
            self._process.note(operation, "is cancelled")
            if self._broker.calls == calls and self._simulator.choices.below(2):
                self._later(operation, body, 0.001)
            raise
        finally:
            cancel.end(call)

    def _carry_out(
        self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        broker, simulator, faults = self._broker, self._simulator, self._broker.faults
        there, back = faults.delays()
        fault = faults.next()
        if fault == "slow request":
            there += faults.slow()
        elif fault == "slow answer":
            back += faults.slow()
        call = self._call(operation, queue)
        ends = simulator.now + timeout
        simulator.sleep(min(there, timeout))
        _check(cancel)
        if fault == "lost request" or there >= timeout:
            self._process.note(operation, "is lost on its way")
            if there >= timeout:
                self._later(operation, body, there - timeout)
            simulator.sleep(max(0.0, ends - simulator.now))
            _check(cancel)
            raise error_parser.from_exception(TimeoutError(), call, timeout)
        if not broker.up:
            raise error_parser.from_exception(CannotConnect("refused"), call, timeout)
        if fault == "refused":
            self._process.note(operation, "is refused")
            busy = simulator.choices.below(2)
            answer = _answer_of(ServiceError(INTERNAL_FAILURE if busy else REQUEST_THROTTLED, "Try again."))
            raise error_parser.from_answer(answer, call)
        generation = broker.engine
        body, refused = self._without_some(operation, body, fault)
        try:
            result = broker.perform(operation, body) if body else {}
        except ServiceError as error:
            self._process.note(operation, "->", error.kind.code)
            simulator.sleep(back)
            raise error_parser.from_answer(_answer_of(error), call) from None
        if refused:
            result = {**result, "Failed": [*result.get("Failed", ()), *refused]}
        if operation not in QUIET:
            self._process.note(operation, *described(broker, operation, result))
        if fault == "repeated request" and body:
            self._later(operation, body, faults.slow())
        if fault == "lost answer" or simulator.now + back > ends:
            self._process.note("the answer to", operation, "is lost")
            simulator.sleep(max(0.0, ends - simulator.now))
            _check(cancel)
            raise error_parser.from_exception(TimeoutError(), call, timeout)
        simulator.sleep(back)
        _check(cancel)
        if broker.engine is not generation:
            raise error_parser.from_exception(ConnectionResetError("the connection was reset"), call, timeout)
        return result

    def _without_some(self, operation: str, body: bytes, fault: str) -> tuple[bytes, list[dict[str, Any]]]:
        """The call without the entries that fail, and SQS's answers for those. If the broker `sticks`, the same entry
        may fail again and again: its worker must then treat it independently of the rest of the batch."""
        broker, choices, now = self._broker, self._simulator.choices, self._simulator.now
        stuck = broker.stuck if broker.faults.on else {}
        if not operation.endswith("Batch") or not (stuck or fault == "failed entry"):
            return body, []
        params = orjson.loads(body)
        entries = params["Entries"]
        failed = [entry for entry in entries if stuck.get(entry.get("ReceiptHandle"), 0.0) > now]
        if fault == "failed entry" and len(entries) > 1 and not failed:
            failed = [entries[choices.below(len(entries)) if broker.sticks else 0]]
            if broker.sticks and operation == "ChangeMessageVisibilityBatch":
                broker.stuck[failed[0]["ReceiptHandle"]] = now + choices.one_of((0.0, 60.0, 120.0))
        if not failed:
            return body, []
        others = [entry for entry in entries if entry not in failed]
        refused = [
            {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False, "Message": "Try again."}
            for entry in failed
        ]
        return orjson.dumps({**params, "Entries": others}) if others else b"", refused

    def _later(self, operation: str, body: bytes, after: float) -> None:
        """The network delivers the request late, or a second time. Nobody waits for the answer."""
        broker, network = self._broker, Process(self._simulator, "network")

        def deliver() -> None:
            if broker.up:
                try:
                    result = broker.perform(operation, body)
                    network.note("delivers late:", operation, *described(broker, operation, result))
                except ServiceError as error:
                    network.note("delivers late:", operation, "->", error.kind.code)

        network.spawn("late request", deliver, after)


class Interruptible:
    """What a `Cancel` interrupts: the pause of the task that makes the call."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator, self._task = simulator, simulator.task

    def interrupt(self) -> None:
        self._simulator.wake(self._task)


def _check(cancel: Cancel | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled("cancelled")


@cache
def _prototype() -> Client:
    return Client(ADDRESS, "us-east-1", access_key="test", secret_key="test", max_attempts=3)


def _answer_of(error: ServiceError) -> Answer:
    head = f"HTTP/1.1 {error.kind.status} \r\nx-amzn-query-error: {wire.query_error_header(error)}".encode()
    return Answer(error.kind.status, head, wire.error_answer(error))


def described(broker: SimulatedBroker, operation: str, answer: Mapping[str, Any]) -> list[str]:
    """An answer for the timeline, with short names for messages."""
    names = broker.names
    if operation == "SendMessage":
        return ["->", names.setdefault(answer["MessageId"], f"m{len(names) + 1}")]
    if operation == "ReceiveMessage":
        return ["->", *[names.get(m["MessageId"], m["MessageId"]) for m in answer.get("Messages", ())]]
    failed = [f"{entry['Id']}: {entry['Code']}" for entry in answer.get("Failed", ())]
    return ["->", f"{len(answer.get('Successful', ()))} ok", *failed]

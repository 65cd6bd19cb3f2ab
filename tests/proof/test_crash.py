"""A real broker under load, killed with SIGKILL again and again: everything it acknowledged is there when it is back.

SIGKILL ends the process, not the machine: everything that was written to the operating system survives.
`test_power_loss.py` tests that the broker also waits for the disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import IO, Any, Final

import pytest
from crash_load import (
    ACCOUNT,
    DEAD,
    FIFO,
    STANDARD,
    WORK,
    Consumer,
    FifoProducer,
    Fuse,
    Load,
    Mover,
    Process,
    Producer,
    Wire,
    WorkConsumer,
    Worker,
    WorkProducer,
)
from crash_witness import Promise, Witness

import suite

KILLS: Final = suite.effort(fast=4, full=20)
MOST_KILLS: Final = suite.effort(fast=4, full=60)  # the limit, if KILLS kills cut off no send to the FIFO queue
_LOOKS: Final = 6
# Together with what the load sends, more deduplication ids than the broker keeps in memory.
_PURGED, _REMEMBERED = "purged.fifo", suite.effort(fast=1_000, full=98_000)
_DRAIN_SECONDS: Final = 10
# The dead-letter queue first: a message that a move task moves to WORK meanwhile is seen twice, but never missed.
_HOMES: Final = {DEAD: WORK, WORK: WORK, STANDARD: STANDARD, FIFO: FIFO}
_COUNTS: Final = {
    "ApproximateNumberOfMessages": "visible",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The result of all crashes."""

    witness: Witness
    tally: Counter[str]
    kills: int

    def broken(self, promise: Promise) -> list[str]:
        return self.witness.complaints[promise]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("crash")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)  # so that the kill follows the answer closely
    try:
        with (folder / "stderr").open("w+b") as log:
            yield Ordeal(folder / "data", log).run()
    finally:
        sys.setswitchinterval(interval)


class Ordeal:
    """Load, kill, restart and inspect, over and over. In the end, everything is received and deleted."""

    def __init__(self, data: Path, log: IO[bytes]) -> None:
        self._data, self._log = data, log
        seed = int(os.environ.get("SEMEL_PROOF_SEED", Random().getrandbits(32)))
        print(f"SEMEL_PROOF_SEED={seed} repeats the choices of this run")
        self._witness, self._tally, self._rng = Witness(), Counter[str](), Random(seed)
        self._kills = 0

    def run(self) -> Aftermath:
        broker = self._start()
        wire = Wire(broker.port)
        _create_queues(wire)
        _fill_the_dedup_window(wire)
        wire.close()
        workers = self._workers()
        load = Load(workers, lambda text: self._witness.complain(Promise.CALM, text))
        while not self._is_enough() and not any(self._witness.complaints.values()):
            delay = self._rng.choice((0, 0, self._rng.random() * 0.003))
            fuse = Fuse(broker, self._rng.randint(10, 1000), delay)
            load.run(broker, fuse)
            if broker.end() != -signal.SIGKILL or not fuse.blown.is_set():
                self._witness.complain(Promise.CALM, "the broker ended by itself")
                break
            self._kills += 1
            broker = self._start()
            self._look(broker)
        if not any(self._witness.complaints.values()):
            self._drain(broker, workers)
        if broker.end(signal.SIGTERM) != 0:
            self._witness.complain(Promise.CALM, "the broker's exit code was not 0")
        self._log.seek(0)
        for line in self._log.read().decode().splitlines():
            self._witness.complain(Promise.CALM, line)
        return Aftermath(self._witness, self._tally, self._kills)

    def _is_enough(self) -> bool:
        sent_again = self._tally["sent again after a crash"]  # this depends on chance: a producer often waits for room
        return self._kills >= MOST_KILLS or (self._kills >= KILLS and sent_again > 0)

    def _start(self) -> Process:
        return Process(self._data, self._log)

    def _workers(self) -> list[Worker]:
        def arguments() -> tuple[Witness, Random, Counter[str]]:
            return self._witness, Random(self._rng.random()), self._tally

        return [
            Producer(*arguments()),
            Producer(*arguments()),
            FifoProducer(*arguments(), list("abcdef")),
            FifoProducer(*arguments(), list("ghijkl")),
            Consumer(*arguments(), STANDARD),
            Consumer(*arguments(), STANDARD),
            Consumer(*arguments(), FIFO),
            Consumer(*arguments(), FIFO),
            WorkProducer(*arguments()),
            WorkConsumer(*arguments()),
            Mover(*arguments()),
        ]

    def _look(self, broker: Process) -> None:
        """Inspect the queues several times. Only what is wrong each time counts, because a move task may be running and
        time passes."""
        wire = Wire(broker.port)
        standing: dict[str, Promise] | None = None
        for _ in range(_LOOKS):
            before = {queue: _counts(wire, queue) for queue in _HOMES}
            peeked = {queue: wire.peek(queue) for queue in _HOMES}
            after = {queue: _counts(wire, queue) for queue in _HOMES}
            wrong = self._witness.inspect(peeked, _HOMES)
            for queue, messages in peeked.items():
                # Without calls, counts change only in one direction. So if both are equal, they have not changed.
                if before[queue] == after[queue] != Counter(message["State"] for message in messages):
                    wrong[f"the counts of {queue} differ from its messages"] = Promise.COUNTS
            standing = wrong if standing is None else {text: wrong[text] for text in standing if text in wrong}
            if not standing:
                self._witness.learn(peeked)
                break
        for text, promise in (standing or {}).items():
            self._witness.complain(promise, f"{text} (after kill {self._kills})")
        tasks = wire.call("ListMessageMoveTasks", SourceArn=Mover.arn, MaxResults=10)["Results"]
        self._witness.see_moves(tasks)
        wire.close()

    def _drain(self, broker: Process, workers: list[Worker]) -> None:
        """Lets the last move task finish, then receives and deletes until nothing is left."""
        wire, end = Wire(broker.port), monotonic() + _DRAIN_SECONDS
        hand = workers[0]
        for worker in workers:
            for hold in worker.kept if isinstance(worker, Consumer) else ():
                hand.hide(wire, hold, 0)
        left, moving, listed = list(_HOMES), True, []
        while left and monotonic() < end:
            for queue in left:
                holds = hand.receive(wire, queue)
                if holds:
                    hand.delete(wire, holds)
            listed = wire.call("ListMessageMoveTasks", SourceArn=Mover.arn, MaxResults=10)["Results"]
            moving = self._witness.see_moves(listed)
            if not moving:
                left = [queue for queue in _HOMES if wire.peek(queue)]
        wire.close()
        if moving:
            self._witness.complain(Promise.MOVES, f"a move task does not come to its end: {listed}")
            left = []
        self._look(broker)
        for queue in left:
            self._witness.complain(Promise.KEEPS_SENDS, f"{queue}: not everything could be received in the end")


def _create_queues(wire: Wire) -> None:
    wire.call("CreateQueue", QueueName=STANDARD)
    wire.call("CreateQueue", QueueName=FIFO, Attributes={"FifoQueue": "true"})
    wire.call("CreateQueue", QueueName=DEAD)
    redrive = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{DEAD}", "maxReceiveCount": 2}
    wire.call("CreateQueue", QueueName=WORK, Attributes={"RedrivePolicy": json.dumps(redrive)})


def _fill_the_dedup_window(wire: Wire) -> None:
    """A queue that is filled and purged leaves deduplication ids and rows, which the broker cleans up under load."""
    wire.call("CreateQueue", QueueName=_PURGED, Attributes={"FifoQueue": "true"})
    for start in range(0, _REMEMBERED, 10):
        ids = [str(number) for number in range(start, start + 10)]
        entries = [{"Id": n, "MessageBody": n, "MessageGroupId": n, "MessageDeduplicationId": n} for n in ids]
        wire.call("SendMessageBatch", _PURGED, Entries=entries)
    wire.call("PurgeQueue", _PURGED)


def _counts(wire: Wire, queue: str) -> Counter[str]:
    attributes = wire.call("GetQueueAttributes", queue, AttributeNames=list(_COUNTS))["Attributes"]
    return Counter({state: int(attributes[name]) for name, state in _COUNTS.items()})


def test_the_broker_was_killed_and_said_nothing_untoward(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.CALM), "\n".join(aftermath.broken(Promise.CALM))
    if not any(aftermath.witness.complaints.values()):
        assert aftermath.kills >= KILLS


@pytest.mark.slow
def test_the_kills_cut_off_calls_of_every_kind_with_enough_work_between_them(aftermath: Aftermath) -> None:
    print(json.dumps(aftermath.tally, indent=1), f"moved {aftermath.witness.moved}")
    tally: dict[str, Any] = aftermath.tally
    if not any(aftermath.witness.complaints.values()):
        for operation in ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch"):
            assert tally[operation] > 200
            assert tally[f"{operation} unanswered"] > 0
        assert tally["ChangeMessageVisibility"] > 200
        assert tally["sent again after a crash"] > 0
        assert tally["sent twice"] > 10
        assert aftermath.witness.moved > 100


def test_no_acknowledged_send_is_lost(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.KEEPS_SENDS)


def test_no_acknowledged_delete_comes_back(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.KEEPS_DELETES)


def test_no_message_is_doubled_by_a_crash_a_dead_letter_or_a_move(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.ONE_COPY)


def test_receive_counts_never_go_backwards(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.COUNTS_RECEIVES)


def test_a_received_message_stays_hidden_across_a_crash(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.HIDES)


def test_fifo_groups_are_received_in_order_across_crashes(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.ORDER)


def test_a_send_repeated_after_a_crash_gives_the_first_ones_id_and_no_second_copy(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.DEDUP)


def test_sequence_numbers_strictly_increase_across_crashes(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.SEQUENCE)


def test_move_tasks_go_on_after_a_crash(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.MOVES)


def test_the_counts_of_a_queue_are_those_of_its_messages_after_a_crash(aftermath: Aftermath) -> None:
    assert not aftermath.broken(Promise.COUNTS)

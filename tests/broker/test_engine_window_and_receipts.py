"""The engine alone: the end of FIFO's five-minute deduplication window, and receipt handles that cannot be forged."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from random import Random

import pytest

from semel.broker.engine import Caller, Engine
from semel.broker.engine.dedup import DedupWindow, digest_of
from semel.broker.engine.receipts import Receipts
from semel.broker.engine.schema import open_database
from semel.sqs import limits
from semel.sqs.errors import ServiceError

WINDOW = limits.DEDUP_WINDOW * 1000
CHUNK = 500


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(open_database(None), Random(7))
    made.begin()
    made.perform("CreateQueue", {"QueueName": "a.fifo", "Attributes": {"FifoQueue": "true"}}, Caller(1))
    made.perform("CreateQueue", {"QueueName": "plain"}, Caller(1))
    yield made
    made.rollback()
    made.close()


def send(engine: Engine, dedup_id: str, now: int) -> str:
    """The message's id: that of the first with this dedup id."""
    url = engine.perform("GetQueueUrl", {"QueueName": "a.fifo"}, Caller(now))["QueueUrl"]
    params = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": dedup_id}
    return str(engine.perform("SendMessage", params, Caller(now))["MessageId"])


def test_a_sweep_forgets_what_has_expired_and_no_more(engine: Engine) -> None:
    first, second = send(engine, "one", 1_000), send(engine, "two", 60_000)
    now = 1_000 + WINDOW
    while engine.sweep(now):
        pass
    assert send(engine, "two", now) == second
    again = send(engine, "one", now)
    assert again != first
    assert send(engine, "one", now + 1) == again
    while engine.sweep(60_000 + WINDOW):
        pass
    assert send(engine, "one", 60_000 + WINDOW) == again, "used again, it has a window of its own"
    assert send(engine, "two", 60_000 + WINDOW) != second


def test_a_sweep_reads_only_what_has_expired(engine: Engine) -> None:
    window = engine.store.dedup
    for n in range(4_000):
        window.remember([(digest_of(1, "", str(n)), str(n), n)], n)
    window.write_out()
    steps = [0]

    def count() -> None:
        steps[0] += 1

    engine.store.db.set_progress_handler(count, 100)  # instructions of SQLite's machine
    assert not window.sweep(WINDOW, CHUNK)
    assert steps[0] <= 2, "one has expired: the log is not read"
    engine.store.db.set_progress_handler(None, 0)
    assert window.known([digest_of(1, "", "0"), digest_of(1, "", "1")], WINDOW) == {digest_of(1, "", "1"): ("1", 1)}


def test_a_sweep_stops_after_a_chunk_and_says_that_there_is_more(engine: Engine) -> None:
    window = engine.store.dedup
    window.remember([(digest_of(1, "", str(n)), str(n), n) for n in range(CHUNK + 10)], 0)
    assert window.sweep(WINDOW, CHUNK)
    assert not window.sweep(WINDOW, CHUNK)
    assert engine.store.db.execute("SELECT count(*) FROM dedup_log").fetchone() == (0,)


def test_the_window_is_the_same_after_it_was_read_again(engine: Engine) -> None:
    window = engine.store.dedup
    first, second = digest_of(1, "", "one"), digest_of(1, "", "two")
    window.remember([(first, "m1", 1)], 0)
    window.remember([(second, "m2", 2)], 10)
    window.remember([(first, "m3", 3)], WINDOW)  # the first had expired
    window.write_out()
    for again in (window, DedupWindow(engine.store.db)):
        again.load()
        assert again.known([first, second], WINDOW) == {first: ("m3", 3), second: ("m2", 2)}
        assert list(again._recent) == [second, first]


def test_a_handle_with_a_single_bit_flipped_is_refused() -> None:
    receipts = Receipts(b"k" * 16)
    handle = receipts.encode(1, 2, 3, 4)
    assert receipts.decode(handle, 1) == (1, 2, 3, 4)
    data = b64decode(handle)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ServiceError, match="not a valid receipt handle"):
            receipts.decode(b64encode(flipped).decode(), 1)


def test_a_handle_cannot_be_made_out_of_others() -> None:
    """With a checksum that is linear, as CRC-32 is, three handles of a queue give a fourth."""
    receipts = Receipts(b"k" * 16)
    known = [b64decode(receipts.encode(1, row, 1, 1)) for row in (5, 6, 7)]
    made = bytes(a ^ b ^ c for a, b, c in zip(*known, strict=True))  # row 4
    with pytest.raises(ServiceError, match="not a valid receipt handle"):
        receipts.decode(b64encode(made).decode(), 1)


@pytest.mark.parametrize(
    "handle", ["", *["A" * length for length in (28, 31, 32, 33, 36, 39, 40, 41)], "é" * 32, "é" * 40]
)
def test_what_is_no_handle_is_refused(handle: str) -> None:
    with pytest.raises(ServiceError, match="not a valid receipt handle"):
        Receipts(b"k" * 16).decode(handle, 1)


def test_a_handle_of_another_queue_or_another_broker_is_refused() -> None:
    handle = Receipts(b"k" * 16).encode(1, 2, 3, 4)
    with pytest.raises(ServiceError, match="not valid for this queue"):
        Receipts(b"k" * 16).decode(handle, 2)
    with pytest.raises(ServiceError, match="not a valid receipt handle"):
        Receipts(b"l" * 16).decode(handle, 1)

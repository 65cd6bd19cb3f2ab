"""The time at SQS, as exactly as a host can know it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from semel.broker import running
from semel.spark.segments.model import SegmentId
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import LocalStore
from semel.spark.source.options import ReadOptions
from semel.spark.source.reader import Assignment, SourceTask
from semel.spark.source.sqs_clock import MARGIN, SKEW, UNKNOWN, VALID, Reading, SqsClock
from semel.sqs import Client
from semel.sqs.errors import Unreachable

OFFSET = 1_800_000_000.25  # SQS's time minus our monotonic time


class Host:
    """Its monotonic clock is at `now`; its wall clock is wrong by an hour. A call takes its time there and back."""

    def __init__(self, there: float = 0.0, back: float = 0.0, now: float = 1_000.0) -> None:
        self.there, self.back, self.now = there, back, now
        self.asked = 0
        self.sqs_clock = SqsClock(self.ask, lambda: self.now + OFFSET + 3_600, lambda: self.now)

    def ask(self) -> float | None:
        self.asked += 1
        self.now += self.there
        date = int(self.now + OFFSET)
        self.now += self.back
        return date


@pytest.mark.parametrize("there", [0.0, 0.3, 0.74, 0.75, 170.0])
@pytest.mark.parametrize("back", [0.0, 0.3, 0.99, 170.0])
def test_the_time_at_sqs_is_within_the_bounds_however_long_the_call_took(there: float, back: float) -> None:
    reading = Host(there, back).sqs_clock.read()
    assert reading.low <= OFFSET <= reading.high
    assert reading.high - reading.low == pytest.approx(1 + there + back)


@pytest.mark.parametrize("there", [0.0, 0.5, 170.0])
@pytest.mark.parametrize("back", [0.0, 0.99, 170.0])
def test_no_host_takes_a_message_for_hidden_that_another_one_knows_to_be_visible(there: float, back: float) -> None:
    sealer, judge = Host(there, back, now=5.75), Host(back, there, now=9_000_000.74)  # a second of SQS begins, and ends
    visible = sealer.now + 120  # by the sealer's monotonic clock
    hidden_until = sealer.sqs_clock.read().earliest(visible)
    assert hidden_until <= visible + OFFSET
    until = judge.sqs_clock.read().surely_before(hidden_until)
    assert until + OFFSET <= visible + OFFSET - MARGIN


def test_sqs_is_asked_for_its_time_once_a_minute() -> None:
    host = Host()
    for _ in range(10):
        host.sqs_clock.read()
    assert host.asked == 1
    host.now += VALID
    host.sqs_clock.read()
    assert host.asked == 2


def test_if_sqs_does_not_answer_nothing_is_known_and_it_is_asked_again_the_next_time() -> None:
    host = Host()
    ask, host.sqs_clock._ask = host.sqs_clock._ask, _down
    assert host.sqs_clock.read() is UNKNOWN
    assert UNKNOWN.earliest(1e9) == 0.0
    assert UNKNOWN.surely_before(4e9) < 0.0
    host.sqs_clock._ask = ask
    assert host.sqs_clock.read() is not UNKNOWN


def test_a_segment_of_which_nothing_is_known_is_taken_for_visible() -> None:
    host = Host()
    assert host.sqs_clock.read().surely_before(UNKNOWN.earliest(host.now + 120)) < 0.0


@pytest.mark.parametrize("off", [-SKEW, 0.0, SKEW])
def test_where_answers_have_no_date_the_clock_of_the_host_may_be_off_by_five_seconds(off: float) -> None:
    sqs_clock = SqsClock(lambda: None, lambda: 1_000.0 + OFFSET + off, lambda: 1_000.0)
    reading = sqs_clock.read()
    assert reading.low <= OFFSET <= reading.high
    assert reading == Reading(OFFSET + off - SKEW, OFFSET + off + SKEW)


def test_a_segment_has_the_time_of_the_server_and_not_that_of_its_host(tmp_path: Path) -> None:
    """With a real server, over HTTP."""
    with running() as broker, Client(broker.url, access_key="test", secret_key="test", region="us-east-1") as client:
        queue = client.create_queue("orders")
        queue.send("a")
        log = SegmentLog(LocalStore(str(tmp_path)))
        log.create(("orders",))
        log.seal_plan({"log": "", "id": "plan", "batch": 1, "plan": {"orders": 1}})
        options = ReadOptions(queues=("orders",), segments=str(tmp_path), threads=1, endpoint_url=broker.url)
        assignment = Assignment(1, 0, "orders", 10, 1_000, plan="plan")
        before = time.time()
        task = SourceTask(options, assignment, log=log, queue=queue, clock=lambda: time.time() + 3_600)
        assert sum(map(len, task.tables())) == 1
        after = time.time()
    sealed = log.read(SegmentId(1, 0, 0))
    assert sealed is not None
    assert before - 1 - (after - before) <= sealed.meta.hidden_until - options.visibility <= after


def _down() -> float | None:
    raise Unreachable("the network is down")

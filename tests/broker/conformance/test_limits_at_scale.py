"""Section 1.6, the limits of 120,000 messages: their values, and what happens there, at a thousandth of the size."""

from __future__ import annotations

import pytest

from semel.sqs import limits

from .service import Counts, Sqs, bodies, entries, refused

HOURS = 43_200
SMALL = 120


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker runs in this process and reads its limits from one place."""
    monkeypatch.setattr(limits, "MAX_IN_FLIGHT", SMALL)
    monkeypatch.setattr(limits, "FIFO_LOOK_AHEAD", SMALL)


def fill(sqs: Sqs, url: str, number: int, group: str | None = None) -> None:
    """Send `number` messages in tens; `group` has a place for the number of the ten."""
    for ten in range(number // 10):
        extra = {} if group is None else {"MessageGroupId": group.format(ten)}
        batch = entries(*(f"{ten}-{n}" for n in range(10)), **extra)
        assert len(sqs.send_message_batch(QueueUrl=url, Entries=batch)["Successful"]) == 10


def test_the_numbers_are_those_of_sqs() -> None:
    """1.6: ~120,000 in flight; only the first 120k messages are scanned."""
    assert (limits.MAX_IN_FLIGHT, limits.FIFO_LOOK_AHEAD) == (120_000, 120_000)


@pytest.mark.usefixtures("small")
def test_a_full_standard_queue_refuses_short_polls(sqs: Sqs) -> None:
    """1.6, in flight: OverLimit on short poll, until there is room again."""
    url = sqs.create()
    fill(sqs, url, SMALL + 10)
    for _ in range(SMALL // 10):
        last = sqs.receive(url, VisibilityTimeout=HOURS)
        assert len(last) == 10
    with refused("OverLimit"):
        sqs.receive(url)
    assert sqs.counts(url) == Counts(visible=10, in_flight=SMALL)
    sqs.delete(url, last[0])
    sqs.change(url, last[1], 0)
    assert len(sqs.receive(url)) == 2


@pytest.mark.usefixtures("small")
def test_a_full_standard_queue_lets_long_polls_find_nothing(json_sqs: Sqs) -> None:
    """1.6, in flight: no error on long poll."""
    url = json_sqs.create()
    fill(json_sqs, url, SMALL + 10)
    for _ in range(SMALL // 10):
        json_sqs.receive(url, VisibilityTimeout=HOURS)
    assert json_sqs.receive(url, WaitTimeSeconds=1) == []


@pytest.mark.usefixtures("small")
def test_a_nearly_full_queue_hands_out_what_there_is_room_for(sqs: Sqs) -> None:
    """1.6, in flight: never past the limit."""
    url = sqs.create()
    fill(sqs, url, SMALL + 10)
    sqs.receive(url, 5, VisibilityTimeout=HOURS)
    for _ in range(SMALL // 10 - 1):
        assert len(sqs.receive(url, VisibilityTimeout=HOURS)) == 10
    assert len(sqs.receive(url, VisibilityTimeout=HOURS)) == 5
    assert sqs.counts(url).in_flight == SMALL


@pytest.mark.usefixtures("small")
def test_a_full_fifo_queue_finds_nothing_and_never_fails(sqs: Sqs) -> None:
    """1.6, in flight: 120,000 FIFO, never an error."""
    url = sqs.create_fifo()
    fill(sqs, url, SMALL + 10, "g{}")
    for _ in range(SMALL // 10):
        last = sqs.receive(url, VisibilityTimeout=HOURS)
        assert len(last) == 10
    assert sqs.receive(url) == []
    sqs.delete(url, last[0])
    assert bodies(sqs.receive(url)) == [f"{SMALL // 10}-0"]


@pytest.mark.usefixtures("small")
def test_a_fifo_queue_looks_for_groups_among_its_first_messages_only(sqs: Sqs) -> None:
    """1.6, FIFO look-ahead: only the first 120k messages are scanned for available groups."""
    url = sqs.create_fifo()
    fill(sqs, url, SMALL + 20, "crowd")
    sqs.send(url, "behind", MessageGroupId="alone")
    rounds = []
    for _ in range(4):
        crowd = sqs.receive(url, VisibilityTimeout=HOURS)
        rounds.append(bodies([*crowd, *sqs.receive(url, VisibilityTimeout=0)]))
        for message in crowd:
            sqs.delete(url, message)
    # Whether messages in flight count among the first is left open: that is the third round.
    assert "behind" not in rounds[0] + rounds[1]
    assert "behind" in rounds[3]


@pytest.mark.usefixtures("small")
def test_a_fifo_queue_that_was_full_and_is_filled_again_looks_no_further_than_before(sqs: Sqs) -> None:
    """1.6, FIFO look-ahead: also if there were just as many messages meanwhile as are scanned."""
    url = sqs.create_fifo()
    fill(sqs, url, SMALL, "crowd")
    sqs.send(url, "last", MessageGroupId="last")
    first = sqs.receive(url, 1, VisibilityTimeout=HOURS)
    assert sqs.receive(url, 1) == []
    sqs.delete(url, first[0])
    sqs.send(url, "too far", MessageGroupId="alone")
    received = [message for _ in range(3) for message in sqs.receive(url, 1, VisibilityTimeout=HOURS)]
    assert bodies(received) == ["last", "0-1"]


@pytest.mark.usefixtures("small")
def test_a_group_that_was_found_is_received_to_its_end_though_others_on_the_way_are_dead_letters(sqs: Sqs) -> None:
    """1.6 and 37: the look-ahead is for finding groups, and one that was found goes on before the next one."""
    url, _ = sqs.create_pair(fifo=True)
    sqs.send(url, "failed", MessageGroupId="failing")
    assert bodies(sqs.receive(url, VisibilityTimeout=0)) == ["failed"]
    sqs.send(url, "near", MessageGroupId="wide")
    fill(sqs, url, SMALL, "crowd")
    sqs.send(url, "far", MessageGroupId="wide")
    assert bodies(sqs.receive(url, 2)) == ["near", "far"]

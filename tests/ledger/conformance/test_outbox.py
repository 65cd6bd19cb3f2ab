"""The outbox of every store that has one: it refuses what SQS would refuse, and loses nothing that SQS has refused."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.conftest import Opener
from ledger.stores import Shift, on
from semel.ledger.contract import Ledger, LedgerError, OutboxStatus

pytestmark = on(("sqlite", "postgres", "dynamodb"))

MIB = 1_048_576


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ({"body": "x" * MIB}, r"at most|up to"),
        ({"body": "é" * (MIB // 2)}, r"at most|up to"),
        ({"body": ""}, "empty"),
        ({"body": "a\x00b"}, r"character '\\x00' at 1"),
        ({"body": "a\ud800"}, "character"),
        ({"body": {1, 2}}, "cannot be written as JSON"),
        ({"attributes": {f"a{n}": "v" for n in range(10)}}, "10 attributes are too many"),
        ({"attributes": {"a": ""}}, "attribute 'a'"),
        ({"attributes": {"a b": "v"}}, "attribute name 'a b'"),
        ({"attributes": {"semel-key": "v"}}, "Semel's own"),
        ({"delay": 901}, "delay of 901"),
        ({"delay": -1}, "delay of -1"),
        ({"queue": "moves.fifo", "delay": 5}, "no delay of its own"),
        ({"queue": "moves.fifo", "group": "a group"}, "group 'a group'"),
        ({"queue": "moves.fifo", "group": "g" * 129}, "1 to 128"),
        ({"queue": "no/queue"}, "no name, URL or ARN"),
        ({"key": "a\x01"}, "the key has the character"),
    ],
    ids=lambda it: it if isinstance(it, str) else None,
)
def test_what_sqs_would_refuse_is_refused_before_the_commit(ledger: Ledger, sent: dict[str, Any], problem: str) -> None:
    message = {"queue": "receipts", "body": "text"} | sent
    with pytest.raises(LedgerError, match=problem), ledger.transaction() as tx:
        tx.send(message.pop("queue"), message.pop("body"), **message)
    assert ledger.count_outgoing() == 0


def test_nine_attributes_and_almost_a_mebibyte_are_taken(ledger: Ledger) -> None:
    most = 300_000 if type(ledger).__name__ == "DynamoLedger" else MIB - 1_000
    with ledger.transaction() as tx:
        tx.send("receipts", "x" * most, attributes={f"a{n}": "v" for n in range(9)}, delay=900)
    assert ledger.count_outgoing() == 1


def bodies(ledger: Ledger, **how: Any) -> list[str]:
    return [it.body for it in ledger.take_outgoing(**how)]


def test_what_sqs_has_refused_stays_with_the_reason_and_waits_for_longer(ledger: Ledger, clock_offset: Shift) -> None:
    with ledger.transaction() as tx:
        tx.send("nowhere", "a")
        tx.send("receipts", "b")
    clock_offset.advance(1)
    outgoing = {it.queue: it for it in ledger.take_outgoing()}
    ledger.refused_outgoing([outgoing["nowhere"].id], error="there is no such queue", wait=300)
    ledger.sent_outgoing([outgoing["receipts"].id])
    status = ledger.outbox_status()
    assert (status.waiting, status.refused) == (1, 1)
    assert [(it.queue, it.attempts, it.error) for it in status.examples] == [("nowhere", 1, "there is no such queue")]
    clock_offset.advance(299)
    assert bodies(ledger) == []
    clock_offset.advance(2)
    (again,) = ledger.take_outgoing()
    assert (again.body, again.attempts, again.id) == ("a", 1, outgoing["nowhere"].id)
    ledger.refused_outgoing([again.id], error="no", wait=1)
    assert ledger.outbox_status().examples[0].attempts == 2
    ledger.sent_outgoing([again.id])
    assert ledger.outbox_status() == OutboxStatus()


@pytest.mark.parametrize("queue", ["moves.fifo", "moves"])
def test_none_of_a_group_is_handed_out_before_those_that_were_sent_before_it(
    ledger: Ledger, make_ledger: Opener, clock_offset: Shift, queue: str
) -> None:
    other = make_ledger()
    for number in range(3):
        with ledger.transaction() as tx:
            tx.send(queue, f"a{number}", group="a")
        clock_offset.advance(1)
    (first,) = ledger.take_outgoing(1, lease=30)
    assert first.body == "a0"
    with ledger.transaction() as tx:
        tx.send(queue, "b0", group="b")
    clock_offset.advance(1)
    assert bodies(other, lease=30) == ["b0"], "its group waits for a0, and b does not"
    ledger.refused_outgoing([first.id], error="too large", wait=120)
    clock_offset.advance(31)
    assert bodies(other) == ["b0"], "whoever took b0 is gone; the group of a0 still waits"
    clock_offset.advance(120)
    assert [body for body in bodies(other) if body != "b0"] == ["a0", "a1", "a2"]


def test_the_rest_of_a_group_need_not_wait_once_what_was_before_it_is_sent(ledger: Ledger, clock_offset: Shift) -> None:
    with ledger.transaction() as tx:
        for number in range(5):
            tx.send("moves.fifo", str(number))
    clock_offset.advance(1)
    sent_bodies: list[str] = []
    for _ in range(3):
        outgoing = ledger.take_outgoing(2, lease=30)
        sent_bodies += [it.body for it in outgoing]
        ledger.sent_outgoing([it.id for it in outgoing])
    assert sent_bodies == ["0", "1", "2", "3", "4"], "also those that were sent without a group keep their order"


def test_a_dispatcher_that_died_leaves_its_group_to_the_next_one_in_order(ledger: Ledger, clock_offset: Shift) -> None:
    with ledger.transaction() as tx:
        for number in range(4):
            tx.send("moves.fifo", str(number), group="g")
    clock_offset.advance(1)
    assert bodies(ledger, limit=2, lease=30) == ["0", "1"]
    assert bodies(ledger) == []
    clock_offset.advance(31)
    assert bodies(ledger) == ["0", "1", "2", "3"]

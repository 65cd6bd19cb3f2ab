"""DynamoDB's transactions: one TransactWriteItems for the handler's writes, the record, and the outgoing messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.lossy import lossy
from ledger.stores import Shift
from semel.ledger.contract import (
    Claim,
    Completion,
    Done,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Status,
)
from semel.ledger.dynamodb.ledger import DynamoLedger
from semel.ledger.dynamodb.transaction import DynamoTransaction
from servers.dynamodb import Server


@pytest.fixture
def table() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ledger(dynamodb_server: Server, table: str, clock_offset: Shift) -> Iterator[DynamoLedger]:
    with DynamoLedger(table, **dynamodb_server.options(), create=True, clock=clock_offset) as ledger:
        yield ledger


@pytest.fixture
def client(dynamodb_server: Server) -> Iterator[Any]:
    client = dynamodb_server.session().client("dynamodb", endpoint_url=dynamodb_server.url)
    yield client
    client.close()


@pytest.fixture
def orders(client: Any) -> str:
    name = f"orders-{uuid.uuid4().hex[:12]}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
    )
    return name


def put(table: str, name: str) -> dict[str, Any]:
    return {"Put": {"TableName": table, "Item": {"pk": {"S": name}}}}


def commit(ledger: DynamoLedger, writes: Sequence[dict[str, Any]], claim: Claim) -> None:
    with ledger.transaction() as tx:
        for write in writes:
            tx.write(write)
        tx.record([Completion(claim)])


def written(client: Any, table: str) -> list[str]:
    return sorted(item["pk"]["S"] for item in client.scan(TableName=table)["Items"])


def test_writes_and_record_are_made_together(ledger: DynamoLedger, client: Any, orders: str) -> None:
    assert ledger.transactional
    claims = [win(ledger, key).claim for key in ("a", "b")]
    with ledger.transaction() as tx:
        tx.write(put(orders, "order-1"))
        assert tx.connection.describe_table(TableName=orders)["Table"]["TableName"] == orders
        assert tx.record([Completion(claim, result=b"r") for claim in claims]) == [True, True]
        assert written(client, orders) == []
    assert written(client, orders) == ["order-1"]
    assert [ask(ledger, key) for key in ("a", "b")] == [Done(key, Status.DONE, b"r") for key in ("a", "b")]


def test_if_the_handler_raises_nothing_is_written(ledger: DynamoLedger, client: Any, orders: str) -> None:
    claim = win(ledger, "a").claim

    def fail() -> None:
        with ledger.transaction() as tx:
            tx.write(put(orders, "order-1"))
            tx.send("receipts", "hello")
            tx.record([Completion(claim)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert written(client, orders) == []
    assert ledger.take_outgoing() == []
    assert entry(ledger, "a").status is Status.CLAIMED


def test_a_zombie_is_fenced_and_nothing_of_it_is_written(
    ledger: DynamoLedger, clock_offset: Shift, client: Any, orders: str
) -> None:
    old = win(ledger, "a").claim
    clock_offset.advance(LEASE + 1)
    new = win(ledger, "a").claim
    with pytest.raises(Fenced, match="'a' is no longer held with fence 1"):
        commit(ledger, [put(orders, "zombie")], old)
    assert written(client, orders) == []
    assert entry(ledger, "a").fence == new.fence


def test_what_was_recorded_cannot_be_recorded_with_other_writes(ledger: DynamoLedger, client: Any, orders: str) -> None:
    claim = win(ledger, "a").claim
    commit(ledger, [put(orders, "once")], claim)
    with pytest.raises(Fenced):
        commit(ledger, [put(orders, "twice")], claim)
    assert written(client, orders) == ["once"]


def test_a_write_whose_own_condition_fails_is_named_and_the_claim_goes_on(
    ledger: DynamoLedger, client: Any, orders: str
) -> None:
    claim = win(ledger, "a").claim
    check = {
        "ConditionCheck": {
            "TableName": orders,
            "Key": {"pk": {"S": "stock"}},
            "ConditionExpression": "attribute_exists(pk)",
        }
    }
    with pytest.raises(LedgerError, match="write 2 of the transaction"):
        commit(ledger, [put(orders, "order-1"), check], claim)
    assert written(client, orders) == []
    assert finish(ledger, claim)


def test_it_has_at_most_a_hundred_items(ledger: DynamoLedger, client: Any, orders: str) -> None:
    claim = win(ledger, "a").claim
    with ledger.transaction() as tx:
        for n in range(99):
            tx.write(put(orders, f"order-{n}"))
        tx.record([Completion(claim)])
        with pytest.raises(LedgerError, match="at most 100 items"):
            tx.write(put(orders, "one too many"))
    assert len(written(client, orders)) == 99


def test_statements_and_savepoints_are_refused_with_the_way_out(ledger: DynamoLedger) -> None:
    with ledger.transaction() as tx:
        with pytest.raises(LedgerError, match=r"tx\.write"):
            tx.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(LedgerError, match=r"tx\.write"):
            tx.executemany("INSERT INTO orders VALUES (?)", [(1,)])
        with pytest.raises(LedgerError, match="savepoints"):
            tx.savepoint()
        with pytest.raises(LedgerError, match="ConditionCheck, Delete, Put, Update"):
            tx.write({"Get": {}})


def test_messages_leave_with_the_commit_and_are_handed_out_to_one_until_they_are_sent(
    ledger: DynamoLedger, clock_offset: Shift
) -> None:
    claim = win(ledger, "a").claim
    with ledger.transaction() as tx:
        tx.send("receipts", {"order": 1}, key="r-1", delay=5, attributes={"kind": "receipt"})
        tx.send("audit.fifo", "text", group="g")
        tx.record([Completion(claim)])
        assert ledger.take_outgoing() == []
    clock_offset.advance(1)
    outgoing = sorted(ledger.take_outgoing(), key=lambda it: it.queue)
    assert [(it.queue, it.body, it.key, it.delay, it.group, it.attributes) for it in outgoing] == [
        ("audit.fifo", "text", "", None, "g", {}),
        ("receipts", '{"order":1}', "r-1", 5, None, {"kind": "receipt"}),
    ]
    assert ledger.take_outgoing() == []
    ledger.sent_outgoing([outgoing[0].id])
    clock_offset.advance(31)
    assert [it.id for it in ledger.take_outgoing()] == [outgoing[1].id]


def test_messages_are_handed_out_up_to_the_limit_and_each_to_one_of_many(
    ledger: DynamoLedger, clock_offset: Shift
) -> None:
    with ledger.transaction() as tx:
        for n in range(20):
            tx.send("receipts", str(n))
    clock_offset.advance(1)
    assert len(ledger.take_outgoing(limit=4)) == 4
    bodies = [it.body for part in at_once([lambda: ledger.take_outgoing(limit=16)] * 4) for it in part]
    assert len(bodies) == len(set(bodies))
    assert len(bodies) <= 16


def test_a_group_leaves_in_its_order(ledger: DynamoLedger, clock_offset: Shift) -> None:
    with ledger.transaction() as tx:
        for n in range(8):
            tx.send("audit.fifo", str(n), group="g")
    clock_offset.advance(1)
    assert [it.body for it in ledger.take_outgoing()] == [str(n) for n in range(8)]


def test_a_group_waits_for_the_one_that_another_dispatcher_has_taken(ledger: DynamoLedger, clock_offset: Shift) -> None:
    with ledger.transaction() as tx:
        for n in range(3):
            tx.send("audit.fifo", str(n), group="g")
    clock_offset.advance(1)
    (first,) = ledger.take_outgoing(1, lease=30)
    assert ledger.take_outgoing() == []
    ledger.refused_outgoing([first.id], error="too large", wait=120)
    clock_offset.advance(119)
    assert ledger.take_outgoing() == []
    clock_offset.advance(2)
    assert [(it.body, it.attempts, it.error) for it in ledger.take_outgoing()] == [
        ("0", 1, "too large"), ("1", 0, ""), ("2", 0, "")
    ]  # fmt: skip


def test_a_commit_whose_answer_is_lost_is_told_from_one_that_failed(
    dynamodb_server: Server, ledger: DynamoLedger, table: str, client: Any, orders: str
) -> None:
    claim = win(ledger, "a").claim
    with lossy(int(dynamodb_server.url.rpartition(":")[2])) as wire:
        options = dynamodb_server.options() | {"endpoint_url": f"http://127.0.0.1:{wire.port}"}
        with DynamoLedger(table, **options) as other:
            wire.lose(b"TransactWriteItems")
            commit(other, [put(orders, "order-1")], claim)
    assert wire.lost == 1
    assert written(client, orders) == ["order-1"]


def test_a_commit_that_is_never_answered_has_an_unknown_outcome_that_can_be_looked_up(
    dynamodb_server: Server, ledger: DynamoLedger, table: str, client: Any, orders: str
) -> None:
    claim = win(ledger, "a").claim
    with lossy(int(dynamodb_server.url.rpartition(":")[2])) as wire:
        options = dynamodb_server.options() | {"endpoint_url": f"http://127.0.0.1:{wire.port}"}
        with DynamoLedger(table, **options) as other:
            transact = other._client.transact

            def unanswered(*args: Any) -> None:
                wire.lose(b"TransactWriteItems")
                transact(*args)

            other._client.transact = unanswered  # type: ignore[assignment,method-assign]
            with pytest.raises(OutcomeUnknown):
                commit(other, [put(orders, "order-1")], claim)
    assert entry(ledger, "a").status is Status.DONE
    assert written(client, orders) == ["order-1"]


def test_a_commit_that_never_left_is_known_not_to_have_happened(dynamodb_server: Server, ledger: DynamoLedger) -> None:
    claim = win(ledger, "a").claim
    dynamodb_server.stop()
    try:
        with pytest.raises(LedgerUnavailable) as raised:
            commit(ledger, [], claim)
    finally:
        dynamodb_server.start()
    assert not isinstance(raised.value, OutcomeUnknown)
    assert finish(ledger, claim)


def test_an_empty_one_is_no_call(ledger: DynamoLedger) -> None:
    with ledger.transaction() as tx:
        assert isinstance(tx, DynamoTransaction)

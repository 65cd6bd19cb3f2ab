"""What is special about the DynamoDB ledger. The conformance suite tests what is true for every store."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.stores import Shift
from semel.ledger.contract import (
    Completion,
    Conflict,
    Done,
    Held,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    Status,
    Won,
)
from semel.ledger.dynamodb.ledger import DynamoLedger
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


def plain_table(client: Any, name: str) -> None:
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
    )


class TestTheTable:
    def test_it_is_made_on_request_billed_by_request_and_with_time_to_live(
        self, ledger: DynamoLedger, client: Any, table: str
    ) -> None:
        assert client.describe_table(TableName=table)["Table"]["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        about = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
        assert about == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}

    def test_many_that_make_it_at_once_all_get_it(self, dynamodb_server: Server, table: str) -> None:
        def work() -> Any:
            with DynamoLedger(table, **dynamodb_server.options(), create=True) as ledger:
                return ask(ledger, "a")

        verdicts = at_once([work] * 4)
        assert sorted(type(verdict).__name__ for verdict in verdicts) == ["Held", "Held", "Held", "Won"]

    def test_one_that_is_missing_is_an_error_with_the_way_out(self, dynamodb_server: Server, table: str) -> None:
        with pytest.raises(LedgerError, match=rf"no DynamoDB table {table} in region eu-west-1.*create=True"):
            DynamoLedger(table, **dynamodb_server.options())

    def test_one_that_was_made_by_hand_works_and_the_log_warns_if_nothing_is_ever_dropped(
        self, dynamodb_server: Server, client: Any, table: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain_table(client, table)
        with caplog.at_level(logging.WARNING, "semel.ledger"):
            with DynamoLedger(table, **dynamodb_server.options()) as ledger:
                assert win(ledger, "a")
                with pytest.raises(LedgerError, match=r"no index 'outbox'.*create=True"), ledger.transaction() as tx:
                    tx.send("orders", "hello")
                assert ledger.take_outgoing() == []
        assert "'expires'" in caplog.text

    def test_a_ledger_of_a_newer_semel_is_refused(
        self, dynamodb_server: Server, ledger: DynamoLedger, client: Any, table: str
    ) -> None:
        client.put_item(TableName=table, Item={"pk": {"S": "meta#semel"}, "version": {"N": "99"}})
        with pytest.raises(LedgerError, match=r"schema 99.*upgrade Semel"):
            DynamoLedger(table, **dynamodb_server.options())

    def test_items_of_an_older_layout_are_refused(
        self, dynamodb_server: Server, ledger: DynamoLedger, client: Any, table: str
    ) -> None:
        client.put_item(TableName=table, Item={"pk": {"S": "meta#semel"}, "version": {"N": "1"}})
        with pytest.raises(LedgerError, match=r"schema 1.*use another table"):
            DynamoLedger(table, **dynamodb_server.options())

    def test_an_item_is_dropped_only_some_time_after_it_has_expired(
        self, ledger: DynamoLedger, client: Any, table: str
    ) -> None:
        ledger.retention = 600
        assert finish(ledger, win(ledger, "a").claim)
        item = client.get_item(TableName=table, Key={"pk": {"S": "key#a"}})["Item"]
        assert int(item["expires"]["N"]) == pytest.approx(entry(ledger, "a").expires + 600, abs=1)


class TestTheAddress:
    def test_its_options_are_read(self, dynamodb_server: Server, table: str) -> None:
        url = f"dynamodb://{table}?region=eu-west-1&endpoint={dynamodb_server.url}&create=1&retention=60&workers=2"
        with Ledger.connect(url, session=dynamodb_server.session()) as ledger:
            assert ledger.retention == 60
            assert isinstance(ask(ledger, "a"), Won)

    @pytest.mark.parametrize(
        "url", ["dynamodb://t?retention=soon", "dynamodb://t?create=perhaps", "dynamodb://t?colour=red"]
    )
    def test_one_that_cannot_be_read_is_an_error_that_names_it(self, url: str) -> None:
        with pytest.raises(LedgerError, match=r"retention|create|colour"):
            DynamoLedger.from_url(url)

    def test_one_without_a_table_is_an_error(self) -> None:
        with pytest.raises(LedgerError, match="name of its table"):
            DynamoLedger.from_url("dynamodb://?region=eu-west-1")


class TestRoundTrips:
    """Each write is billed, and takes its time: so they are counted."""

    @pytest.fixture
    def sent(self, ledger: DynamoLedger) -> list[str]:
        sent: list[str] = []
        exchange = ledger._client._transport.exchange

        def counted(request: bytes, *args: Any, **kwargs: Any) -> Any:
            sent.append(request.partition(b"DynamoDB_20120810.")[2].partition(b"\r")[0].decode())
            return exchange(request, *args, **kwargs)

        ledger._client._transport.exchange = counted  # type: ignore[method-assign]
        return sent

    def test_one_claims_a_new_key_and_one_makes_every_later_write(self, ledger: DynamoLedger, sent: list[str]) -> None:
        claim = win(ledger, "a", payload="p").claim
        assert ledger.extend([claim], LEASE) == [True]
        assert finish(ledger, claim)
        assert ledger.forget(["a"]) == 1
        assert ledger.release([win(ledger, "b").claim]) == [True]
        assert sent == ["PutItem", *["UpdateItem"] * 3, "PutItem", "UpdateItem"]

    def test_one_tells_that_a_key_cannot_be_won(self, ledger: DynamoLedger, sent: list[str]) -> None:
        claim = win(ledger, "a", payload="p").claim
        assert isinstance(ask(ledger, "a", payload="p"), Held)
        assert ask(ledger, "a", payload="other") == Conflict("a")
        assert finish(ledger, claim)
        assert isinstance(ask(ledger, "a", payload="p"), Done)
        assert sent == ["PutItem"] * 3 + ["UpdateItem", "PutItem"]

    def test_two_win_a_key_that_is_known(self, ledger: DynamoLedger, clock_offset: Shift, sent: list[str]) -> None:
        ledger.retention = 600
        claim = win(ledger, "a", source="s1", claimant="me").claim
        assert win(ledger, "a", source="s1", claimant="me").claim == claim  # again: the answer was lost
        assert ledger.release([claim]) == [True]
        win(ledger, "a", source="s1")  # free
        clock_offset.advance(LEASE + 1)
        claim = win(ledger, "a", source="s1").claim  # taken over
        assert finish(ledger, claim, Status.REJECTED)
        claim = win(ledger, "a", source="s2").claim  # back from the dead-letter queue
        assert finish(ledger, claim)
        clock_offset.advance(601)
        assert win(ledger, "a").claim.fence == 5  # expired
        assert [name for name in sent if name == "PutItem"] == ["PutItem"] * (1 + 2 + 2 + 2 + 2 + 2)
        assert len(sent) == 11 + 3

    def test_an_outbox_in_which_nothing_is_found_costs_less_than_two_queries_a_second(
        self, ledger: DynamoLedger, clock_offset: Shift, sent: list[str]
    ) -> None:
        for _ in range(60):
            assert ledger.take_outgoing() == []
            clock_offset.advance(1)
        assert sent.count("Query") <= 64

    def test_the_outbox_is_looked_at_once_this_process_has_committed_a_message(
        self, ledger: DynamoLedger, clock_offset: Shift
    ) -> None:
        clock_offset.advance(1)
        with ledger.transaction() as tx:
            tx.send("receipts", "1")
            assert ledger.take_outgoing() == []
        clock_offset.advance(0.001)
        (first,) = ledger.take_outgoing(lease=2)
        assert ledger.take_outgoing() == []
        clock_offset.advance(2)
        (again,) = ledger.take_outgoing(lease=30)
        assert again.id == first.id, "nobody has sent it, and its lease is over"
        ledger.refused_outgoing([again.id], error="no", wait=1)
        assert ledger.take_outgoing() == []
        clock_offset.advance(1)
        assert len(ledger.take_outgoing()) == 1

    def test_for_some_seconds_after_a_commit_every_look_asks_the_index_as_it_may_lag_behind(
        self, ledger: DynamoLedger, clock_offset: Shift, sent: list[str]
    ) -> None:
        clock_offset.advance(1)
        with ledger.transaction() as tx:
            tx.send("receipts", "1")
        for _ in range(3):
            ledger.take_outgoing()
        assert sent.count("Query") == 12

    def test_a_message_of_another_process_is_found_within_seconds(
        self, ledger: DynamoLedger, dynamodb_server: Server, table: str, clock_offset: Shift
    ) -> None:
        assert ledger.take_outgoing() == []
        with DynamoLedger(table, **dynamodb_server.options(), clock=clock_offset) as other, other.transaction() as tx:
            tx.send("receipts", "1")
        clock_offset.advance(5)
        assert len(ledger.take_outgoing()) == 1


class TestOneKey:
    def test_what_one_call_says_of_it_is_done_in_order(self, ledger: DynamoLedger) -> None:
        for n in range(4):
            claim = win(ledger, f"key-{n}").claim
            ledger.record([Completion(claim, result=str(place).encode()) for place in range(12)])
            assert ask(ledger, f"key-{n}") == Done(f"key-{n}", Status.DONE, b"0")

    def test_its_new_life_after_it_has_expired_knows_no_notes(self, ledger: DynamoLedger, clock_offset: Shift) -> None:
        ledger.retention = 600
        claim = win(ledger, "a", payload="p").claim
        assert ledger.save_step(claim, "step", b"1")
        clock_offset.advance(601)
        assert win(ledger, "a", payload="q").steps == {}
        assert entry(ledger, "a").steps == {}


class TestClocks:
    def test_anothers_lease_is_over_only_when_its_clock_may_be_behind_no_more(
        self, dynamodb_server: Server, table: str, clock_offset: Shift
    ) -> None:
        options = dynamodb_server.options()
        with DynamoLedger(table, **options, create=True, clock=clock_offset, clock_margin=60) as ledger:
            win(ledger, "a", lease=30)
            clock_offset.advance(31)
            held = ask(ledger, "a")
            assert isinstance(held, Held)
            assert 50 < held.remaining < 60
            clock_offset.advance(60)
            assert win(ledger, "a").taken_over


class TestItsEnd:
    def test_a_closed_ledger_says_so(self, dynamodb_server: Server, table: str) -> None:
        ledger = DynamoLedger(table, **dynamodb_server.options(), create=True)
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            ask(ledger, "a")

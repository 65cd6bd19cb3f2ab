"""What is true of the DynamoDB ledger alone; what is true of every store, the conformance suite says."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

    def test_an_item_is_dropped_only_some_time_after_it_has_expired(
        self, ledger: DynamoLedger, client: Any, table: str
    ) -> None:
        ledger.keep = 600
        assert finish(ledger, win(ledger, "a").claim)
        item = client.get_item(TableName=table, Key={"pk": {"S": "key#a"}})["Item"]
        assert int(item["expires"]["N"]) == pytest.approx(entry(ledger, "a").expires + 600, abs=1)


class TestTheAddress:
    def test_its_options_are_read(self, dynamodb_server: Server, table: str) -> None:
        url = f"dynamodb://{table}?region=eu-west-1&endpoint={dynamodb_server.url}&create=1&keep=60&workers=2"
        with Ledger.connect(url, session=dynamodb_server.session()) as ledger:
            assert ledger.keep == 60
            assert isinstance(ask(ledger, "a"), Won)

    @pytest.mark.parametrize(
        "url", ["dynamodb://t?keep=soon", "dynamodb://t?create=perhaps", "dynamodb://t?colour=red"]
    )
    def test_one_that_cannot_be_read_is_an_error_that_names_it(self, url: str) -> None:
        with pytest.raises(LedgerError, match=r"keep|create|colour"):
            DynamoLedger.from_url(url)

    def test_one_without_a_table_is_an_error(self) -> None:
        with pytest.raises(LedgerError, match="name of its table"):
            DynamoLedger.from_url("dynamodb://?region=eu-west-1")


class TestRoundTrips:
    """Each write is billed, and takes its time: so they are counted."""

    @pytest.fixture
    def sent(self, ledger: DynamoLedger) -> list[str]:
        sent: list[str] = []
        events = ledger._link.client.meta.events
        events.register("before-call.dynamodb", lambda model, **_: sent.append(model.name))
        return sent

    def test_one_decides_all_that_is_common(self, ledger: DynamoLedger, clock_offset: Shift, sent: list[str]) -> None:
        claim = win(ledger, "a", payload="p").claim  # new
        assert isinstance(ask(ledger, "a", payload="p"), Held)
        assert ask(ledger, "a", payload="other") == Conflict("a")
        assert ledger.release([claim]) == [True]
        win(ledger, "a", payload="p")  # free
        clock_offset.advance(LEASE + 1)
        claim = win(ledger, "a", payload="p").claim  # taken over
        assert ledger.extend([claim], LEASE) == [True]
        assert finish(ledger, claim)
        assert isinstance(ask(ledger, "a", payload="p"), Done)
        assert ledger.forget(["a"]) == 1
        win(ledger, "a", payload="q")
        assert sent == ["UpdateItem"] * 11

    def test_the_rare_cases_take_two(self, ledger: DynamoLedger, clock_offset: Shift, sent: list[str]) -> None:
        ledger.keep = 600
        claim = win(ledger, "a", source="s1", claimant="me").claim
        assert win(ledger, "a", source="s1", claimant="me").claim == claim
        assert finish(ledger, claim, Status.REJECTED)
        claim = win(ledger, "a", source="s2").claim
        assert finish(ledger, claim)
        clock_offset.advance(601)
        assert win(ledger, "a").claim.fence == 3
        assert sent == ["UpdateItem"] * (1 + 2 + 1 + 2 + 1 + 2)


class TestOneKey:
    def test_what_one_call_says_of_it_is_done_in_order(self, ledger: DynamoLedger) -> None:
        for n in range(4):
            claim = win(ledger, f"key-{n}").claim
            ledger.record([Completion(claim, result=str(place).encode()) for place in range(12)])
            assert ask(ledger, f"key-{n}") == Done(f"key-{n}", Status.DONE, b"0")

    def test_its_new_life_after_it_has_expired_knows_no_notes(self, ledger: DynamoLedger, clock_offset: Shift) -> None:
        ledger.keep = 600
        claim = win(ledger, "a", payload="p").claim
        assert ledger.save_step(claim, "step", b"1")
        clock_offset.advance(601)
        assert win(ledger, "a", payload="q").notes == {}
        assert entry(ledger, "a").notes == {}


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


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """A DynamoDB that answers everything with one error."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(
                {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "says the test"}
            ).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class TestErrors:
    @pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException"])
    def test_what_is_not_allowed_is_an_error_that_names_the_action(self, dynamodb_server: Server, code: str) -> None:
        with answering(400, code) as url, pytest.raises(LedgerError, match="grant dynamodb:UpdateItem") as refused:
            DynamoLedger("orders", endpoint_url=url, session=dynamodb_server.session())
        assert not isinstance(refused.value, LedgerUnavailable)

    @pytest.mark.parametrize(
        ("status", "code"), [(400, "ProvisionedThroughputExceededException"), (500, "InternalServerError"), (503, "X")]
    )
    def test_a_table_that_is_overloaded_or_broken_is_unavailable(
        self, dynamodb_server: Server, status: int, code: str
    ) -> None:
        with answering(status, code) as url, pytest.raises(LedgerUnavailable, match="orders"):
            DynamoLedger("orders", endpoint_url=url, session=dynamodb_server.session())

    def test_without_credentials_the_text_says_how_to_give_some(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, "/nonexistent")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(LedgerError, match="AWS_ACCESS_KEY_ID"):
            DynamoLedger("orders", region="eu-west-1", endpoint_url="http://127.0.0.1:1")
        with pytest.raises(LedgerError, match=r"region=…"):
            DynamoLedger("orders")

    def test_a_closed_ledger_says_so(self, dynamodb_server: Server, table: str) -> None:
        ledger = DynamoLedger(table, **dynamodb_server.options(), create=True)
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            ask(ledger, "a")

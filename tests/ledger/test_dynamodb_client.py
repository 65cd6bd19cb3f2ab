"""The calls to DynamoDB: how they are signed, where they go, when they are repeated, and what errors say."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from semel.ledger.contract import Claim, LedgerError, LedgerUnavailable
from semel.ledger.dynamodb.client import TableClient
from semel.ledger.dynamodb.ledger import DynamoLedger
from semel.sqs.client.transport import CannotConnect

Reply = tuple[int, dict[str, Any]]  # status and body


class DynamoDB:
    """A server that gives each request what `reply` makes of its headers. `sent` has the operations that came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: list[str] = []


def refusal(code: str, status: int = 400) -> Reply:
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "says the test"}


@contextmanager
def answering(reply: Callable[[Any], Reply | None], clock: Callable[[], float] = time.time) -> Iterator[DynamoDB]:
    """None: the connection ends without an answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            service.sent.append(self.headers["X-Amz-Target"].partition(".")[2])
            made = reply(self.headers)
            if made is None:
                self.close_connection = True
                return
            body = json.dumps(made[1]).encode()
            self.send_response_only(made[0])
            self.send_header("Date", formatdate(clock(), usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        service = DynamoDB(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


def in_turn(*replies: Reply | None) -> Callable[[Any], Reply | None]:
    """Each request gets the next; the last one stays."""
    left = list(replies)
    return lambda _headers: left.pop(0) if len(left) > 1 else left[0]


def session() -> Any:
    return boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="eu-west-1")


@contextmanager
def client_for(service: DynamoDB, **options: Any) -> Iterator[TableClient]:
    defaults = {"region": None, "endpoint_url": service.url, "session": session(), "timeout": 5.0, "workers": 2}
    client = TableClient("orders", **(defaults | options))
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is configured."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []

    def none(attempt: int, _chance: float, *, throttled: bool) -> float:
        pauses.append(attempt + throttled)
        return 0.0

    monkeypatch.setattr("semel.ledger.dynamodb.client.pause_before_retry", none)
    return pauses


class TestRegionAndCredentials:
    def test_aws_region_counts_and_comes_before_the_default(self, environment: pytest.MonkeyPatch) -> None:
        with answering(in_turn((200, {}))) as service:
            environment.setenv("AWS_DEFAULT_REGION", "us-west-2")
            environment.setenv("AWS_REGION", "eu-central-1")
            with client_for(service, session=None) as client:
                assert client.region == "eu-central-1"
            with client_for(service, session=None, region="eu-north-1") as client:
                assert client.region == "eu-north-1"

    def test_without_either_the_text_says_how_to_give_some(self, environment: pytest.MonkeyPatch) -> None:
        with pytest.raises(LedgerError, match="AWS_ACCESS_KEY_ID"):
            DynamoLedger("orders", region="eu-west-1")
        with pytest.raises(LedgerError, match=r"region=…"):
            DynamoLedger("orders")

    def test_a_dynamodb_on_this_machine_needs_neither(self, environment: pytest.MonkeyPatch) -> None:
        with answering(in_turn((200, {}))) as service, client_for(service, session=None) as client:
            assert client.call("GetItem", Key={}) == {}

    def test_credentials_that_have_expired_are_looked_up_again(
        self, environment: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        file = tmp_path / "credentials"
        environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        file.write_text("[default]\naws_access_key_id=OLD\naws_secret_access_key=x\naws_session_token=t1\n")

        def reply(headers: Any) -> Reply:
            return refusal("ExpiredTokenException") if "OLD/" in headers["Authorization"] else (200, {})

        with answering(reply) as service, client_for(service, session=None) as client:
            with pytest.raises(LedgerError, match="ExpiredTokenException"):
                client.call("GetItem", Key={})
            assert len(service.sent) == 2, "the file still held the same"
            file.write_text("[default]\naws_access_key_id=NEW\naws_secret_access_key=y\naws_session_token=t2\n")
            assert client.call("GetItem", Key={}) == {}

    def test_a_clock_that_is_wrong_is_corrected_by_that_of_dynamodb(self) -> None:
        def ahead() -> float:
            return time.time() + 3_600

        def reply(headers: Any) -> Reply:
            today = time.strftime("%Y%m%dT%H", time.gmtime(ahead()))
            return (200, {}) if headers["X-Amz-Date"].startswith(today) else refusal("InvalidSignatureException")

        with answering(reply, ahead) as service, client_for(service) as client:
            assert client.call("GetItem", Key={}) == {}
            assert len(service.sent) == 2


class TestAttempts:
    @pytest.mark.parametrize(
        "failure", [refusal("ThrottlingException"), refusal("InternalServerError", 500), refusal("X", 503), None]
    )
    def test_a_call_that_failed_for_now_is_sent_three_times(
        self, failure: Reply | None, no_pauses: list[float]
    ) -> None:
        with answering(in_turn(failure, failure, (200, {"Item": {}}))) as service, client_for(service) as client:
            assert client.call("GetItem", Key={}) == {"Item": {}}
        with answering(lambda _: failure) as service, client_for(service) as client:
            with pytest.raises(LedgerUnavailable, match="GetItem on"):
                client.call("GetItem", Key={})
            assert service.sent == ["GetItem"] * 3
        assert len(no_pauses) == 4

    def test_what_is_refused_for_good_is_sent_once(self) -> None:
        with answering(lambda _: refusal("ValidationException")) as service, client_for(service) as client:
            with pytest.raises(LedgerError, match=r"was refused: says the test \(ValidationException"):
                client.call("GetItem", Key={})
            assert service.sent == ["GetItem"]

    def test_a_transaction_is_sent_once(self) -> None:
        with answering(lambda _: None) as service, client_for(service) as client:
            with pytest.raises(OSError) as caught:
                client.transact([], "token")
            assert not isinstance(caught.value, CannotConnect), "it may have been carried out"
            assert len(service.sent) == 1

    def test_a_transaction_is_not_sent_again_over_another_connection(self) -> None:
        with answering(in_turn((200, {}), None)) as service, client_for(service) as client:
            client.call("GetItem", Key={})
            with pytest.raises(OSError):
                client.transact([], "token")
            assert service.sent == ["GetItem", "TransactWriteItems"]

    def test_a_kept_connection_that_was_closed_is_no_doubt_about_a_transaction(self) -> None:
        with answering(in_turn((200, {}))) as service, client_for(service) as client:
            client.call("GetItem", Key={})
            (connection,) = client._transport._idle
            connection._sock.shutdown(socket.SHUT_RDWR)
            client.transact([], "token")
            assert service.sent == ["GetItem", "TransactWriteItems"]

    def test_an_extension_with_a_timeout_is_sent_once_and_ends_in_time(self) -> None:
        def reply(headers: Any) -> Reply:
            if headers["X-Amz-Target"].endswith("UpdateItem") and len(service.sent) > 2:
                return refusal("InternalServerError", 500)
            return 200, {
                "Attributes": {"version": {"N": "2"}},
                "TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"},
            }

        with answering(reply) as service:
            with DynamoLedger("orders", endpoint_url=service.url, session=session()) as ledger:
                began = len(service.sent)
                with pytest.raises(LedgerUnavailable):
                    ledger.extend([Claim("a", 1)], 30.0, timeout=2.0)
                assert len(service.sent) == began + 1
                with pytest.raises(LedgerUnavailable, match="within 0 s"):
                    ledger.extend([Claim("a", 1)], 30.0, timeout=0.0)
                assert len(service.sent) == began + 1


class TestErrors:
    @pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException"])
    def test_what_is_not_allowed_is_an_error_that_names_the_action(self, code: str) -> None:
        with answering(lambda _: refusal(code)) as service:
            with pytest.raises(LedgerError, match="grant dynamodb:UpdateItem") as refused:
                DynamoLedger("orders", endpoint_url=service.url, session=session())
        assert not isinstance(refused.value, LedgerUnavailable)

    @pytest.mark.parametrize(
        ("status", "code"), [(400, "ProvisionedThroughputExceededException"), (500, "InternalServerError"), (503, "X")]
    )
    def test_a_table_that_is_overloaded_or_broken_is_unavailable(self, status: int, code: str) -> None:
        with answering(lambda _: refusal(code, status)) as service:
            with pytest.raises(LedgerUnavailable, match="orders"):
                DynamoLedger("orders", endpoint_url=service.url, session=session())

    def test_what_is_no_dynamodb_is_unavailable(self) -> None:
        with answering(lambda _: (200, [])) as service, client_for(service) as client:  # type: ignore[arg-type,return-value]
            with pytest.raises(LedgerUnavailable, match="not JSON"):
                client.call("GetItem", Key={})

    def test_a_value_that_has_no_json_is_named(self) -> None:
        with answering(in_turn((200, {}))) as service, client_for(service) as client:
            with pytest.raises(LedgerError, match=r"PutItem on the DynamoDB table orders is not possible.*set"):
                client.put({"Item": {"a": {1, 2}}})
            assert service.sent == []

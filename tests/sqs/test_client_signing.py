"""Signature V4: the broker verifies what the client signs, and the result is compared with botocore's own signer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from clients import client_for
from scripted_server import Request, answer, refusal, scripted

import semel.broker
from semel.broker.embedded_broker import EmbeddedBroker
from semel.sqs.client.signer import Signer
from semel.sqs.errors import CredentialsRefused, NoCredentials

NOW = 1_700_000_000.0


class Keys(NamedTuple):
    access_key: str | None = "AKIDEXAMPLE"
    secret_key: str | None = "secret/with+signs"
    token: str | None = None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AKID\naws_secret_access_key = se/cr+et\n")
    with semel.broker.running(credentials=file, region="eu-west-1") as running:
        yield running


def signed_client(broker: EmbeddedBroker, **options: Any) -> Any:
    keys = {"region": "eu-west-1", "access_key": "AKID", "secret_key": "se/cr+et"}
    return client_for(broker.url, **(keys | options))


@pytest.mark.parametrize("token", [None, "a/token+with%signs=="])
def test_a_broker_that_checks_signatures_takes_ours(broker: EmbeddedBroker, token: str | None) -> None:
    with signed_client(broker, session_token=token) as client:
        queue = client.create_queue("orders")
        queue.send("ü" * 1000, attributes={"a": b"\xff"})
        (got,) = queue.receive(10, 0)
        assert queue.delete([got.receipt]) == [None]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"secret_key": "other"}, "SignatureDoesNotMatch"),
        ({"access_key": "AKIX"}, "InvalidClientTokenId"),
        ({"region": "mars"}, "SignatureDoesNotMatch"),
    ],
)
def test_wrong_credentials_are_named_as_such_and_not_tried_again(
    broker: EmbeddedBroker, options: dict[str, str], code: str
) -> None:
    with signed_client(broker, **options) as client:
        with pytest.raises(CredentialsRefused, match=r"Check the access key, its secret .* the region") as caught:
            client.call("ListQueues")
        assert (caught.value.code, caught.value.attempts, caught.value.retryable) == (code, 1, False)
        assert "se/cr+et" not in str(caught.value)


@pytest.mark.parametrize("ahead", [3_600.0, -3_600.0, 86_400.0 * 400])
def test_a_wrong_clock_is_put_right_by_the_servers(broker: EmbeddedBroker, ahead: float) -> None:
    with signed_client(broker, max_attempts=1, clock=lambda: time.time() + ahead) as client:
        assert client.call("ListQueues") == {}
        assert client._ahead == pytest.approx(-ahead, abs=60)


def test_a_refusal_that_the_clock_does_not_explain_stays_a_refusal() -> None:
    reply = refusal("InvalidSignatureException", status=403, headers="Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n")
    with scripted(lambda _: reply) as server, client_for(server.url, clock=lambda: NOW + 100) as client:
        with pytest.raises(CredentialsRefused):
            client.call("ListQueues")
        assert len(server.requests) == 1
    with scripted(lambda _: reply) as server, client_for(server.url, clock=lambda: NOW + 1000) as client:
        with pytest.raises(CredentialsRefused):
            client.call("ListQueues")
        assert [request.headers["x-amz-date"] for request in server.requests] == [
            "20231114T223000Z",
            "20231114T221320Z",
        ]


@pytest.mark.parametrize("token", [None, "to%ken=="])
@pytest.mark.parametrize("path", ["/", "/some/%20path%C3%BC/"])
def test_signatures_are_the_ones_that_botocore_makes(token: str | None, path: str) -> None:
    keys = Keys(token=token)
    signer = Signer(host="h:99", path=path, region="eu-west-1", key_pair=lambda: keys, user_agent="me")
    for body in (b"{}", b"x" * 5000):
        head, _, sent = signer.request("SendMessage", body, NOW).partition(b"\r\n\r\n")
        assert sent == body
        assert _authorization(head) == _botocores(keys, f"http://h:99{path}", body)


def _authorization(head: bytes) -> str:
    match = re.search(r"^Authorization: (.*)\r?$", head.decode(), re.MULTILINE)
    assert match is not None
    return match[1].strip()


def _botocores(keys: Keys, url: str, body: bytes) -> str:
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "AmazonSQS.SendMessage",
        "x-amzn-query-mode": "true",
        "X-Amz-Date": "20231114T221320Z",
    }
    request = botocore.awsrequest.AWSRequest("POST", url, headers, data=body)
    request.context["timestamp"] = "20231114T221320Z"
    assert keys.access_key is not None
    assert keys.secret_key is not None
    credentials = botocore.credentials.Credentials(keys.access_key, keys.secret_key, keys.token)
    auth = botocore.auth.SigV4Auth(credentials, "sqs", "eu-west-1")
    if keys.token:
        request.headers["X-Amz-Security-Token"] = keys.token
    canonical = auth.canonical_request(request)
    return (
        f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, "
        f"SignedHeaders={auth.signed_headers(auth.headers_to_sign(request))}, "
        f"Signature={auth.signature(auth.string_to_sign(request, canonical), request)}"
    )


def test_a_new_day_and_new_keys_are_signed_for_anew() -> None:
    keys = [Keys()]
    signer = Signer(host="h", path="/", region="r", key_pair=lambda: keys[0], user_agent="me")
    requests = set()
    for key_pair in (Keys(), Keys(secret_key="other"), Keys(access_key="OTHER"), Keys(token="t"), Keys(token="u")):
        for now in (NOW, NOW + 1, NOW + 86_400):
            keys[0] = key_pair
            requests.add(signer.request("ListQueues", b"{}", now))
            fresh = Signer(host="h", path="/", region="r", key_pair=lambda: keys[0], user_agent="me")
            assert signer.request("ListQueues", b"{}", now) == fresh.request("ListQueues", b"{}", now)
    assert len(requests) == 15


@pytest.mark.parametrize(
    "keys", [Keys(secret_key="with\n"), Keys(access_key="a b"), Keys(secret_key=None), Keys(token="t\r\nX: y")]
)
def test_a_key_with_a_line_break_or_a_blank_is_named_before_it_is_sent(keys: Keys) -> None:
    signer = Signer(host="h", path="/", region="r", key_pair=lambda: keys, user_agent="me")
    with pytest.raises(NoCredentials, match="Copy it again") as caught:
        signer.request("ListQueues", b"{}", NOW)
    assert "with" not in str(caught.value)


def expired(request: Request) -> bytes:
    if "OLD/" in request.headers["authorization"]:
        return refusal("ExpiredTokenException", "The security token included in the request is expired", 403)
    return answer()


def test_expired_credentials_are_looked_up_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    file.write_text("[default]\naws_access_key_id=OLD\naws_secret_access_key=x\naws_session_token=t1\n")
    with scripted(expired) as server:
        with client_for(server.url, access_key=None, secret_key=None, max_attempts=1) as client:
            with pytest.raises(CredentialsRefused):
                client.call("ListQueues")
            assert len(server.requests) == 2  # the file still held the same
            file.write_text("[default]\naws_access_key_id=NEW\naws_secret_access_key=y\naws_session_token=t2\n")
            assert client.call("ListQueues") == {}
            assert server.requests[-1].headers["x-amz-security-token"] == "t2"
            assert client.call("ListQueues") == {}
            assert len(server.requests) == 5


def test_credentials_that_were_passed_by_hand_are_not_replaced_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEONE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "else")
    with scripted(expired) as server, client_for(server.url, access_key="OLD", secret_key="x") as client:
        with pytest.raises(CredentialsRefused, match="session token"):
            client.call("ListQueues")
        assert len(server.requests) == 1

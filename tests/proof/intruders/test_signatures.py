"""Signed requests to a broker with `--credentials`: it carries out only what was signed, and only for the signer.

As with SQS itself, a signed request can be sent again for a quarter of an hour by anybody who has seen it (Signature V4
has no nonce). With plain HTTP that is anybody on the network path, so put TLS in front of the broker.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from intruders import targets
from intruders.signing import KEY, SECRET, Signed, sign, signature_of
from intruders.targets import Target
from intruders.wire import Reply, ask
from semel.broker import auth

CREATE: Final = json.dumps({"QueueName": "forged"}).encode()
OTHER: Final = json.dumps({"QueueName": "other"}).encode()
LONG: Final = "a" * 40_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    file = tmp_path_factory.mktemp("guarded") / "credentials"
    file.write_text(
        f"[owner]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        f"[longer]\naws_access_key_id = {KEY}X\naws_secret_access_key = another-secret\n"
        f"[partner]\naws_access_key_id = AKIAPARTNER\naws_secret_access_key = partners\naws_account_id = 222222222222\n"
    )
    with targets.broker(credentials=file, cooldowns=False) as broker:
        yield broker


@pytest.fixture(autouse=True)
def nothing_is_left_behind(guarded: Target) -> Iterator[None]:
    """Removes the queues that a test has left, so that the next test does not find them."""
    yield
    host = f"127.0.0.1:{guarded.port}"
    for name in queues(guarded):
        url = json.dumps({"QueueUrl": f"http://{host}/000000000000/{name}"}).encode()
        assert send(guarded, sign("DeleteQueue", host, url)).statuses == [200]


def send(guarded: Target, request: Signed) -> Reply:
    return ask(guarded.port, request.raw())


def create(guarded: Target, body: bytes = CREATE, **how: Any) -> Signed:
    return sign("CreateQueue", f"127.0.0.1:{guarded.port}", body, **how)


def queues(guarded: Target) -> list[str]:
    reply = send(guarded, sign("ListQueues", f"127.0.0.1:{guarded.port}"))
    assert reply.statuses == [200]
    return re.findall(r"/\d+/([\w-]+)\"", reply.data.decode())


def test_a_signed_request_may_be_sent_again_for_a_quarter_of_an_hour_as_sqs_allows(guarded: Target) -> None:
    call = sign("SendMessage", f"127.0.0.1:{guarded.port}", _message(guarded))
    assert [send(guarded, call).statuses for _ in range(3)] == [[200]] * 3
    early = sign("SendMessage", f"127.0.0.1:{guarded.port}", _message(guarded), minutes=-14)
    late = sign("SendMessage", f"127.0.0.1:{guarded.port}", _message(guarded), minutes=-15.1)
    assert [send(guarded, request).statuses for request in (early, late)] == [[200], [403]]


def _message(guarded: Target) -> bytes:
    host = f"127.0.0.1:{guarded.port}"
    assert send(guarded, sign("CreateQueue", host, json.dumps({"QueueName": "replayed"}).encode())).statuses == [200]
    return json.dumps({"QueueUrl": f"http://{host}/000000000000/replayed", "MessageBody": "once"}).encode()


ALTERED: Final[dict[str, Callable[[Signed], Signed]]] = {
    "another method": lambda request: replace(request, method="PUT"),
    "another path": lambda request: replace(request, path="/000000000000/forged"),
    "a path that is encoded": lambda request: replace(request, path="/%2F"),
    "a query": lambda request: replace(request, query="Action=DeleteQueue"),
    "an empty parameter": lambda request: replace(request, query="x"),
    "another host": lambda request: request.with_header("Host", "evil.example"),
    "a path of 40 kB": lambda request: replace(request, path=f"/{LONG}"),
    "another port": lambda request: request.with_header("Host", "127.0.0.1:1"),
    "another date": lambda request: request.with_header("X-Amz-Date", "20200101T000000Z"),
    "another operation": lambda request: request.with_header("X-Amz-Target", "AmazonSQS.DeleteQueue"),
    "the operation in another case": lambda request: request.with_header("X-Amz-Target", "amazonsqs.createqueue"),
    "another body": lambda request: replace(request, body=OTHER),
    "one byte more": lambda request: replace(request, body=request.body + b" "),
    "no body": lambda request: replace(request, body=b""),
    "a second operation": lambda request: request.with_more("X-Amz-Target", "AmazonSQS.CreateQueue"),
    "a second host": lambda request: request.with_more("host", "evil.example"),
    "a second date": lambda request: request.with_more("x-amz-date", "20300101T000000Z"),
    "a second authorization": lambda request: request.with_more("Authorization", request.authorization),
    "a header of AWS that is not signed": lambda request: request.with_more("X-Amz-Security-Token", "x"),
    "a body that claims to be unsigned": lambda request: request.with_more("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
    "a body in signed chunks": lambda request: request.with_more(
        "X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    ),
    "no authorization": lambda request: replace(request, authorization=""),
    "no signature": lambda request: replace(request, authorization=request.authorization.rpartition(",")[0]),
    "an empty signature": lambda request: request.with_authorization(signature_of(request), ""),
    "a signature in capitals": lambda request: request.with_authorization(
        signature_of(request), signature_of(request).upper()
    ),
    "half a signature": lambda request: request.with_authorization(signature_of(request), signature_of(request)[:32]),
    "a signature twice as long": lambda request: request.with_authorization(
        signature_of(request), signature_of(request) * 2
    ),
    "a signature of 40 kB": lambda request: request.with_authorization(signature_of(request), LONG),
    "another signature": lambda request: request.with_authorization(signature_of(request), "0" * 64),
    "a signature that is no ASCII": lambda request: request.with_authorization(signature_of(request), "\xe9" * 64),
    "another algorithm": lambda request: request.with_authorization("HMAC-SHA256", "HMAC-SHA1"),
    "fewer signed headers": lambda request: request.with_authorization("host;x-amz-date;x-amz-target", "host"),
    "no signed headers": lambda request: request.with_authorization("host;x-amz-date;x-amz-target", ""),
    "the signed headers in another order": lambda request: request.with_authorization(
        "host;x-amz-date;x-amz-target", "x-amz-target;x-amz-date;host"
    ),
    "the signed headers in capitals": lambda request: request.with_authorization("host;x", "Host;x"),
    "another region": lambda request: request.with_authorization("us-east-1", "us-west-2"),
    "another service": lambda request: request.with_authorization("/sqs/", "/sns/"),
    "another terminator": lambda request: request.with_authorization("aws4_request", "aws5_request"),
    "a terminator of 40 kB": lambda request: request.with_authorization("aws4_request", LONG),
    "the key in another case": lambda request: request.with_authorization(KEY, KEY.lower()),
    "the start of the key": lambda request: request.with_authorization(KEY, KEY[:-1]),
    "a longer key that exists": lambda request: request.with_authorization(KEY, f"{KEY}X"),
    "a key with a space": lambda request: request.with_authorization(KEY, f"{KEY} "),
    "an empty key": lambda request: request.with_authorization(KEY, ""),
    "a key of 40 kB": lambda request: request.with_authorization(KEY, LONG),
    "the key of another account": lambda request: request.with_authorization(KEY, "AKIAPARTNER"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_whatever_is_altered_after_signing_the_request_is_not_carried_out(guarded: Target, what: str) -> None:
    reply = send(guarded, ALTERED[what](create(guarded)))
    assert reply.statuses[0] in (400, 403)
    assert "forged" not in queues(guarded)
    assert "other" not in queues(guarded)
    assert SECRET.encode() not in reply.data
    assert len(reply.data) < 10_000


@pytest.mark.parametrize(
    "how",
    [
        {"secret": "wrong"},
        {"secret": SECRET.upper()},
        {"secret": ""},
        {"minutes": -16},
        {"minutes": 16},
        {"service": "sns"},
        {"service": ""},
        {"region": ""},
        {"region": "../etc"},
        {"day": "20200101"},
        {"day": "99999999"},
        {"payload": "UNSIGNED-PAYLOAD", "more": (("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),)},
        {"payload": "", "more": (("X-Amz-Content-Sha256", ""),)},
        {"unsigned": "Host"},
        {"unsigned": "X-Amz-Date"},
        {"unsigned": "X-Amz-Target"},
        {"key": "AKIAPARTNER", "secret": SECRET},
        {"key": f"{KEY}X", "secret": SECRET},
    ],
    ids=str,
)
def test_a_signature_with_the_wrong_secret_time_or_scope_counts_for_nothing(
    guarded: Target, how: dict[str, Any]
) -> None:
    reply = send(guarded, create(guarded, **how))
    assert reply.statuses[0] in (400, 403)
    assert "forged" not in queues(guarded)


def test_the_right_request_is_carried_out_so_that_the_refusals_above_mean_something(guarded: Target) -> None:
    assert send(guarded, create(guarded, json.dumps({"QueueName": "right"}).encode())).statuses == [200]
    assert "right" in queues(guarded)


@pytest.mark.parametrize("path", ["/x/../", "//", "/./", "/000000000000//right", "/000000000000/./right"])
def test_another_way_to_write_a_signed_path_leads_nowhere_else(guarded: Target, path: str) -> None:
    """Dot segments are resolved before the signature is checked, so a signature is valid only for the resolved path."""
    assert send(guarded, create(guarded, json.dumps({"QueueName": "right"}).encode())).statuses == [200]
    signed = sign("ListQueues", f"127.0.0.1:{guarded.port}", path="/")
    reply = send(guarded, replace(signed, path=path))
    assert reply.statuses == [403 if "right" in path else 200]


def test_secrets_and_signatures_are_compared_in_a_time_that_tells_nothing(
    guarded: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[Any, Any]] = []
    really = hmac.compare_digest

    def noted(first: Any, second: Any) -> bool:
        compared.append((first, second))
        return really(first, second)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    wrong = create(guarded)
    send(guarded, wrong.with_authorization(signature_of(wrong), "0" * 64))
    assert compared[-1][1] == b"0" * 64
    assert auth.Verifier({KEY: SECRET}).by_password("Basic QUtJQUlOVFJVREVEOng=") is None
    assert compared[-1] == (SECRET.encode(), b"x")

"""Requests that botocore has signed, and whether a verifier accepts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from semel.broker.auth import HttpRequest, Verifier
from semel.sqs.errors import ServiceError

ALICE = "AKIDALICE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SERVER = "http://127.0.0.1:9324"
QUEUE = f"{SERVER}/000000000000/orders"
TARGET = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
BODY = b'{"QueueUrl": "http://127.0.0.1:9324/000000000000/orders", "MessageBody": "pay 10"}'
verifier = Verifier({ALICE: SECRET}, region="us-east-1")


def as_received(method: str, url: str, headers: Mapping[str, str | bytes], body: bytes) -> HttpRequest:
    """A prepared request as a server receives it: the HTTP client adds Host and some other headers."""
    sent = {name: value.encode() if isinstance(value, str) else value for name, value in headers.items()}
    parts = urlsplit(url)
    if not any(name.lower() == "host" for name in sent):
        sent = {"Host": parts.netloc.encode(), **sent}
    sent |= {"User-Agent": b"a test", "Accept-Encoding": b"identity", "X-Amzn-Trace-Id": b"Root=1"}
    target = url[len(f"{parts.scheme}://{parts.netloc}") :]
    return HttpRequest(method, target or "/", [(name.encode(), value) for name, value in sent.items()], body)


def signed(
    method: str = "POST",
    url: str = f"{SERVER}/",
    headers: Mapping[str, str] = TARGET,
    body: bytes = BODY,
    *,
    key: tuple[str, str, str | None] = (ALICE, SECRET, None),
    region: str = "us-east-1",
    service: str = "sqs",
) -> HttpRequest:
    request = AWSRequest(method, url, headers=dict(headers), data=body)
    SigV4Auth(BotoCredentials(*key), service, region).add_auth(request)
    return as_received(method, str(request.url), dict(request.headers.items()), body)


def presigned(
    method: str = "GET",
    url: str = f"{QUEUE}?Action=SendMessage&MessageBody=pay%2010%2B1",
    *,
    expires: int = 60,
    token: str | None = None,
    region: str = "us-east-1",
    service: str = "sqs",
) -> HttpRequest:
    request = AWSRequest(method, url)
    SigV4QueryAuth(BotoCredentials(ALICE, SECRET, token), service, region, expires=expires).add_auth(request)
    return as_received(method, str(request.url), dict(request.headers.items()), b"")


def header(request: HttpRequest, name: bytes) -> bytes:
    return next((value for key, value in request.headers if key.lower() == name), b"")


def with_header(request: HttpRequest, name: bytes, value: bytes | None) -> HttpRequest:
    """The request with the header set to `value`, or without it."""
    kept = [pair for pair in request.headers if pair[0].lower() != name.lower()]
    return replace(request, headers=kept if value is None else [*kept, (name, value)])


def with_authorization(request: HttpRequest, change: Callable[[bytes], bytes]) -> HttpRequest:
    return with_header(request, b"Authorization", change(header(request, b"authorization")))


def signed_at(request: HttpRequest) -> float:
    in_query = parse_qs(urlsplit(request.target).query).get("X-Amz-Date", [""])[0]
    return datetime.fromisoformat(header(request, b"x-amz-date").decode() or in_query).timestamp()


def stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%SZ")


def accepted(request: HttpRequest, *, by: Verifier = verifier, late: float = 0) -> str:
    return by.verify(request, signed_at(request) + late).access_key


def refused(request: HttpRequest, code: str, *, by: Verifier = verifier, now: float | None = None) -> str:
    """Expect a refusal with `code`, of bounded length and without the secret; returns its text."""
    with pytest.raises(ServiceError) as caught:
        by.verify(request, signed_at(request) if now is None else now)
    assert caught.value.kind.code == code
    assert SECRET not in caught.value.message
    assert len(caught.value.message) < 6_000
    return caught.value.message

"""Targets for access control: signatures, credentials, receipt handles, policies, and the addresses of queues."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from fuzz.broker_harness import CALLER, ORIGIN, arn, new_engine, url
from fuzz.damage import damaged
from fuzz.scratch import FOLDER
from semel.broker import protocol
from semel.broker.auth import Credentials, HttpRequest, Verifier
from semel.broker.engine.addresses import parse_queue_url
from semel.broker.engine.attributes import Arn, checked
from semel.broker.engine.identity import Access, Identity
from semel.broker.engine.queue_policy import Policy, Verdict, context_of
from semel.errors import StartError
from semel.sqs.client.queue import Reference
from semel.sqs.errors import RECEIPT_HANDLE_IS_INVALID, BadRequest, ServiceError
from semel.sqs.hosts import can_be_rebound, is_loopback

KEY: Final = "AKIDEXAMPLE"
SECRET: Final = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SIGNED_AT: Final = 1_790_000_000.0
STAMP: Final = "20260921T141320Z"
VERIFIER: Final = Verifier({KEY: SECRET})


# Signatures.


def _by_hand(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    """The bytes of a request that is signed in its headers."""
    request = AWSRequest(method, f"{ORIGIN}{target}", headers, body)
    request.context["timestamp"] = STAMP
    signer = SigV4Auth(BotocoreCredentials(KEY, SECRET), "sqs", "us-east-1")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["Host"] = ORIGIN.partition("://")[2]
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    request.headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, Signature={signature}"
    )
    return _wire(method, target, dict(request.headers.items()), body)


def _presigned(target: str) -> bytes:
    request = AWSRequest("GET", f"{ORIGIN}{target}", {}, b"")
    request.context["timestamp"] = STAMP
    signer = SigV4QueryAuth(BotocoreCredentials(KEY, SECRET), "sqs", "us-east-1", expires=60)
    modify: Any = signer
    modify._modify_request_before_signing(request)
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    path = str(request.url).removeprefix(ORIGIN)
    return _wire("GET", f"{path}&X-Amz-Signature={signature}", {"Host": ORIGIN.partition("://")[2]}, b"")


def _wire(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\n".join(lines).encode() + body


@cache
def signed_requests() -> tuple[bytes, ...]:
    target = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
    other = f"/111122223333/{quote('orders')}"
    return (
        _by_hand("POST", "/", target, b'{"QueueUrl":"orders","MessageBody":"pay 10"}'),
        _by_hand("POST", other, {}, b"Action=SendMessage&MessageBody=pay+10"),
        _by_hand("GET", f"{other}?Action=DeleteQueue&Version=2012-11-05", {}, b""),
        _presigned(f"{other}?Action=SendMessage&MessageBody=pay%2010"),
    )


def parsed(raw: bytes) -> HttpRequest | None:
    head, _, body = raw.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.decode("latin-1").partition(" ")
    if not target.startswith("/") or not all(b":" in line for line in lines):
        return None  # no HTTP, or a proxy's form
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return HttpRequest(method, target, headers, body)


def _meaning(request: HttpRequest) -> tuple[Any, ...] | None:
    """What a request means to the broker: the call, and its queue."""
    headers = {name.lower(): value for name, value in request.headers}
    origin = f"http://{headers.get(b'host', b'').decode('latin-1')}"
    try:
        call = protocol.parse(request.method, request.target, headers, request.body, origin)
    except ServiceError as error:
        return request.method, error.message
    params = dict(call.params)
    queue = _engine().key_of_call(params, CALLER._replace(account="000000000000", access=_access("000000000000")))
    params.pop("QueueUrl", None)
    return request.method, call.operation.name, params, queue


@cache
def _engine() -> Any:
    return new_engine()


def fuzz_signature(data: bytes) -> None:
    """A validly signed request with some of its bytes changed: it is refused with an error of SQS, or it still means
    the same call on the same queue. The first byte chooses the request; the others encode the changes."""
    originals = signed_requests()
    original = originals[data[0] % len(originals)] if data else originals[0]
    changed = parsed(damaged(original, data[1:]))
    if changed is not None and _accepted(changed):
        before = parsed(original)
        assert before is not None
        assert _meaning(changed) == _meaning(before), f"accepted although it was changed: {changed}"


def fuzz_authorization(data: bytes) -> None:
    """Any request: it is accepted only if it was signed with the secret, and else refused with an error of SQS."""
    request = parsed(data)
    if request is not None and _accepted(request):
        accepted = [_meaning(known) for raw in signed_requests() if (known := parsed(raw)) is not None]
        assert _meaning(request) in accepted


def _accepted(request: HttpRequest) -> bool:
    password = dict(request.headers).get(b"Authorization", b"").decode("latin-1")
    assert VERIFIER.by_password(password) is None
    try:
        VERIFIER.verify(request, SIGNED_AT)
    except ServiceError as error:
        assert error.kind.status in (400, 403)
        assert SECRET not in error.message
        protocol.error_answer(protocol.Protocol.QUERY, error, "0" * 32)
        return False
    return True


def fuzz_credentials_file(data: bytes) -> None:
    """A credentials file: it gives users with a key pair each, or a StartError that names the file but no secret."""
    path = FOLDER / "credentials"
    path.write_bytes(data)
    try:
        credentials = Credentials.load(path)
    except StartError as error:
        assert str(path) in str(error)
        lines = [line for line in data.splitlines() if SECRET.encode() in line]
        if len(lines) == 1 and lines[0].startswith(b"aws_secret") and lines[0].endswith(SECRET.encode()):
            assert SECRET not in str(error)
        return
    assert credentials
    assert credentials.keys() == credentials.users.keys()
    assert all(key and secret for key, secret in credentials.items())
    assert SECRET not in repr(credentials) or SECRET in credentials
    Verifier(credentials)


# Receipt handles.


def fuzz_receipt(data: bytes) -> None:
    """A receipt handle: if it differs in any character from the one that this broker has issued, it is refused and
    changes no message. The issued one deletes only its own message."""
    handle = data.decode("utf-8", "replace")
    engine = new_engine()
    written = engine.store.receipts.encode(2, 2 << 40 | 1, 1, 1)
    engine.begin()
    before = _messages(engine)
    try:
        engine.perform("DeleteMessage", {"QueueUrl": url("orders"), "ReceiptHandle": handle}, CALLER)
    except ServiceError as error:
        assert error.kind.status < 500
        assert error.kind is RECEIPT_HANDLE_IS_INVALID or not handle
        assert handle != written
        assert _messages(engine) == before
        return
    assert handle == written, f"{handle!r} was not written by this broker, and was taken"
    assert before - _messages(engine) == {2 << 40 | 1}


def _messages(engine: Any) -> set[int]:
    engine.store.write_out()
    return {row for (row,) in engine.store.db.execute("SELECT id FROM messages")}


# Policies.

OWNER: Final = "000000000000"
STRANGER: Final = Identity("K", "111122223333", "AIDAEXAMPLE", "arn:aws:iam::111122223333:user/eve", "us-east-1")
_DENY_ALL: Final = {"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}
_DENY_ODDLY: Final = {"Effect": "Deny", "Principal": {"Odd": 1}, "Action": "*", "Resource": "*"}


def _access(account: str) -> Access:
    return Access(Identity("K", account, "U", f"arn:aws:iam::{account}:user/u", "us-east-1"))


def fuzz_policy(data: bytes) -> None:
    """A queue's policy: it is refused with an error of SQS, or it permits a call only with an Allow that names the
    caller. Any Deny, even one that cannot be understood, overrides it."""
    try:
        text = checked({"Policy": data.decode("utf-8", "replace")}, {}, fifo=False).get("Policy", "{}")
    except ServiceError as error:
        assert error.kind.status < 500
        return
    document = json.loads(text)
    context = context_of(Access(STRANGER, "203.0.113.9", "curl"), OWNER, CALLER.now)
    if _verdict(text, context) is Verdict.ALLOWED:
        assert any(_names_the_stranger(statement) for statement in _statements(document)), text
    for denial in (_DENY_ALL, _DENY_ODDLY, {"Effect": "deny"}):
        stricter = {**document, "Statement": [*_statements(document), denial]}
        assert _verdict(json.dumps(stricter), context) is Verdict.DENIED, text


def _verdict(text: str, context: Any) -> Verdict:
    return Policy.parse(text).verdict(STRANGER, "SendMessage", arn("orders"), context)


def _statements(document: dict[str, Any]) -> list[Any]:
    statements = document.get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _names_the_stranger(statement: dict[str, Any]) -> bool:
    who = json.dumps(statement.get("Principal", ""))
    named = any(f'"{name}"' in who for name in ("*", STRANGER.account, STRANGER.user_id, STRANGER.arn))
    root = f"{STRANGER.account}:root" in who
    return statement.get("Effect") == "Allow" and (named or root or "NotPrincipal" in statement)


# Addresses.


def fuzz_address(data: bytes) -> None:
    """The name of a queue or a host: it is an address or none, or it is refused with an error that says how to write
    it."""
    text = data.decode("utf-8", "replace")
    address = parse_queue_url(text)
    assert address is None or text.endswith(address.name)
    known = Arn.parse(text)
    assert known is None or Arn.parse(str(known)) == known
    engine = _engine()
    assert isinstance(engine.key_of_call({"QueueUrl": text}, CALLER), str)
    assert isinstance(engine.key_of_call({"QueueName": text}, CALLER), str)
    with suppress(BadRequest):
        assert Reference.parse(text, ORIGIN, "us-east-1").name
    if can_be_rebound(text, frozenset()):  # true also for texts that are no host
        assert not (is_loopback(text) and re.fullmatch(r"[\w.:-]+", text)), text

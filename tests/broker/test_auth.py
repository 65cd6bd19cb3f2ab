"""Signature V4: requests signed by botocore and boto3 are accepted, and every way to tamper with one is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_requests import (
    ALICE,
    QUEUE,
    SECRET,
    SERVER,
    TARGET,
    accepted,
    as_received,
    header,
    presigned,
    refused,
    signed,
    signed_at,
    stamp,
    verifier,
    with_authorization,
    with_header,
)

from semel.broker.auth import HttpRequest, Verifier
from semel.sqs.errors import ServiceError

MISMATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
)


# What real clients send.


@pytest.fixture
def captured() -> tuple[Any, list[Any]]:
    """A boto3 client, and the prepared requests that it would have sent."""
    client: Any = boto3.client(
        "sqs",
        region_name="us-east-1",
        endpoint_url=SERVER,
        aws_access_key_id=ALICE,
        aws_secret_access_key=SECRET,
        aws_session_token="a session/token+=",
    )
    requests: list[Any] = []

    class Nothing:
        def stream(self, **_: Any) -> list[bytes]:
            return [b"{}"]

    def keep(request: Any, **_: Any) -> AWSResponse:
        requests.append(request)
        return AWSResponse(request.url, 200, HTTPHeaders(), Nothing())

    client.meta.events.register("before-send.sqs.*", keep)
    return client, requests


def test_what_a_boto3_client_sends_is_accepted(captured: tuple[Any, list[Any]]) -> None:
    client, requests = captured
    client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "5"}, tags={"team": "ü"})
    client.receive_message(QueueUrl=QUEUE, WaitTimeSeconds=20)
    client.list_queues()

    for request in requests:
        received = as_received(request.method, request.url, dict(request.headers.items()), request.body)
        assert b"x-amz-security-token" in header(received, b"authorization")
        assert accepted(received) == ALICE
    assert len(requests) == 3


def test_a_url_that_boto3_presigned_is_accepted_with_the_headers_it_signed(captured: tuple[Any, list[Any]]) -> None:
    client, _ = captured
    url = client.generate_presigned_url("receive_message", Params={"QueueUrl": QUEUE}, ExpiresIn=60)
    names = parse_qs(urlsplit(url).query)["X-Amz-SignedHeaders"][0].split(";")
    values = {"content-type": "application/x-amz-json-1.0", "x-amzn-query-mode": "true"}
    values |= {"host": "127.0.0.1:9324", "x-amz-target": "AmazonSQS.ReceiveMessage"}

    request = as_received("POST", url, {name: values[name] for name in names}, b"")

    assert accepted(request, late=59) == ALICE


def test_what_arrives_on_the_wire_from_boto3_is_accepted() -> None:
    received: list[HttpRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
            received.append(HttpRequest(self.command, self.path, raw, body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        client = boto3.client(
            "sqs",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            aws_access_key_id=ALICE,
            aws_secret_access_key=SECRET,
            config=Config(retries={"max_attempts": 1}),
        )
        client.purge_queue(QueueUrl=f"http://127.0.0.1:{server.server_port}/000000000000/orders")
        thread.join()
        client.close()

    assert accepted(received[0]) == ALICE


@pytest.mark.parametrize(
    ("target", "headers", "body", "signature"),
    [
        ("/", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("/example/..", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("/./", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("//", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("/?Param2=value2&Param1=value1", {}, b"", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
        ("/\u1234", {}, b"", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        (
            "/",
            {"My-Header1": " value1", "My-Header2": ' "a   b   c"'},
            b"",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        ("/", {}, None, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "/",
            {"Content-Type": "application/x-www-form-urlencoded"},
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
)
def test_the_published_test_suite_is_accepted(
    target: str, headers: dict[str, str], body: bytes | None, signature: str
) -> None:
    names = ";".join(sorted([*(name.lower() for name in headers), "host", "x-amz-date"]))
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    sent = {
        "Host": "example.amazonaws.com",
        "X-Amz-Date": "20150830T123600Z",
        "Authorization": authorization,
        **headers,
    }
    method = "GET" if body == b"" else "POST"
    request = HttpRequest(
        method, target, [(name.encode(), value.encode()) for name, value in sent.items()], body or b""
    )

    by = Verifier({"AKIDEXAMPLE": SECRET}, service="service", region="us-east-1")

    assert accepted(request, by=by) == "AKIDEXAMPLE"


def test_the_example_of_the_iam_guide_is_accepted() -> None:
    names = b"content-type;host;x-amz-date"
    signature = b"5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    credential = b"AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request"
    request = HttpRequest(
        "GET",
        "/?Action=ListUsers&Version=2010-05-08",
        [
            (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8"),
            (b"HOST", b"iam.amazonaws.com"),
            (b"x-amz-date", b"20150830T123600Z"),
            (
                b"authorization",
                b"AWS4-HMAC-SHA256 Credential=%b,SignedHeaders=%b,Signature=%b" % (credential, names, signature),
            ),
        ],
        b"",
    )

    assert accepted(request, by=Verifier({"AKIDEXAMPLE": SECRET}, service="iam")) == "AKIDEXAMPLE"


def test_the_older_query_protocol_is_accepted() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}

    assert accepted(signed("POST", QUEUE, form, b"Action=ListQueues&Version=2012-11-05")) == ALICE
    assert accepted(signed("GET", f"{QUEUE}?Action=ReceiveMessage", {}, b"")) == ALICE


def test_an_sdk_that_does_not_sign_its_content_type_is_accepted() -> None:
    bare = signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage"})

    assert accepted(with_header(bare, b"Content-Type", b"application/x-amz-json-1.0")) == ALICE


def test_a_content_type_that_was_signed_cannot_be_changed() -> None:
    refused(with_header(signed(), b"Content-Type", b"application/x-www-form-urlencoded"), "SignatureDoesNotMatch")


def test_each_user_is_told_apart_by_the_access_key() -> None:
    both = Verifier({ALICE: SECRET, "AKIDBOB": "bob's secret"})

    assert accepted(signed(), by=both) == ALICE
    assert accepted(signed(key=("AKIDBOB", "bob's secret", None)), by=both) == "AKIDBOB"
    refused(signed(key=("AKIDBOB", SECRET, None)), "SignatureDoesNotMatch", by=both)


@pytest.mark.parametrize("make", [signed, presigned])
@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1", "us-gov-west-1", "eusc-de-east-1", "mars-north-7"])
def test_a_signature_counts_for_the_region_of_its_scope(make: Callable[..., HttpRequest], region: str) -> None:
    request = make(region=region)
    assert verifier.verify(request, signed_at(request)).region == region


def test_a_header_sent_several_times_is_signed_as_one_joined_by_commas() -> None:
    request = signed(headers={**TARGET, "X-Amz-Meta": "one,two  three"})
    others = [pair for pair in request.headers if pair[0] != b"X-Amz-Meta"]

    request = replace(request, headers=[*others, (b"x-amz-meta", b"one "), (b"X-AMZ-META", b" two three")])

    assert accepted(request) == ALICE


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
segments = st.one_of(texts, st.sampled_from(["", ".", "..", "a b", "%41", "~", "+", "a=b&c", "ü"]))
header_values = st.text(st.sampled_from("ab: ;,=\"'%\t"), max_size=20)


@settings(deadline=None, max_examples=300)
@given(
    path=st.lists(segments, max_size=4),
    query=st.dictionaries(texts, texts, max_size=4),
    values=st.lists(header_values, max_size=3),
    body=st.binary(max_size=100),
    presign=st.booleans(),
    flip=st.tuples(st.integers(min_value=0), st.integers(1, 255)),
)
def test_whatever_botocore_signs_is_accepted_and_no_byte_of_the_body_can_change(
    path: list[str], query: dict[str, str], values: list[str], body: bytes, presign: bool, flip: tuple[int, int]
) -> None:
    url = f"{SERVER}/{quote('/'.join(path))}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
    headers = {f"X-Amz-Meta-{number}": value for number, value in enumerate(values)}
    request = presigned("POST", url) if presign else signed("POST", url, headers, body)

    assert accepted(request) == ALICE

    if request.body:
        position, mask = flip[0] % len(request.body), flip[1]
        changed = bytearray(request.body)
        changed[position] ^= mask
        refused(replace(request, body=bytes(changed)), "SignatureDoesNotMatch")
    refused(replace(request, body=request.body + b" "), "SignatureDoesNotMatch")


# What was changed on the way.


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda r: replace(r, body=r.body.replace(b"10", b"99")), id="the body"),
        pytest.param(lambda r: replace(r, body=b""), id="no body"),
        pytest.param(lambda r: replace(r, method="GET"), id="the method"),
        pytest.param(lambda r: replace(r, target="/000000000000/other"), id="the path"),
        pytest.param(lambda r: replace(r, target="/?Action=PurgeQueue"), id="an added query"),
        pytest.param(lambda r: replace(r, target="/?X-Amz-Signature=0"), id="an added signature"),
        pytest.param(lambda r: replace(r, target="/\udcff", method="\udcff"), id="what no client can send"),
        pytest.param(lambda r: with_header(r, b"X-Amz-Target", b"AmazonSQS.DeleteQueue"), id="a signed header"),
        pytest.param(lambda r: with_header(r, b"Host", b"127.0.0.1:9325"), id="the host"),
        pytest.param(lambda r: with_header(r, b"X-Amz-Target", None), id="a signed header taken away"),
        pytest.param(lambda r: with_header(r, b"X-Amz-Forged", b"1"), id="an added x-amz header"),
        pytest.param(lambda r: with_header(r, b"X-Amz-Security-Token", b"t"), id="an added session token"),
        pytest.param(lambda r: with_header(r, b"X-Amz-Content-Sha256", b"0" * 64), id="an added body hash"),
    ],
)
def test_a_request_changed_after_signing_is_refused(change: Callable[[HttpRequest], HttpRequest]) -> None:
    refused(change(signed()), "SignatureDoesNotMatch")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Action=SendMessage", "Action=PurgeQueue"),
        ("pay%2010", "pay%2011"),
        ("%2B1", "+1"),
        ("Action=", "Extra=1&Action="),
        ("/orders", "/other"),
        ("X-Amz-Expires=60", "X-Amz-Expires=61"),
        ("&X-Amz-Expires=60", ""),
        ("X-Amz-Security-Token=tok", "X-Amz-Security-Token=kot"),
        ("&X-Amz-Security-Token=tok", ""),
    ],
)
def test_a_presigned_url_changed_after_signing_is_refused(old: str, new: str) -> None:
    request = presigned(token="tok")
    assert accepted(request) == ALICE
    assert old in request.target

    refused(replace(request, target=request.target.replace(old, new)), "SignatureDoesNotMatch")


def test_another_way_to_write_the_same_query_is_the_same_query() -> None:
    request = presigned()
    target = request.target.replace("%2010%2B1", "+10%2b1").replace("Action=SendMessage", "%41ction=SendMessage&")

    assert accepted(replace(request, target=target)) == ALICE


def test_a_query_cannot_be_cut_off_by_a_fragment() -> None:
    request = presigned(url=f"{QUEUE}?Action=SendMessage&MessageBody=pay%2010%23000")

    cut = replace(request, target=request.target.replace("%23", "#"))

    refused(cut, "IncompleteSignature", now=signed_at(request))


def test_a_presigned_get_takes_no_body() -> None:
    refused(replace(presigned(), body=b"Action=PurgeQueue"), "SignatureDoesNotMatch")


def test_the_body_must_have_the_hash_that_the_client_sent() -> None:
    hash_of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

    assert accepted(signed(headers={"X-Amz-Content-SHA256": hash_of_nothing}, body=b"")) == ALICE
    text = refused(signed(headers={"X-Amz-Content-SHA256": hash_of_nothing}), "SignatureDoesNotMatch")
    assert text == "The provided 'x-amz-content-sha256' header does not match what was computed."


def test_a_body_that_was_left_unsigned_is_refused() -> None:
    refused(signed(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}), "SignatureDoesNotMatch")


# Who may call, for what, and when.


def test_an_unknown_access_key_is_refused() -> None:
    text = refused(signed(key=("AKIDMALLORY", SECRET, None)), "InvalidClientTokenId")

    assert text == "The security token included in the request is invalid."


def test_a_wrong_secret_is_refused_with_what_should_have_been_signed_but_not_with_the_signature() -> None:
    right = header(signed(), b"authorization").rpartition(b"=")[2].decode()
    request = with_authorization(signed(), lambda a: re.sub(rb"Signature=.*", b"Signature=" + b"0" * 64, a))

    text = refused(request, "SignatureDoesNotMatch")

    assert text.startswith(f"{MISMATCH}\n\nThe Canonical String for this request should have been\n'POST\n/\n\n")
    assert "x-amz-target:AmazonSQS.SendMessage\n" in text
    assert right not in text
    assert refused(signed(key=(ALICE, "guess", None)), "SignatureDoesNotMatch").startswith(MISMATCH)


def test_the_clocks_may_differ_by_a_quarter_of_an_hour_either_way() -> None:
    assert accepted(signed(), late=900) == ALICE
    assert accepted(signed(), late=-900) == ALICE


def test_an_old_signature_is_refused() -> None:
    request = signed()
    at = signed_at(request)

    text = refused(request, "SignatureDoesNotMatch", now=at + 901)

    limit, now = stamp(at + 1), stamp(at + 901)
    assert text == f"Signature expired: {stamp(at)} is now earlier than {limit} ({now} - 15 min.)"


@pytest.mark.parametrize("make", [signed, presigned])
def test_a_signature_from_the_future_is_refused(make: Callable[[], HttpRequest]) -> None:
    request = make()
    at = signed_at(request)

    text = refused(request, "SignatureDoesNotMatch", now=at - 901)

    limit, now = stamp(at - 1), stamp(at - 901)
    assert text == f"Signature not yet current: {stamp(at)} is still later than {limit} ({now} + 15 min.)"


@pytest.mark.parametrize(("expires", "shown"), [(60, "1 min."), (61, "61 sec."), (604_800, "10080 min.")])
def test_a_presigned_url_holds_for_as_long_as_it_says(expires: int, shown: str) -> None:
    request = presigned(expires=expires)
    at = signed_at(request)

    assert accepted(request, late=expires) == ALICE
    text = refused(request, "SignatureDoesNotMatch", now=at + expires + 0.5)
    assert text.startswith(f"Signature expired: {stamp(at)} is now earlier than {stamp(at)} (")
    assert text.endswith(f" - {shown})")


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "1.5", "", "9" * 5_000, "%D9%A3"])
def test_a_presigned_url_must_say_how_long_it_holds_within_the_limits(expires: str) -> None:
    request = presigned()
    target = request.target.replace("X-Amz-Expires=60", f"X-Amz-Expires={expires}")

    text = refused(replace(request, target=target), "IncompleteSignature")

    assert text.startswith("X-Amz-Expires must be a number from 1 to 604800")


@pytest.mark.parametrize("make", [signed, presigned])
def test_a_signature_for_no_region_or_another_service_is_refused(make: Callable[..., HttpRequest]) -> None:
    for region in ("mars", "eu-west-1x", "EU-WEST-1", "eu_west_1"):
        text = refused(make(region=region), "SignatureDoesNotMatch")
        assert text == f"Credential should be scoped to a valid region, not '{region}'."

    text = refused(make(service="sns"), "SignatureDoesNotMatch")
    assert text == "Credential should be scoped to correct service: 'sqs'."


def test_a_scope_that_does_not_fit_the_request_is_refused_with_all_that_is_wrong() -> None:
    request = signed()
    today = header(request, b"x-amz-date").decode()
    scope = f"{today[:8]}/us-east-1/sqs/aws4_request".encode()

    text = refused(
        with_authorization(request, lambda a: a.replace(scope, b"20010101/us-east-1/sqs/aws5")), "SignatureDoesNotMatch"
    )

    assert text == (
        "Credential should be scoped with a valid terminator: 'aws4_request', not 'aws5'. "
        "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
        f"'20010101' != '{today[:8]}', from '{today}'."
    )


# What is not a signature at all.


@pytest.mark.parametrize("value", [None, b"", b"Bearer abc", b"Basic YTpi", b"AWS AKID:c2ln", b"\xff\xfe", b"=" * 100])
def test_a_request_without_a_signature_is_refused(value: bytes | None) -> None:
    text = refused(with_header(signed(), b"Authorization", value), "MissingAuthenticationToken")

    assert text == "Request is missing Authentication Token"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (rb"Credential=[^,]+, ", "Authorization header requires 'Credential' parameter."),
        (rb", Signature=.*", "Authorization header requires 'Signature' parameter."),
        (rb"SignedHeaders=[^,]+, ", "Authorization header requires 'SignedHeaders' parameter."),
        (
            rb" .*",
            "Authorization header requires 'Credential' parameter. "
            "Authorization header requires 'Signature' parameter. "
            "Authorization header requires 'SignedHeaders' parameter.",
        ),
    ],
)
def test_a_missing_part_of_the_authorization_is_named(part: bytes, text: str) -> None:
    request = with_authorization(signed(), lambda a: re.sub(part, b"", a))

    assert refused(request, "IncompleteSignature") == text


@pytest.mark.parametrize("name", ["Credential", "SignedHeaders", "Signature", "Date"])
def test_a_missing_part_of_a_presigned_url_is_named(name: str) -> None:
    request = presigned()
    now = signed_at(request)

    request = replace(request, target=re.sub(rf"X-Amz-{name}=[^&]*&?", "", request.target))

    assert refused(request, "IncompleteSignature", now=now) == (
        f"AWS query-string parameters must include 'X-Amz-{name}'. Re-examine the query-string parameters."
    )


def test_a_presigned_url_without_its_algorithm_is_not_signed() -> None:
    request = presigned()
    target = request.target.replace("X-Amz-Algorithm=AWS4-HMAC-SHA256&", "")

    refused(replace(request, target=target), "MissingAuthenticationToken")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            b"AWS4-HMAC-SHA256",
            b"AWS4-HMAC-SHA1",
            "Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA1' (only AWS4-HMAC-SHA256",
        ),
        (
            b"/sqs/",
            b"/",
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term,",
        ),
        (b"Signature=", b"Signature", "'Signature"),
        (b"Signature=", b"Signature=0, Signature=", "'Signature="),
        (b"=host;", b"=host;host;", "SignedHeaders must not name a header more than once."),
    ],
)
def test_an_authorization_of_the_wrong_form_is_refused(old: bytes, new: bytes, text: str) -> None:
    request = with_authorization(signed(headers={}), lambda a: a.replace(old, new))

    assert refused(request, "IncompleteSignature").startswith(text)


@pytest.mark.parametrize("signature", [b"0", b"zz" * 32, b"\xff" * 64, b"AAAA+/==", b"0" * 63, b"0" * 65])
def test_a_garbled_signature_is_refused(signature: bytes) -> None:
    request = with_authorization(signed(), lambda a: re.sub(rb"Signature=.*", b"Signature=" + signature, a))

    refused(request, "SignatureDoesNotMatch")


@pytest.mark.parametrize(
    "date", [b"201", b"Sun, 23 Nov 2014 04:07:43 GMT", b"2014-11-23T04:07:43Z", b"20149923T040743Z"]
)
def test_a_date_in_another_form_is_refused(date: bytes) -> None:
    text = refused(with_header(signed(), b"X-Amz-Date", date), "IncompleteSignature", now=0)

    assert text.startswith(f"Date must be in ISO-8601 'basic format'. Got '{date.decode()}'.")


class DatedByDate(SigV4Auth):
    def _set_necessary_date_headers(self, request: AWSRequest) -> None:
        request.headers["Date"] = request.context["timestamp"]


def test_the_date_header_will_do_if_it_has_the_right_form() -> None:
    request = AWSRequest("POST", f"{SERVER}/")
    DatedByDate(BotoCredentials(ALICE, SECRET), "sqs", "us-east-1").add_auth(request)
    now = datetime.strptime(request.headers["Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()

    received = as_received("POST", f"{SERVER}/", dict(request.headers.items()), b"")

    assert verifier.verify(received, now).access_key == ALICE
    text = refused(signed(headers={"Date": "filled in by botocore"}), "IncompleteSignature", now=now)
    assert text.startswith("Date must be in ISO-8601 'basic format'. Got '")


def test_a_request_without_a_date_is_refused() -> None:
    text = refused(with_header(signed(), b"X-Amz-Date", None), "IncompleteSignature", now=0)

    assert text == "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."


def test_a_host_that_is_not_signed_is_refused() -> None:
    request = with_authorization(signed(), lambda a: a.replace(b"host;", b""))

    text = refused(request, "SignatureDoesNotMatch")

    assert text == "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."


@pytest.mark.parametrize("name", ["x-amz-date", "x-amz-target"])
def test_an_x_amz_header_that_is_not_signed_is_refused(name: str) -> None:
    request = with_authorization(signed(), lambda a: a.replace(f";{name}".encode(), b""))

    text = refused(request, "SignatureDoesNotMatch")

    assert text == f"'{name}' must be a 'SignedHeader' in the AWS Authorization."


def test_two_signatures_in_one_request_are_refused() -> None:
    request = with_header(presigned(), b"Authorization", header(signed(), b"authorization"))

    text = refused(request, "SignatureDoesNotMatch")

    assert text == "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header."


@pytest.mark.parametrize("name", [b"Authorization", b"HOST", b"x-amz-date", b"X-Amz-Target", b"content-type"])
def test_a_header_that_decides_may_come_once_only(name: bytes) -> None:
    request = signed()

    request = replace(request, headers=[*request.headers, (name, header(request, name.lower()))])

    refused(request, "IncompleteSignature")


@pytest.mark.parametrize("name", ["Credential", "Date", "Expires", "Signature", "Security-Token"])
def test_a_parameter_that_decides_may_come_once_only(name: str) -> None:
    request = presigned(token="tok")
    again = re.findall(rf"X-Amz-{name}=[^&]*", request.target)[0]

    text = refused(replace(request, target=f"{request.target}&{again}"), "IncompleteSignature")

    assert text == f"AWS query-string parameters must not include 'X-Amz-{name}' more than once."


@pytest.mark.parametrize(
    ("code", "authorization"),
    [
        ("MissingAuthenticationToken", b"A" * 1_000_000),
        ("IncompleteSignature", b"AWS4-HMAC-SHA256 " + b"A" * 1_000_000),
        ("IncompleteSignature", b"AWS4-HMAC-SHA256 " + b",".join(b"a%d=b" % number for number in range(100_000))),
        (
            "IncompleteSignature",
            b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, Signature=f, SignedHeaders=host" + b";x-amz-target" * 100_000,
        ),
    ],
)
def test_a_huge_header_is_refused_with_a_short_answer(code: str, authorization: bytes) -> None:
    assert len(refused(with_header(signed(), b"Authorization", authorization), code)) < 400


def test_a_mismatch_of_a_huge_request_is_not_explained() -> None:
    request = signed("GET", f"{QUEUE}?MessageBody={'x' * 10_000}", {}, b"")

    assert refused(replace(request, method="POST"), "SignatureDoesNotMatch") == MISMATCH


@settings(deadline=None)
@given(authorization=st.binary(max_size=200), target=st.text(max_size=40), name=st.binary(max_size=10))
def test_garbage_is_refused_and_never_a_crash(authorization: bytes, target: str, name: bytes) -> None:
    good = signed()
    garbage = (name, authorization)
    with pytest.raises(ServiceError):
        verifier.verify(with_header(good, b"Authorization", b"AWS4-HMAC-SHA256 " + authorization), signed_at(good))
    for tried in (replace(good, target=target), replace(presigned(), target="/?X-Amz-Algorithm&" + target)):
        try:
            verifier.verify(replace(tried, headers=[*tried.headers, garbage]), signed_at(good))
        except ServiceError:
            continue
        # Only what was signed, written in another way.
        assert set(target) <= set("/.?&")


def test_signing_keys_are_kept_but_not_without_bound() -> None:
    anywhere = Verifier({ALICE: SECRET})

    for number in range(200):
        region = f"mars-{chr(97 + number // 20)}-{number % 20}"
        accepted(signed(region=region), by=anywhere)
        accepted(signed(region=region), by=anywhere)

    kept = anywhere._signing_key.cache_info()
    assert (kept.hits, kept.currsize) == (200, 128)

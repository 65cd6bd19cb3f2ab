"""`semel serve --credentials`: who is accepted and who is refused, with the signatures of real clients."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from serve_process import Answer, Serve, Starter, request

from semel.broker.auth import user_id_of

KEY, SECRET = "AKIAEXAMPLE", "wJalrXUtnFEMI/K7MDENG"


@pytest.fixture
def guarded(serve: Starter, tmp_path: Path) -> Serve:
    """A broker that checks signatures."""
    (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    return serve("--ephemeral", "--credentials", "credentials")


def _client(broker: Serve, key: str = KEY, secret: str = SECRET) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=broker.url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_boto3_with_the_right_secret_is_served(guarded: Serve) -> None:
    client = _client(guarded)
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="größer & <kleiner>", MessageAttributes=_attribute("ü"))
    (message,) = client.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"]
    assert message["Attributes"]["SenderId"] == user_id_of("000000000000", "default")
    client.close()


def _attribute(text: str) -> dict[str, Any]:
    return {"colour": {"DataType": "String", "StringValue": text}}


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [(KEY, "another secret", "SignatureDoesNotMatch"), ("AKIAUNKNOWN", SECRET, "InvalidClientTokenId")],
)
def test_boto3_with_the_wrong_key_pair_is_refused(guarded: Serve, key: str, secret: str, code: str) -> None:
    client = _client(guarded, key, secret)
    with pytest.raises(ClientError) as refused:
        client.list_queues()
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    client.close()


def test_an_unsigned_call_is_refused_also_by_the_admin_interface(guarded: Serve) -> None:
    assert guarded.call("ListQueues").status == 403
    with guarded.connect() as connection:
        for target in ("/_semel/queues", "/metrics"):
            connection.send(request(target, host=guarded.url, method="GET"))
            assert connection.answer().status == 403


def _signed(broker: Serve, body: bytes, at: datetime, *, sent: bytes | None = None) -> Answer:
    """ListQueues signed by hand for the time `at`; `sent` is a body other than the one that was signed."""
    host, stamp = broker.url.removeprefix("http://"), at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-date": stamp, "x-amz-target": "AmazonSQS.ListQueues"}
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join(["POST", "/", "", *lines, "", names, sha256(body).hexdigest()])
    scope = f"{stamp[:8]}/us-east-1/sqs/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = digest(key, part.encode(), "sha256")
    signature = digest(key, text.encode(), "sha256").hex()
    authorization = (
        f"Authorization: AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    signed = [authorization, *(f"{name}: {value}" for name, value in headers.items() if name != "host")]
    with broker.connect() as connection:
        connection.send(request("/", body if sent is None else sent, host=host, headers=signed))
        return connection.answer()


def test_a_signature_holds_for_a_quarter_of_an_hour_either_way(guarded: Serve) -> None:
    now = datetime.now(UTC)
    for minutes in (-14, 0, 14):
        assert _signed(guarded, b"{}", now + timedelta(minutes=minutes)).status == 200
    for minutes in (-16, 16):
        refused = _signed(guarded, b"{}", now + timedelta(minutes=minutes))
        assert refused.status == 403
        assert refused.headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"


def test_an_altered_body_is_refused(guarded: Serve) -> None:
    refused = _signed(guarded, b"{}", datetime.now(UTC), sent=b'{"QueueNamePrefix": "a"}')
    assert (refused.status, refused.headers["x-amzn-query-error"]) == (403, "SignatureDoesNotMatch;Sender")


def _presigned(url: str, query: str, seconds: int = 60) -> str:
    presigned = AWSRequest("GET", f"{url}?{query}")
    SigV4QueryAuth(Credentials(KEY, SECRET), "sqs", "us-east-1", expires=seconds).add_auth(presigned)
    return str(presigned.url)


def test_a_presigned_url_works_in_anything_that_can_get_a_page(guarded: Serve) -> None:
    client = _client(guarded)
    queue = client.create_queue(QueueName="orders")["QueueUrl"]
    with urllib.request.urlopen(
        _presigned(queue, "Action=SendMessage&MessageBody=a%20b%26c&Version=2012-11-05")
    ) as sent:
        assert b"<MessageId>" in sent.read()
    with urllib.request.urlopen(_presigned(queue, "Action=ReceiveMessage&MaxNumberOfMessages=1")) as received:
        assert b"<Body>a b&amp;c</Body>" in received.read()
    client.close()


def test_a_presigned_url_cannot_be_turned_to_another_use(guarded: Serve) -> None:
    good = _presigned(f"{guarded.url}/", "Action=ListQueues")
    for bad in (good.replace("ListQueues", "CreateQueue") + "&QueueName=x", good + "&QueueNamePrefix=x", good[:-1]):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(bad)
        with refused.value as answer:
            assert answer.code == 403
            assert b"<Code>SignatureDoesNotMatch</Code>" in answer.read()

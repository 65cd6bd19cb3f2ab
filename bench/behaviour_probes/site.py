"""The server that is probed: how it is started and called, and how the result of a probe is decided."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from broker_bench.targets import DATA, START_LIMIT, Call, Server, Target, Unavailable

REGION = "us-east-1"
MISSING = "AWS.SimpleQueueService.NonExistentQueue"
PROMPT_MS = 40.0  # a poll that is answered within this was woken by the send
RETENTION = 60  # seconds: the shortest that SQS allows
ALLOW = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}]}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    verdict: Literal["yes", "partly", "no"]
    reason: str
    figure: str = ""


Run = Callable[["Site"], Result]
PROBES: dict[str, Run] = {}


def probe(title: str) -> Callable[[Run], Run]:
    return lambda run: PROBES.setdefault(title, run)


def judged(checks: Mapping[str, bool], *, strict: bool = False, figure: str = "") -> Result:
    """Yes if all checks hold. If only some hold: partly, or no if `strict`, where half a promise is worth nothing."""
    failed = [text for text, holds in checks.items() if not holds]
    if not failed:
        return Result("yes", "; ".join(checks), figure)
    return Result("no" if strict or len(failed) == len(checks) else "partly", "not so: " + "; ".join(failed), figure)


class Probed(Server):
    """A server that may require signatures, and that can be killed."""

    def _first_answer(self, began: float, call: Call) -> dict[str, Any]:  # noqa: ARG002
        while self.alive and time.perf_counter() - began < START_LIMIT:
            with contextlib.suppress(OSError):
                fetch(f"http://{self.address[0]}:{self.address[1]}/")
                return {}
            time.sleep(0.02)
        raise Unavailable(f"{self.target.label} did not become ready: {self.last_words()}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Probed:
        return self


class Variant(Target):
    """A target with additional options, and with a folder that outlives its server."""

    def __init__(self, of: Target, folder: Path, options: Sequence[str] = (), **environment: str) -> None:
        self.name, self.label, self.says_ready = of.name, of.label, of.says_ready
        self._of, self._folder, self._options, self._environment = of, folder, options, environment

    def prepare(self, report: Callable[[str], None]) -> str:
        return self._of.prepare(report)

    def command(self, port: int, folder: Path) -> list[str]:  # noqa: ARG002
        return [*self._of.command(port, self._folder), *self._options]

    def environment(self, port: int, folder: Path) -> dict[str, str]:  # noqa: ARG002
        return {**self._of.environment(port, self._folder), **self._environment}


class Site:
    """A running server, with short methods for the calls that the probes make."""

    def __init__(self, server: Probed, key: tuple[str, str] = ("test", "test")) -> None:
        self.server, self.key = server, key
        self.target, self.name = server.target, server.target.name
        self.url = f"http://{server.address[0]}:{server.address[1]}"
        self.sqs = self.client("sqs")
        self.made = 0
        self.planted = "", 0.0

    def client(self, service: str, region: str = REGION, secret: str = "", **settings: Any) -> Any:
        config = Config(retries={"total_max_attempts": 1}, read_timeout=15, max_pool_connections=16, **settings)
        session = boto3.session.Session(self.key[0], secret or self.key[1], region_name=region)
        return session.client(service, endpoint_url=self.url, config=config)  # type: ignore[call-overload]

    def queue(self, fifo: bool = False, **attributes: str) -> str:
        self.made += 1
        name = f"probe-{self.made}" + (".fifo" if fifo else "")
        settings = attributes | ({"FifoQueue": "true"} if fifo else {})
        return str(self.sqs.create_queue(QueueName=name, Attributes=settings)["QueueUrl"])

    def send(self, queue: str, body: str = "hello", **more: Any) -> Message:
        answer: Message = self.sqs.send_message(QueueUrl=queue, MessageBody=body, **more)
        return answer

    def push(self, queue: str, body: str, group: str = "g") -> Message:
        """A send to a FIFO queue."""
        return self.send(queue, body, MessageGroupId=group, MessageDeduplicationId=body)

    def fill(self, queue: str, count: int, **more: str) -> None:
        for _ in range(0, count, 10):
            entries = [{"Id": str(number), "MessageBody": "hello"} | more for number in range(10)]
            self.sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    def receive(self, queue: str, most: int = 1, **more: Any) -> list[Message]:
        wanted = {"MaxNumberOfMessages": most, "MessageSystemAttributeNames": ["All"], **more}
        messages: list[Message] = self.sqs.receive_message(QueueUrl=queue, **wanted).get("Messages", [])
        return messages

    def delete(self, queue: str, message: Message) -> None:
        self.sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])

    def attribute(self, queue: str, name: str) -> str:
        return str(self.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])["Attributes"][name])

    def count(self, queue: str) -> int:
        return int(self.attribute(queue, "ApproximateNumberOfMessages"))

    def arn(self, queue: str) -> str:
        return self.attribute(queue, "QueueArn")

    def query(self, action: str, **parameters: str) -> ElementTree.Element:
        """A call in the older Query protocol: the request is a form, the answer XML."""
        form = urllib.parse.urlencode({"Action": action, "Version": "2012-11-05", **parameters}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return ElementTree.fromstring(self.signed("POST", "/", form, kind)[1])

    def signed(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Send a signed request that boto3 would not send; returns status and text of the answer."""
        request = AWSRequest(method, self.url + target, dict(headers or {}), body)
        SigV4Auth(Credentials(*self.key), "sqs", REGION).add_auth(request)
        return answered(self.url + target, body, method, **dict(request.headers.items()))

    def path(self, queue: str) -> str:
        return urllib.parse.urlsplit(queue).path


def answered(url: str, body: bytes | None = None, method: str | None = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=15) as answer:
            return answer.status, str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def fetch(url: str, body: bytes | None = None, method: str | None = None, **headers: str) -> str:
    """The text of an answer, whatever its status."""
    return answered(url, body, method, **headers)[1]


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The error code with which a call is refused; empty if it is accepted."""
    try:
        call(*arguments, **named)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


def names(messages: Sequence[Message], key: str = "MessageId") -> list[str]:
    return [message[key] for message in messages]


def last(url: str) -> str:
    return url.rpartition("/")[2]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="behaviour-", dir=DATA, ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextlib.contextmanager
def secured(site: Site) -> Iterator[Site]:
    """The same server once more, which checks signatures; on the peers, those of an IAM user who may use SQS."""
    with folder() as place:
        file = place / "credentials"
        file.write_text("[test]\naws_access_key_id = test\naws_secret_access_key = test\n")
        options = ["--credentials", str(file)] if site.name == "semel" else []
        with Probed(Variant(site.target, place, options, AUTH="true")) as server:  # AUTH is MiniStack's
            safe = Site(server)
            if site.name != "semel":
                iam = safe.client("iam")
                iam.create_user(UserName="probe")
                iam.put_user_policy(UserName="probe", PolicyName="all", PolicyDocument=json.dumps(ALLOW))
                made = iam.create_access_key(UserName="probe")["AccessKey"]
                if site.name == "moto":
                    fetch(safe.url + "/moto-api/reset-auth", b"0", **{"Content-Type": "text/plain"})
                safe = Site(server, (made["AccessKeyId"], made["SecretAccessKey"]))
            yield safe

"""Clients that people use, as they come from their makers.

AWS CLI, boto3's resources, an older boto3, the AWS SDK for JavaScript with sqs-consumer, kombu and Celery.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
import query_client
from serve_process import ACCOUNT, Serve

_HERE: Final = Path(__file__).parent
# The last boto3 that speaks the Query protocol and knows Python 3.12; all of it pinned, so that it stays as it is.
_OLD_BOTO3: Final = (
    "boto3==1.33.13",
    "botocore==1.33.13",
    "s3transfer==0.8.2",
    "jmespath==1.0.1",
    "python-dateutil==2.9.0.post0",
    "six==1.16.0",
    "urllib3==2.0.7",
)
# Pinned as well, so that a new version is met when somebody chooses it and not when it comes out.
_CELERY: Final = (
    "celery==5.7.0",
    "kombu==5.7.0",
    "amqp==5.4.2",
    "billiard==4.3.2",
    "boto3==1.44.3",
    "botocore==1.44.3",
    "click==8.5.1",
    "click-didyoumean==0.3.1",
    "click-plugins==1.1.1.2",
    "click-repl==0.4.1",
    "jmespath==1.1.0",
    "prompt-toolkit==3.0.53",
    "pycurl==7.49.0",
    "python-dateutil==2.9.0.post0",
    "s3transfer==0.19.3",
    "six==1.17.0",
    "typing-extensions==4.16.0",
    "tzlocal==5.4.5",
    "urllib3==2.8.0",
    "vine==5.1.0",
    "wcwidth==0.9.4",
)
_NO_NETWORK: Final = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNREFUSED|ENETUNREACH|ConnectTimeout|NewConnectionError|NameResolutionError"
    r"|connection broken|Temporary failure in name resolution"
)
_INSTALL_SECONDS: Final = 240


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    broker = Serve(tmp_path_factory.mktemp("clients"), "--port", "0", "--no-cooldowns")
    try:
        yield broker
        ended = broker.stop()
        assert (ended.code, ended.output, ended.errors) == (0, "", "")
    finally:
        broker.kill_if_running()


def install(what: str, command: list[str], folder: Path) -> None:
    """Runs an installer; without a network the tests that need it are skipped, any other failure is one."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"NOT TESTED: {what}; it could not be installed within {_INSTALL_SECONDS} seconds")
    if done.returncode:
        said = done.stdout + done.stderr
        if _NO_NETWORK.search(said):
            pytest.skip(f"NOT TESTED: {what}; it must be installed once, and there is no network")
        pytest.fail(f"{what} could not be installed: {said}")


def packages(name: str, what: str, requirements: Sequence[str]) -> Path:
    """A folder with packages, filled once: inside the virtual environment, under a name that says what is in it."""
    version = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"{name}-{version}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
        install(what, [sys.executable, "-m", "pip", "install", *options, *requirements], folder)
        (folder / "complete").touch()
    return folder


def play(program: str, scenario: str, broker: Serve, folder: Path) -> None:
    """Runs one scenario of a program beside this file, on the packages in a folder."""
    done = subprocess.run(
        [sys.executable, str(_HERE / program), broker.url, scenario],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr


# The AWS CLI.


class Cli:
    """`aws sqs`, in an environment without anybody's settings."""

    def __init__(self, broker: Serve, home: Path) -> None:
        self._command = [str(Path(sys.executable).with_name("aws")), "--endpoint-url", broker.url, "sqs"]
        keep = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._environment = keep | {
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_DEFAULT_OUTPUT": "json",
            "AWS_PAGER": "",
        }

    def run(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, command, *options], env=self._environment, capture_output=True, text=True, timeout=60
        )

    def __call__(self, command: str, *options: str) -> dict[str, Any]:
        done = self.run(command, *options)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return answer


@pytest.fixture(scope="module")
def aws(broker: Serve, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(broker, tmp_path_factory.mktemp("home"))


def test_the_aws_cli_sends_receives_and_deletes_a_message_with_attributes(broker: Serve, aws: Cli) -> None:
    url = aws("create-queue", "--queue-name", "cli", "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    assert url == f"{broker.url}/{ACCOUNT}/cli"
    attributes = {"colour": {"DataType": "String", "StringValue": "grün"}}
    at = ("--queue-url", url)
    sent = aws("send-message", *at, "--message-body", "a b", "--message-attributes", json.dumps(attributes))
    everything = ("--attribute-names", "All", "--message-attribute-names", "All")
    (message,) = aws("receive-message", *at, *everything)["Messages"]
    assert (message["Body"], message["MessageId"]) == ("a b", sent["MessageId"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert aws("delete-message", *at, "--receipt-handle", message["ReceiptHandle"]) == {}
    assert broker.peek("cli") == []


def test_the_aws_cli_takes_the_queue_urls_of_tutorials_as_they_stand(aws: Cli) -> None:
    aws("create-queue", "--queue-name", "my-queue")
    at = ["--queue-url", "https://sqs.us-east-1.amazonaws.com/123456789012/my-queue"]
    aws("send-message", *at, "--message-body", "hello")
    (message,) = aws("receive-message", *at)["Messages"]
    assert message["Body"] == "hello"
    aws("delete-message", *at, "--receipt-handle", message["ReceiptHandle"])


@pytest.mark.slow
def test_the_aws_cli_sends_and_deletes_batches(broker: Serve, aws: Cli) -> None:
    broker.create("cli-batch")
    at = ("--queue-url", f"{broker.url}/{ACCOUNT}/cli-batch")
    entries = json.dumps([{"Id": str(number), "MessageBody": f"body {number}"} for number in range(10)])
    assert len(aws("send-message-batch", *at, "--entries", entries)["Successful"]) == 10
    messages = aws("receive-message", *at, "--max-number-of-messages", "10")["Messages"]
    handles = json.dumps([{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)])
    assert len(aws("delete-message-batch", *at, "--entries", handles)["Successful"]) == 10
    assert broker.peek("cli-batch") == []


@pytest.mark.slow
def test_the_aws_cli_redrives_a_dead_letter_queue(broker: Serve, aws: Cli) -> None:
    broker.create("cli-dead")
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:cli-dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    aws("create-queue", "--queue-name", "cli-work", "--attributes", json.dumps({"RedrivePolicy": policy}))
    broker.call("SendMessage", "cli-work", MessageBody="x")
    for _ in range(2):
        broker.call("ReceiveMessage", "cli-work", VisibilityTimeout=0)
    assert len(broker.peek("cli-dead")) == 1
    assert aws("start-message-move-task", "--source-arn", arn)["TaskHandle"]
    (task,) = aws("list-message-move-tasks", "--source-arn", arn)["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert len(broker.peek("cli-work")) == 1


@pytest.mark.slow
def test_the_aws_cli_pages_through_queues(broker: Serve, aws: Cli) -> None:
    names = [f"cli-page-{number}" for number in range(5)]
    for name in names:
        broker.create(name)
    options = ("--queue-name-prefix", "cli-page-", "--page-size", "2")
    assert [url.rpartition("/")[2] for url in aws("list-queues", *options)["QueueUrls"]] == names
    first = aws("list-queues", *options, "--max-items", "3")
    rest = aws("list-queues", *options, "--starting-token", first["NextToken"])
    assert [url.rpartition("/")[2] for url in first["QueueUrls"] + rest["QueueUrls"]] == names


@pytest.mark.slow
def test_the_aws_cli_tags_a_queue(broker: Serve, aws: Cli) -> None:
    broker.create("cli-tags")
    at = ("--queue-url", f"{broker.url}/{ACCOUNT}/cli-tags")
    aws("tag-queue", *at, "--tags", "team=blue,stage=test")
    aws("untag-queue", *at, "--tag-keys", "stage")
    assert aws("list-queue-tags", *at)["Tags"] == {"team": "blue"}


@pytest.mark.slow
def test_the_aws_cli_fails_with_the_code_and_text_of_a_refusal(broker: Serve, aws: Cli) -> None:
    """Version 1, which PyPI has, ends with 255 where version 2 ends with 254."""
    refused = aws.run("get-queue-url", "--queue-name", "cli-nowhere")
    assert refused.returncode in (254, 255)
    assert refused.stdout == ""
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in refused.stderr
    assert "The specified queue does not exist." in refused.stderr
    broker.create("cli-errors")
    at = ("--queue-url", f"{broker.url}/{ACCOUNT}/cli-errors")
    refused = aws.run("delete-message", *at, "--receipt-handle", "garbage")
    assert refused.returncode in (254, 255)
    assert "(ReceiptHandleIsInvalid)" in refused.stderr


# boto3's resources.


@pytest.fixture(scope="module")
def resource(broker: Serve) -> Iterator[Any]:
    made: Any = boto3.resource(
        "sqs",
        endpoint_url=broker.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    yield made
    made.meta.client.close()


def test_a_boto3_queue_object_sends_receives_hides_and_deletes(resource: Any) -> None:
    queue = resource.create_queue(QueueName="objects", Attributes={"VisibilityTimeout": "60"})
    sent = queue.send_message(MessageBody="one", MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}})
    (message,) = queue.receive_messages(MessageAttributeNames=["All"], AttributeNames=["All"])
    assert (message.body, message.message_id) == ("one", sent["MessageId"])
    assert message.message_attributes["n"]["StringValue"] == "1"
    assert message.attributes["ApproximateReceiveCount"] == "1"
    message.change_visibility(VisibilityTimeout=0)
    (message,) = queue.receive_messages()
    message.delete()
    queue.reload()
    assert queue.attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert queue.attributes["VisibilityTimeout"] == "60"


def test_a_boto3_queue_object_works_in_batches(resource: Any) -> None:
    queue = resource.create_queue(QueueName="object-batches")
    queue.send_messages(Entries=[{"Id": str(number), "MessageBody": str(number)} for number in range(10)])
    messages = queue.receive_messages(MaxNumberOfMessages=10)
    answer = queue.delete_messages(
        Entries=[{"Id": str(n), "ReceiptHandle": message.receipt_handle} for n, message in enumerate(messages)]
    )
    assert len(answer["Successful"]) == 10
    assert queue.receive_messages() == []


def test_boto3_finds_queue_objects_by_name_prefix_and_dead_letter_queue(resource: Any) -> None:
    dead = resource.create_queue(QueueName="object-dead")
    policy = json.dumps({"deadLetterTargetArn": dead.attributes["QueueArn"], "maxReceiveCount": 3})
    work = resource.create_queue(QueueName="object-work", Attributes={"RedrivePolicy": policy})
    assert resource.get_queue_by_name(QueueName="object-work") == work
    assert list(resource.queues.filter(QueueNamePrefix="object-w")) == [work]
    assert list(dead.dead_letter_source_queues.all()) == [work]
    work.delete()
    with pytest.raises(resource.meta.client.exceptions.QueueDoesNotExist):
        resource.get_queue_by_name(QueueName="object-work")


# An older boto3, which speaks the Query protocol.


@pytest.fixture(scope="module")
def old_boto3() -> Path:
    return packages("old-boto3", "a boto3 of 2023", _OLD_BOTO3)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in query_client.SCENARIOS])
def test_a_boto3_that_speaks_query_gets_what_it_expects(broker: Serve, old_boto3: Path, scenario: str) -> None:
    play("query_client.py", scenario, broker, old_boto3)


# kombu and Celery.


@pytest.fixture(scope="module")
def celery() -> Path:
    return packages("celery", "Celery and kombu", _CELERY)


@pytest.mark.slow
def test_a_kombu_queue_is_created_filled_counted_emptied_and_purged(broker: Serve, celery: Path) -> None:
    play("celery_client.py", "kombu_simple_queue", broker, celery)
    assert broker.peek("kombu-simple") == []


@pytest.mark.slow
def test_what_a_kombu_consumer_requeues_comes_again_and_what_it_rejects_does_not(broker: Serve, celery: Path) -> None:
    play("celery_client.py", "kombu_requeue", broker, celery)
    assert broker.peek("kombu-requeue") == []


@pytest.mark.slow
def test_kombu_gets_a_fifo_queue_in_order(broker: Serve, celery: Path) -> None:
    play("celery_client.py", "kombu_fifo", broker, celery)
    assert broker.peek("kombu.fifo") == []


@pytest.mark.slow
def test_a_celery_worker_runs_each_task_once(broker: Serve, celery: Path) -> None:
    play("celery_client.py", "celery_runs_each_task_once", broker, celery)
    assert broker.peek("celery-once") == []


@pytest.mark.slow
def test_a_celery_worker_retries_a_task_and_runs_one_later(broker: Serve, celery: Path) -> None:
    play("celery_client.py", "celery_retries_and_delays", broker, celery)
    assert broker.peek("celery-retry") == []


# Node: the AWS SDK v3 and sqs-consumer.


@pytest.fixture(scope="module")
def node(broker: Serve) -> dict[str, Any]:
    """What node/consumer.mjs saw."""
    folder, node, npm = _HERE / "node", shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT TESTED: the AWS SDK for JavaScript; there is no node or no npm on this machine")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < 20:
        pytest.skip(f"NOT TESTED: the AWS SDK for JavaScript; it needs node 20 or newer, and this is {version}")
    lock, stamp = (folder / "package-lock.json").read_text(), folder / "node_modules" / ".installed-lock"
    if not stamp.exists() or stamp.read_text() != lock:
        options = ["--no-audit", "--no-fund", "--ignore-scripts"]
        install("the AWS SDK for JavaScript", [npm, "ci", *options], folder)
        stamp.write_text(lock)
    done = subprocess.run([node, "consumer.mjs", broker.url], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_sqs_consumer_handles_100_messages_exactly_once_each(broker: Serve, node: dict[str, Any]) -> None:
    """The SDK checks the MD5 of every body that it sends and receives, and throws if one is wrong."""
    messages = node["standard"]
    assert sorted(messages["numbers"]) == list(range(100)), messages
    assert sorted(messages["bodies"]) == sorted(f"message {number} – größer\n" for number in range(100))
    assert sorted(messages["bytes"]) == [[0, 255, number] for number in range(100)]
    assert broker.peek("js-standard") == []


@pytest.mark.slow
def test_sqs_consumer_gets_a_fifo_queue_in_order_and_without_duplicates(node: dict[str, Any]) -> None:
    messages = node["fifo"]
    assert sorted(body for body in messages["bodies"] if body[0] == "b") == ["b1", "b2"], messages
    assert [body for body in messages["bodies"] if body[0] == "a"] == ["a1", "a2", "a3"]
    assert messages["groups"] == [body[0] for body in messages["bodies"]]
    assert messages["ids"][3] == messages["ids"][0]
    assert messages["sequence"][3] == messages["sequence"][0]


@pytest.mark.slow
def test_a_message_that_an_sqs_consumer_fails_on_ends_in_the_dead_letter_queue(node: dict[str, Any]) -> None:
    assert node["deadLetters"] == {
        "tries": ["1", "2", "3"],
        "good": 1,
        "left": 0,
        "deadLetter": {"body": "bad", "source": f"arn:aws:sqs:us-east-1:{ACCOUNT}:js-work"},
    }


@pytest.mark.slow
def test_the_aws_sdk_for_javascript_reaches_a_queue_by_its_url_alone(node: dict[str, Any]) -> None:
    assert node["queueUrlAsEndpoint"] == 1


@pytest.mark.slow
def test_the_aws_sdk_for_javascript_raises_the_right_errors(node: dict[str, Any]) -> None:
    missing, invalid = node["errors"]["missing"], node["errors"]["invalid"]
    assert (missing["known"], missing["status"]) == (True, 400)
    assert missing["name"] in ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
    assert missing["message"] == "The specified queue does not exist."
    assert invalid["status"] == 400
    assert invalid["name"].startswith("InvalidParameterValue")
    assert "Must be between 1 and 10" in invalid["message"]

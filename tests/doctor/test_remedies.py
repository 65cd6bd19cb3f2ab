"""Commands and Terraform of remedies: their target, quoting and names."""

from __future__ import annotations

import json
import shlex

import pytest

from doctor.made_up import case, state
from semel.doctor import remedies
from semel.doctor.text_format import listed, share
from semel.text import count

ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


@pytest.mark.parametrize(
    ("url", "arn", "options"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/1/orders", "", " --region eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/orders", "", " --region cn-north-1"),
        ("https://sqs.eu-west-1.api.aws/1/orders", "", " --region eu-west-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/orders", "", " --region eu-west-1"),
        ("https://queue.amazonaws.com/1/orders", "", " --region us-east-1"),
        ("http://127.0.0.1:9324/1/orders", "", " --endpoint-url http://127.0.0.1:9324 --no-sign-request"),
        (
            "http://127.0.0.1:9324/1/orders",
            ARN,
            " --endpoint-url http://127.0.0.1:9324 --no-sign-request --region eu-west-1",
        ),
        (
            "https://vpce-1-2.sqs.eu-west-1.vpce.amazonaws.com/1/orders",
            ARN,
            " --endpoint-url https://vpce-1-2.sqs.eu-west-1.vpce.amazonaws.com --region eu-west-1",
        ),
        (None, "", ""),
    ],
)
def test_a_command_goes_to_where_the_queue_is(url: str | None, arn: str, options: str) -> None:
    assert remedies.cli_options(url, arn) == options


def test_a_policy_survives_the_shell() -> None:
    (line,) = remedies.set_attributes(
        remedies.queue_of(case(state=state())), {"RedrivePolicy": remedies.redrive_policy(ARN, 5)}
    )
    words = shlex.split(line)
    attributes = json.loads(words[words.index("--attributes") + 1])
    assert json.loads(attributes["RedrivePolicy"]) == {"deadLetterTargetArn": ARN, "maxReceiveCount": 5}


def test_a_name_that_terraform_would_not_take_for_a_resource_is_changed_and_kept_as_the_name() -> None:
    text = remedies.terraform("2nd.fifo", {"VisibilityTimeout": 60})
    assert text.startswith('resource "aws_sqs_queue" "queue_2nd_fifo" {')
    assert '  name                       = "2nd.fifo"' in text
    assert "  fifo_queue                 = true" in text


def test_a_template_of_terraform_in_a_text_stays_a_text() -> None:
    assert remedies.hcl("${path} %{if}") == '"$${path} %%{if}"'


@pytest.mark.parametrize("queue", ["orders", "a" * 80, "a" * 75 + ".fifo"])
def test_the_name_of_a_dead_letter_queue_is_one_that_sqs_takes(queue: str) -> None:
    name = remedies.dead_letter_name(queue)
    assert len(name) <= 80
    assert name.endswith("-dlq.fifo" if queue.endswith(".fifo") else "-dlq")


def test_shares_and_counts_read_as_people_say_them() -> None:
    assert [share(part, 1_000) for part in (0, 0.1, 1, 32, 999, 1_000)] == [
        "0 %",
        "under 0.1 %",
        "0.1 %",
        "3.2 %",
        "100 %",
        "100 %",
    ]
    assert (count(1, "message"), count(1_204, "message"), count(2, "key"), count(3, "retry")) == (
        "1 message",
        "1,204 messages",
        "2 keys",
        "3 retries",
    )
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"

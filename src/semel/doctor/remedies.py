"""Cures as somebody would type them: AWS CLI commands that run as they are, and Terraform for the same.

A queue whose URL is not known is looked up by the command itself, so nothing is left to fill in but roles and topics,
which are written in capitals.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from semel.doctor.model import Case, DeadLetters, QueueState
from semel.sqs.hosts import is_loopback

# SQS' names of attributes, and Terraform's.
_TERRAFORM: Final = {
    "VisibilityTimeout": "visibility_timeout_seconds",
    "MessageRetentionPeriod": "message_retention_seconds",
    "DelaySeconds": "delay_seconds",
    "ReceiveMessageWaitTimeSeconds": "receive_wait_time_seconds",
    "RedrivePolicy": "redrive_policy",
    "RedriveAllowPolicy": "redrive_allow_policy",
    "ContentBasedDeduplication": "content_based_deduplication",
    "DeduplicationScope": "deduplication_scope",
    "FifoThroughputLimit": "fifo_throughput_limit",
}
# The hosts that the AWS CLI goes to by itself, if it knows the region.
_AWS_HOST: Final = re.compile(
    r"sqs\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)"
    r"|(?:(?P<older>[a-z0-9-]+)\.)?queue\.amazonaws\.com(?:\.cn)?"
)
# How an attribute of a queue is given: a number, a word, or a policy.
Attributes = Mapping[str, int | bool | str | Mapping[str, Any]]


def set_attributes(case: Case, attributes: Attributes) -> tuple[str, ...]:
    """Commands that give the queue these attributes."""
    state = case.state
    return set_attributes_of(case.queue, state.url if state else None, state.arn if state else "", attributes)


def set_attributes_of(name: str, url: str | None, arn: str, attributes: Attributes) -> tuple[str, ...]:
    where = place(url, arn)
    wanted = shlex.quote(json.dumps({key: _as_text(value) for key, value in attributes.items()}))
    if all(isinstance(value, int) for value in attributes.values()):
        wanted = ",".join(f"{key}={_as_text(value)}" for key, value in attributes.items())
    if url:
        return (f"aws sqs set-queue-attributes --queue-url {shlex.quote(url)} --attributes {wanted}{where}",)
    return (
        f"QUEUE_URL=$(aws sqs get-queue-url --queue-name {shlex.quote(name)} --query QueueUrl --output text{where})",
        f'aws sqs set-queue-attributes --queue-url "$QUEUE_URL" --attributes {wanted}{where}',
    )


def create_queue(name: str, attributes: Attributes, *, like: QueueState | None = None) -> str:
    """A command that makes a queue, next to another one."""
    wanted = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    wanted |= {key: _as_text(value) for key, value in attributes.items()}
    given = ",".join(f"{key}={value}" for key, value in wanted.items())
    where = place(like.url, like.arn) if like else ""
    return f"aws sqs create-queue --queue-name {shlex.quote(name)} --attributes {shlex.quote(given)}{where}"


def place(url: str | None, arn: str = "") -> str:
    """Options that send a command to where the queue is: another endpoint than AWS', another region than the usual."""
    options = ""
    if url and not on_aws(url):
        parts = urlsplit(url)
        options = f" --endpoint-url {shlex.quote(f'{parts.scheme}://{parts.netloc}')}"
        if is_loopback(parts.hostname or ""):
            options += " --no-sign-request"  # a local broker asks for no credentials, the AWS CLI does
    region = region_of(url, arn)
    return f"{options} --region {region}" if region else options


def on_aws(url: str) -> bool:
    return _AWS_HOST.fullmatch(urlsplit(url).hostname or "") is not None


def region_of(url: str | None, arn: str = "") -> str | None:
    if arn.count(":") >= 5 and arn.split(":")[3]:
        return arn.split(":")[3]
    found = _AWS_HOST.fullmatch(urlsplit(url).hostname or "") if url else None
    return found["region"] or found["older"] or "us-east-1" if found else None


def neighbour_arn(arn: str, name: str) -> str:
    """The ARN of another queue of the same account and region."""
    return f"{arn.rpartition(':')[0]}:{name}" if arn.count(":") >= 5 else f"arn:aws:sqs:REGION:ACCOUNT:{name}"


def name_of(arn_or_url: str) -> str:
    return re.split(r"[:/]", arn_or_url)[-1]


def dead_letter_name(queue: str) -> str:
    """What its dead-letter queue is called, if it has none yet."""
    base = queue.removesuffix(".fifo")
    return f"{base[:71]}-dlq.fifo" if queue.endswith(".fifo") else f"{base[:76]}-dlq"


def redrive_policy(arn: str, max_receives: int) -> dict[str, Any]:
    return {"deadLetterTargetArn": arn, "maxReceiveCount": max_receives}


def dead_letters_url(letters: DeadLetters, state: QueueState | None) -> str | None:
    """Where the dead-letter queue is: as SQS said, else next to its source."""
    if letters.url:
        return letters.url
    return f"{state.url.rpartition('/')[0]}/{name_of(letters.arn)}" if state and state.url else None


# Terraform.


def terraform(name: str, attributes: Attributes) -> str:
    """The resource of the queue with these attributes; the others stay as they are."""
    lines = {"name": hcl(name)}
    if name.endswith(".fifo"):
        lines["fifo_queue"] = "true"
    lines |= {_TERRAFORM[key]: hcl(value) for key, value in attributes.items()}
    return resource("aws_sqs_queue", label(name), lines)


def resource(kind: str, name: str, lines: Mapping[str, str]) -> str:
    width = max(map(len, lines))
    body = "\n".join(f"  {key:<{width}} = {value}" for key, value in lines.items())
    return f'resource "{kind}" "{name}" {{\n{body}\n}}'


def label(name: str) -> str:
    """A queue's name as Terraform lets a resource be called."""
    word = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return word if re.match(r"[A-Za-z_]", word) else f"queue_{word}"


def hcl(value: object) -> str:
    """A value as Terraform writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"jsonencode({{ {', '.join(f'{key} = {hcl(one)}' for key, one in value.items())} }})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(hcl(one) for one in value)}]"
    if isinstance(value, str):
        return json.dumps(value).replace("${", "$${").replace("%{", "%%{")
    return str(value)


def _as_text(value: object) -> str:
    """As SQS wants attributes: all as text, policies as JSON in it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping) else str(value)

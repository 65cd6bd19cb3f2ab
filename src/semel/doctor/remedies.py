"""Remedies: AWS CLI commands that run as they are, and Terraform for the same.

If a queue's URL is not known, the command looks it up. So only roles and topics are left to fill in; they are written
in capitals.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from semel.doctor.model import Case, DeadLetters, QueueState, Remedy
from semel.sqs import limits
from semel.sqs.hosts import is_loopback

# The names of attributes in SQS and in Terraform.
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
# The attributes of a queue: numbers, words and policies.
Attributes = Mapping[str, int | bool | str | Mapping[str, Any]]


class Address(NamedTuple):
    """Which queue a command is for. Without a URL the command looks it up by name."""

    name: str
    url: str | None = None
    arn: str = ""


class Reference(str):
    """A reference to another resource in the same Terraform file."""

    __slots__ = ()


def queue_of(case: Case) -> Address:
    return Address(case.queue, case.state.url, case.state.arn) if case.state is not None else Address(case.queue)


def dead_letter_queue_of(dlq: DeadLetters, state: QueueState) -> Address:
    """The URL that SQS gave, else one next to that of the source queue."""
    name = name_of(dlq.arn)
    beside = f"{state.url.rpartition('/')[0]}/{name}" if state.url else None
    return Address(name, dlq.url or beside, dlq.arn)


def change(queue: Case | Address, text: str, attributes: Attributes) -> Remedy:
    """Give a queue these attributes; the others stay as they are."""
    queue = queue_of(queue) if isinstance(queue, Case) else queue
    return Remedy(text, set_attributes(queue, attributes), terraform(queue.name, attributes))


def change_max_receives(case: Case, max_receives: int, text: str | None = None) -> Remedy:
    """Change the maxReceiveCount of a queue that has a redrive policy."""
    dlq = case.state.dead_letters if case.state is not None else None
    policy = redrive_policy(dlq.arn if dlq is not None else "", max_receives)
    return change(case, text or f"Set maxReceiveCount to {max_receives}.", {"RedrivePolicy": policy})


def create_dead_letter_queue(case: Case, text: str, max_receives: int, name: str | None = None) -> Remedy:
    """Create a dead-letter queue, and name it in the queue's redrive policy."""
    name = name or dead_letter_name(case.queue)
    queue, keeps = queue_of(case), {"MessageRetentionPeriod": limits.MAX_RETENTION}
    policy = redrive_policy(neighbour_arn(queue.arn, name), max_receives)
    reference = redrive_policy(Reference(f"aws_sqs_queue.{label(name)}.arn"), max_receives)
    return Remedy(
        text,
        (create_queue(name, keeps, queue), *set_attributes(queue, {"RedrivePolicy": policy})),
        f"{terraform(name, keeps)}\n\n{terraform(case.queue, {'RedrivePolicy': reference})}",
    )


def joined(*remedies: Remedy | str | None) -> Remedy:
    """Several remedies as one. A string is a remedy without commands; empty ones are left out."""
    parts = [Remedy(remedy) if isinstance(remedy, str) else remedy for remedy in remedies if remedy]
    resources = [remedy.terraform for remedy in parts if remedy.terraform]
    return Remedy(
        text=" ".join(remedy.text for remedy in parts),
        cli=tuple(command for remedy in parts for command in remedy.cli),
        terraform="\n\n".join(resources) or None,
    )


# The AWS CLI.


def set_attributes(queue: Address, attributes: Attributes) -> tuple[str, ...]:
    options = cli_options(queue.url, queue.arn)
    values = ",".join(f"{key}={_as_text(value)}" for key, value in attributes.items())
    if not all(isinstance(value, int) for value in attributes.values()):
        values = shlex.quote(json.dumps({key: _as_text(value) for key, value in attributes.items()}))
    if queue.url:
        return (f"aws sqs set-queue-attributes --queue-url {shlex.quote(queue.url)} --attributes {values}{options}",)
    name = shlex.quote(queue.name)
    return (
        f"QUEUE_URL=$(aws sqs get-queue-url --queue-name {name} --query QueueUrl --output text{options})",
        f'aws sqs set-queue-attributes --queue-url "$QUEUE_URL" --attributes {values}{options}',
    )


def create_queue(name: str, attributes: Attributes, beside: Address) -> str:
    """A command that creates a queue where another one is."""
    fifo: Attributes = {"FifoQueue": True} if name.endswith(".fifo") else {}
    values = ",".join(f"{key}={_as_text(value)}" for key, value in {**fifo, **attributes}.items())
    options = cli_options(beside.url, beside.arn)
    return f"aws sqs create-queue --queue-name {shlex.quote(name)} --attributes {shlex.quote(values)}{options}"


def cli_options(url: str | None, arn: str = "") -> str:
    """The options that send a command to the right place: the queue's endpoint if it is not on AWS, and its region."""
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
    host = _AWS_HOST.fullmatch(urlsplit(url).hostname or "") if url else None
    return host["region"] or host["older"] or "us-east-1" if host else None


def neighbour_arn(arn: str, name: str) -> str:
    """The ARN of another queue of the same account and region."""
    return f"{arn.rpartition(':')[0]}:{name}" if arn.count(":") >= 5 else f"arn:aws:sqs:REGION:ACCOUNT:{name}"


def name_of(arn_or_url: str) -> str:
    return re.split(r"[:/]", arn_or_url)[-1]


def dead_letter_name(queue: str) -> str:
    """The usual name of its dead-letter queue."""
    base = queue.removesuffix(".fifo")
    return f"{base[:71]}-dlq.fifo" if queue.endswith(".fifo") else f"{base[:76]}-dlq"


def redrive_policy(arn: str, max_receives: int) -> dict[str, Any]:
    return {"deadLetterTargetArn": arn, "maxReceiveCount": max_receives}


# Terraform.


def terraform(name: str, attributes: Attributes) -> str:
    """The resource of the queue with these attributes; the others stay as they are."""
    lines = {"name": hcl(name)}
    if name.endswith(".fifo"):
        lines["fifo_queue"] = "true"
    lines |= {_TERRAFORM[key]: hcl(value) for key, value in attributes.items()}
    return resource("aws_sqs_queue", label(name), lines)


def resource(kind: str, name: str, lines: Mapping[str, str]) -> str:
    return block(f'resource "{kind}" "{name}"', lines)


def block(head: str, lines: Mapping[str, str], indent: str = "") -> str:
    width = max(map(len, lines))
    body = "\n".join(f"{indent}  {key:<{width}} = {value}" for key, value in lines.items())
    return f"{head} {{\n{body}\n{indent}}}"


def label(name: str) -> str:
    """A queue's name, changed into a valid name of a Terraform resource."""
    word = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return word if re.match(r"[A-Za-z_]", word) else f"queue_{word}"


def hcl(value: object) -> str:
    """A value as Terraform writes it."""
    if isinstance(value, Reference):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"jsonencode({{ {', '.join(f'{key} = {hcl(part)}' for key, part in value.items())} }})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(hcl(part) for part in value)}]"
    if isinstance(value, str):
        return json.dumps(value).replace("${", "$${").replace("%{", "%%{")
    return str(value)


def _as_text(value: object) -> str:
    """An attribute in the form that SQS wants: always text, and JSON if it is a policy."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping) else str(value)

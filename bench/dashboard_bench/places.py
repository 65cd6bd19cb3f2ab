"""Broker and dashboard in processes of their own, as users start them, and how the broker's queues are filled."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client, Entry

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
LARGE, DEAD = "orders", "orders-dlq"
START = 60.0  # seconds that a process may take to report that it is ready
BATCH = 1_000
ERRORS = (
    "TimeoutError: no answer from payments at 10.0.{0}.{1} after 30.{2} s",
    "KeyError: 'total'",
    "ValueError: order {0}{1}{2} has a negative total",
    "ConnectionRefusedError: [Errno 111] warehouse-{1}:8080",
    "IntegrityError: duplicate key value (id)=({0}{1}{2}) already exists",
)


@dataclass(frozen=True)
class Process:
    pid: int
    url: str


@contextmanager
def semel(folder: Path, *arguments: str) -> Iterator[Process]:
    """Runs a command that prints its address when it is ready, until the block ends."""
    environment = {**os.environ, **ENVIRONMENT, "SEMEL_STATE": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], START)
        line = process.stdout.readline() if ready else ""
        if "http" not in line:
            raise SystemExit(f"bench-dashboard: semel {arguments[0]} did not start")
        yield Process(process.pid, line.split()[-1])
    finally:
        process.terminate()
        process.wait(30)


def client_of(url: str) -> Client:
    return Client(url, "us-east-1", access_key="bench", secret_key="bench")


def fill(url: str, messages: int, dead: int, report: Callable[[str], None]) -> None:
    """Create a queue with `messages` messages, and its dead-letter queue with `dead` messages of five errors."""
    with client_of(url) as client:
        target = client.create_queue(DEAD, {"MessageRetentionPeriod": "1209600"})
        policy = {"deadLetterTargetArn": target.arn, "maxReceiveCount": 3}
        client.create_queue(LARGE, {"VisibilityTimeout": "30", "RedrivePolicy": policy})
        began = time.monotonic()
        _send(client, LARGE, messages, _message)
        _send(client, DEAD, dead, _dead_letter_message)
        report(f"{messages:,} messages and {dead:,} dead-letter messages sent in {time.monotonic() - began:.0f} s")


def _send(client: Client, queue: str, count: int, make: Callable[[int], Entry]) -> None:
    def part(start: int) -> None:
        for outcome in client.queue(queue).send_many([make(n) for n in range(start, min(count, start + BATCH))]):
            if not hasattr(outcome, "message_id"):
                raise SystemExit(f"bench-dashboard: a message was not taken: {outcome}")

    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(part, range(0, count, BATCH)):
            pass


def _message(number: int) -> Entry:
    return Entry(json.dumps({"order": number, "customer": f"c-{number % 997}", "lines": [{"sku": "A1", "count": 2}]}))


def _dead_letter_message(number: int) -> Entry:
    template = ERRORS[number % 10 if number % 10 < len(ERRORS) else 0]
    error = template.format(number % 256, number // 256 % 256, number % 7)
    message = own_attributes.DeadLetterDetails(
        f"order-{number}", error.partition(":")[0], error, 3, f"m-{number}", LARGE
    )
    body = json.dumps({"order": number, "total": number % 500, "tenant": f"t-{number % 20}"})
    return Entry(body, own_attributes.attributes(message, {}, len(body)))

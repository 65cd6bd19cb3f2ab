"""A redrive in a process of its own, which is killed at a point that the test names."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from semel.dlq.access.sqs import SqsAccess
from semel.dlq.jobs import Job
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import Redriver
from semel.sqs import Client
from semel.sqs.client import admin


def killer(point: str, nth: int) -> Callable[[str], None]:
    """Kills the process with SIGKILL when `point` is passed for the nth time."""
    passed = [0]

    def crash(here: str) -> None:
        if here == point:
            passed[0] += 1
            if passed[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    return crash


def client_for(url: str, *, admitted: bool) -> Client:
    """`admitted`: use the broker's admin interface. Otherwise, only the calls of SQS."""
    client = Client(url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _seconds: None)
    if not admitted:
        admin._known[client] = False
    return client


def redriver(
    client: Client, plan: dict[str, Any], *, admitted: bool, ahead: float, crash: Callable[[str], None]
) -> Redriver:
    def rest(job: Job, seconds: float) -> None:
        crash("waiting")
        job.rest(min(seconds, 0.02))

    def clock() -> float:
        return time.time() + ahead

    seconds = itertools.count()  # each look at the clock is a second later, so no rate makes the redrive wait
    options: dict[str, Any] = {"monotonic": lambda: float(next(seconds))}
    if not admitted:
        options["access"] = SqsAccess(client.queue(plan["queue"]), clock=clock, wait=0)
    return Redriver(RedrivePlan.from_json(plan), client, clock=clock, rest=rest, crash=crash, **options)


def main(url: str, plan: str, admitted: bool, ahead: float, point: str, nth: int) -> None:
    with client_for(url, admitted=admitted) as client:
        fields = json.loads(plan)
        run = redriver(client, fields, admitted=admitted, ahead=ahead, crash=killer(point, nth)).run
        Job("redrive", fields["queue"]).run(run)

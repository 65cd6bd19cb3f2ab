"""The options of a worker, as JSON on its command line or in its environment.

Standard library only, because it runs in the environment of every peer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VARIABLE = "BENCH_OPTIONS"
SLEEP = 0.05  # seconds that the handler "sleep" takes
COMPUTE = 0.002  # seconds of CPU that the handler "compute" takes


@dataclass(frozen=True)
class Options:
    role: str  # "consume" until stopped from outside, or "fill" the queue with `amount` messages and exit
    endpoint: str  # of the broker
    queue: str
    queue_url: str
    amount: int = 0
    threads: int = 16
    dynamodb: str = ""  # address of moto's server, if a contestant needs one
    ledger: str = ""  # Semel: address of its ledger
    handler: str = "nothing"  # Semel: the name of its handler
    effects: str = ""  # Semel: folder for the counts of effects.py
    samples: str = ""  # Semel: folder for the files of sampler.py; empty: it is not sampled
    health: str = ""  # Semel: address of its health endpoint

    @staticmethod
    def read() -> Options:
        return Options(**json.loads(sys.argv[1]))

    @staticmethod
    def from_environment() -> Options:
        """The options of a worker that cannot have them on its command line."""
        return Options(**json.loads(os.environ[VARIABLE]))


def sqs_client(options: Options) -> Any:
    """A boto3 client as users create it, with a connection for each thread."""
    import boto3
    from botocore.config import Config

    return boto3.client("sqs", endpoint_url=options.endpoint, config=Config(max_pool_connections=options.threads + 2))


def send_all(sqs: Any, options: Options, bodies: list[str]) -> None:
    """Send up to ten bodies with one call."""
    entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
    answer = sqs.send_message_batch(QueueUrl=options.queue_url, Entries=entries)
    if answer.get("Failed"):
        raise AssertionError(answer["Failed"])


def in_threads(count: int, work: Callable[[], None]) -> None:
    """Run `work` in `count` threads. An error in one of them is printed and ends the process."""
    import threading
    import traceback

    def guarded() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - printed, then the process ends
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

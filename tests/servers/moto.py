"""An SQS that is not Semel's: moto's server in a thread. Its queues are global to the process, so they are dropped
before and after each use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from semel.sqs import Client

REGION: Final = "us-east-1"


@contextmanager
def running() -> Iterator[str]:
    """Yields the address of the server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        empty(url)
        yield url
        empty(url)
    finally:
        server.stop()


def empty(url: str) -> None:
    with Client(url, REGION, access_key="test", secret_key="test") as client:
        for queue in client.queues():
            queue.drop()

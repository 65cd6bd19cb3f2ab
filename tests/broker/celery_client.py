"""A program that uses a broker through kombu and Celery, and the app that its Celery worker loads.

`python celery_client.py URL SCENARIO` exits with 0 if the scenario succeeds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-not-found,unused-ignore]
from kombu import Connection, Consumer, Exchange, Producer, Queue  # type: ignore[import-not-found,unused-ignore]

WAIT = 30.0
OPTIONS = {"region": "us-east-1", "is_secure": False, "wait_time_seconds": 1, "polling_interval": 0.1}


def broker_url(url: str) -> str:
    return url.replace("http://", "sqs://test:test@") + "//"


# kombu.


def connection(url: str) -> Any:
    return Connection(broker_url(url), transport_options=OPTIONS)


def kombu_simple_queue(url: str) -> None:
    """kombu creates the queue, counts its messages, and empties it."""
    with connection(url) as connected, connected.SimpleQueue("kombu-simple") as queue:
        for number in range(3):
            queue.put({"number": number, "text": "größer & <kleiner>"})
        assert queue.qsize() == 3, queue.qsize()
        numbers = set()
        for _ in range(3):
            message = queue.get(timeout=WAIT)
            assert message.payload["text"] == "größer & <kleiner>", message.payload
            numbers.add(message.payload["number"])
            message.ack()
        assert numbers == {0, 1, 2}, numbers
        assert queue.qsize() == 0, queue.qsize()
        queue.put({})
        queue.clear()
        assert queue.qsize() == 0, queue.qsize()


def kombu_requeue(url: str) -> None:
    """A message that a consumer requeues comes again; one that it acknowledges or rejects does not."""
    deliveries: Counter[str] = Counter()

    def handle(body: str, message: Any) -> None:
        deliveries[body] += 1
        if body == "again" and deliveries[body] == 1:
            message.requeue()
        elif body == "never":
            message.reject()
        else:
            message.ack()

    queue = Queue("kombu-requeue", Exchange("kombu-requeue", type="direct"), routing_key="kombu-requeue")
    with connection(url) as connected:
        producer = Producer(connected.channel(), queue.exchange, routing_key=queue.routing_key)
        for body in ("once", "again", "never"):
            producer.publish(body, declare=[queue])
        with Consumer(connected.channel(), [queue], callbacks=[handle]):
            until(lambda: deliveries.total() >= 4, lambda: connected.drain_events(timeout=WAIT))
    assert deliveries == {"once": 1, "again": 2, "never": 1}, deliveries


def kombu_fifo(url: str) -> None:
    with connection(url) as connected:
        channel = connected.channel()
        channel.sqs("kombu.fifo").create_queue(QueueName="kombu.fifo", Attributes={"FifoQueue": "true"})
        with connected.SimpleQueue("kombu.fifo") as queue:
            for number in range(5):
                queue.put(number)
            received = []
            for _ in range(5):
                message = queue.get(timeout=WAIT)
                received.append(message.payload)
                message.ack()
        assert received == list(range(5)), received


# Celery. The worker is a separate process, as `celery worker` starts it, and writes what it does to a file.

app = Celery("semel", broker=broker_url(os.environ.get("SEMEL_URL", "http://127.0.0.1")))
app.conf.update(
    broker_transport_options=OPTIONS | {"visibility_timeout": 60},
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_default_queue=os.environ.get("SEMEL_QUEUE", "celery"),
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
)


def record(text: str) -> None:
    with Path(os.environ["SEMEL_RECORD"]).open("a") as file:
        file.write(text + "\n")


@app.task(name="note")  # type: ignore[untyped-decorator,unused-ignore]
def note(text: str) -> None:
    record(text)


@app.task(name="fail_twice", bind=True, max_retries=3)  # type: ignore[untyped-decorator,unused-ignore]
def fail_twice(self: Any) -> None:
    record(f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)


def celery_runs_each_task_once(url: str) -> None:
    def send() -> None:
        for number in range(50):
            note.delay(f"task {number} – größer")

    recorded = worked(url, "celery-once", send, 50)
    assert sorted(recorded) == sorted(f"task {number} – größer" for number in range(50)), recorded


def celery_retries_and_delays(url: str) -> None:
    def send() -> None:
        fail_twice.delay()
        note.apply_async(("later",), countdown=1)

    recorded = worked(url, "celery-retry", send, 4)
    assert sorted(recorded) == ["later", "try 0", "try 1", "try 2"], recorded


def worked(url: str, queue: str, send: Callable[[], None], expected: int) -> list[str]:
    """Run a worker and stop it when it has recorded `expected` lines; returns all lines that it recorded."""
    app.conf.update(broker_url=broker_url(url), task_default_queue=queue)
    with tempfile.TemporaryDirectory() as folder:
        lines, log = Path(folder) / "lines", Path(folder) / "log"
        lines.touch()
        command = [sys.executable, "-m", "celery", "-A", "celery_client", "worker", "--pool", "solo"]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--queues", queue],
                cwd=Path(__file__).parent,
                env=os.environ | {"SEMEL_URL": url, "SEMEL_QUEUE": queue, "SEMEL_RECORD": str(lines)},
                stdout=output,
                stderr=output,
            )
        try:
            send()
            until(lambda: len(lines.read_text().splitlines()) >= expected)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT) == 0
        except BaseException:
            print(log.read_text(), file=sys.stderr)
            raise
        finally:
            process.kill()
            process.wait()
        return lines.read_text().splitlines()


def until(done: Callable[[], bool], act: Callable[[], object] = lambda: time.sleep(0.05)) -> None:
    end = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < end, "it takes too long"
        act()


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])

"""Creates the log that comes with the doctor (`semel doctor --sample`) in a real run.

    python bench/doctor_sample.py > src/semel/doctor/sample.jsonl

Four workers, each a plain boto3 loop from the tutorials, charge orders from a queue of Semel's broker. The queue's
visibility timeout is 2 s. Some orders take longer than that, so they are delivered again while they are processed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final

from semel.broker import EmbeddedBroker, running

ORDERS: Final = 100
WORKERS: Final = 4
VISIBILITY: Final = 2
SLOW_SHARE: Final = 0.05


class Log:
    """JSON lines as an application writes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lines: list[str] = []

    def write(self, event: str, host: str, message: Any, **more: Any) -> None:
        line = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "event": event,
            "host": host,
            "order": json.loads(message["Body"])["order"],
            "msg": {
                "messageId": message["MessageId"],
                "receives": int(message["Attributes"]["ApproximateReceiveCount"]),
            },
        }
        with self._lock:
            self.lines.append(json.dumps(line | more))


def work(broker: EmbeddedBroker, url: str, host: str, log: Log) -> None:
    sqs = broker.client()
    while True:
        response = sqs.receive_message(
            QueueUrl=url, WaitTimeSeconds=VISIBILITY + 1, MessageSystemAttributeNames=["ApproximateReceiveCount"]
        )
        if not response.get("Messages"):
            return
        for message in response["Messages"]:
            log.write("received", host, message)
            log.write("started", host, message)
            began = time.monotonic()
            time.sleep(json.loads(message["Body"])["takes"])
            log.write("done", host, message, took=round(time.monotonic() - began, 3))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            log.write("deleted", host, message)


def main(orders: int = ORDERS) -> list[str]:
    chance = random.Random(7)
    log = Log()
    with running() as broker:
        sqs = broker.client()
        url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": str(VISIBILITY)})["QueueUrl"]
        for number in range(orders):
            slow = chance.random() < SLOW_SHARE
            takes = chance.uniform(2.2, 3.0) if slow else chance.uniform(0.05, 0.3)
            sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"order": f"A-{1001 + number}", "takes": takes}))
        threads = [
            threading.Thread(target=work, args=(broker, url, f"web-{number + 1}", log)) for number in range(WORKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return log.lines


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in main()))

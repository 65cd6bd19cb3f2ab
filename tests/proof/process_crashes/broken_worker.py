"""Workers without Semel, as they are often written: a boto3 loop. They show that the checks can fail.

`plain` writes its effect and then deletes the message; a crash in between doubles the effect. `hasty` deletes first; a
crash loses the effect. Both write to the same table as the app does.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from process_crashes.plan import LEASE
from process_crashes.settings import LEASE_QUEUES, TRANSACTION_QUEUES, WorkerSettings, at_work_file

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_INSERT = "INSERT INTO effects (queue, id, grp, place, fence, pid, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
WORK_SECONDS = 0.2


class BrokenWorker:
    def __init__(self, settings: WorkerSettings, *, deletes_first: bool) -> None:
        self._settings, self._deletes_first = settings, deletes_first
        self.stopping = threading.Event()

    def run(self) -> None:
        config = Config(retries={"total_max_attempts": 1}, read_timeout=5, connect_timeout=5)
        sqs = boto3.client("sqs", endpoint_url=self._settings.endpoint, region_name="us-east-1", config=config)
        threads = [
            threading.Thread(target=self._loop, args=(sqs, queue)) for queue in LEASE_QUEUES + TRANSACTION_QUEUES
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _loop(self, sqs: SQSClient, queue: str) -> None:
        url = ""
        while not self.stopping.is_set():
            try:
                url = url or sqs.get_queue_url(QueueName=queue)["QueueUrl"]
                self._work_off(sqs, url, queue)
            except (BotoCoreError, ClientError, sqlite3.Error) as error:
                print(queue, error, file=sys.stderr, flush=True)
                time.sleep(0.2)

    def _work_off(self, sqs: SQSClient, url: str, queue: str) -> None:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=LEASE)
        messages = answer.get("Messages", [])
        for message in messages if self._deletes_first else ():
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        at_work_file(self._settings.folder, os.getpid()).touch()
        for message in messages:
            time.sleep(WORK_SECONDS)
            self._take_effect(queue, json.loads(message["Body"]))
            if not self._deletes_first:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def _take_effect(self, queue: str, order: dict[str, Any]) -> None:
        row = (queue, order["id"], order["group"], order["place"], 0, os.getpid(), time.time())
        path = self._settings.ledger.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        try:
            connection.execute(_INSERT, row)
        finally:
            connection.close()


def main(kind: str) -> None:
    worker = BrokenWorker(WorkerSettings.from_environment(), deletes_first=kind == "hasty")
    signal.signal(signal.SIGTERM, lambda _number, _frame: worker.stopping.set())
    worker.run()

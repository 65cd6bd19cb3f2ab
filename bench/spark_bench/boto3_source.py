"""The Spark source with its segment log, but with boto3 instead of Semel's own client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pyspark.sql.datasource import InputPartition

from semel.spark.source import reader
from semel.spark.source.datasource import SqsSource, SqsStreamReader
from semel.spark.source.options import read_options
from semel.sqs import Failure, Received


class Boto3Queue:
    fifo = False

    def __init__(self, client: Any, name: str) -> None:
        self.name = name
        self._client = client
        self._url = client.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])["Attributes"]
        self.scope = attributes["QueueArn"].split(":", 3)[3]

    def receive(self, limit: int, wait: int, *, visibility: int) -> list[Received]:
        answer = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=visibility,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return [Received.from_wire(message) for message in answer.get("Messages", ())]

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        for start in range(0, len(receipts), 10):
            page = receipts[start : start + 10]
            entries = [{"Id": str(place), "ReceiptHandle": receipt} for place, receipt in enumerate(page)]
            answer = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
            if answer.get("Failed"):
                raise RuntimeError(answer["Failed"])
        return [None] * len(receipts)


class Boto3Client:
    def __init__(self, endpoint: str) -> None:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=64)
        self._client = boto3.client("sqs", endpoint_url=endpoint, config=config)

    @cache  # noqa: B019  one client for the life of a worker
    def queue(self, name: str) -> Boto3Queue:
        return Boto3Queue(self._client, name)


@cache
def boto3_client_for(address: tuple[str, str | None, str | None]) -> Boto3Client:
    return Boto3Client(address[0])


class Boto3Reader(SqsStreamReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        reader.client_for = boto3_client_for  # type: ignore[assignment]
        return super().read(partition)


class Boto3Source(SqsSource):
    @classmethod
    def name(cls) -> str:
        return "sqs_boto3"

    def streamReader(self, schema: Any) -> Boto3Reader:
        options = read_options({str(k): str(v) for k, v in self.options.items()})
        return Boto3Reader(options, schema)

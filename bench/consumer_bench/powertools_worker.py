"""Powertools: its batch processor with its DynamoDB idempotency, fed by a boto3 loop as Lambda would feed it.

Each thread receives ten messages, turns them into a Lambda event, and deletes those that did not fail with one call.
"""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.utilities.batch import (  # type: ignore[import-not-found,unused-ignore]
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.idempotency import (  # type: ignore[import-not-found,unused-ignore]
    DynamoDBPersistenceLayer,
)

from consumer_bench.options import Options, in_threads, sqs_client
from ledger_bench.powertools_worker import Context, dynamodb_client, protected


def nothing(*, message_id: str) -> str:  # noqa: ARG001
    return "done"


def as_record(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": {},
        "messageAttributes": {},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:bench",
        "awsRegion": "us-east-1",
    }


def main() -> None:
    options = Options.read()
    sqs = sqs_client(options)
    layer = DynamoDBPersistenceLayer("powertools", boto3_client=dynamodb_client(options.dynamodb, options.threads))
    once = protected(layer, nothing, "message_id")

    def handle(record: Any) -> None:
        once(message_id=record.message_id)

    def loop() -> None:
        processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
        while True:
            answer = sqs.receive_message(QueueUrl=options.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
            messages = answer.get("Messages", [])
            if not messages:
                continue
            event = {"Records": [as_record(message) for message in messages]}
            result = process_partial_response(
                event=event, record_handler=handle, processor=processor, context=Context()
            )
            failed = {item["itemIdentifier"] for item in result["batchItemFailures"]}
            entries = [
                {"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]}
                for i, message in enumerate(messages)
                if message["MessageId"] not in failed
            ]
            if failed:
                raise AssertionError(f"{len(failed)} of {len(messages)} messages failed")
            sqs.delete_message_batch(QueueUrl=options.queue_url, Entries=entries)

    in_threads(options.threads, loop)


if __name__ == "__main__":
    main()

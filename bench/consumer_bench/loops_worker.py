"""Two boto3 loops without a ledger: the one from tutorials, and the best that people usually make of it."""

from __future__ import annotations

from typing import Any

from consumer_bench.options import Options, in_threads, sqs_client


def nothing(_body: str) -> None:
    return None


def tutorial(options: Options, sqs: Any) -> None:
    """Receive one message, handle it, delete it."""
    while True:
        answer = sqs.receive_message(QueueUrl=options.queue_url, WaitTimeSeconds=20)
        for message in answer.get("Messages", []):
            nothing(message["Body"])
            sqs.delete_message(QueueUrl=options.queue_url, ReceiptHandle=message["ReceiptHandle"])


def tuned(options: Options, sqs: Any) -> None:
    """Receive ten messages, handle them, delete them with one call."""
    while True:
        answer = sqs.receive_message(QueueUrl=options.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        messages = answer.get("Messages", [])
        if not messages:
            continue
        for message in messages:
            nothing(message["Body"])
        entries = [{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(messages)]
        deleted = sqs.delete_message_batch(QueueUrl=options.queue_url, Entries=entries)
        if deleted.get("Failed"):
            raise AssertionError(deleted["Failed"])


def main() -> None:
    options = Options.read()
    sqs = sqs_client(options)
    if options.threads == 1:
        tutorial(options, sqs)
    else:
        in_threads(options.threads, lambda: tuned(options, sqs))


if __name__ == "__main__":
    main()

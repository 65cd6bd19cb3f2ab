"""The lean SQS client: AWS JSON 1.0 over kept-alive connections, for any number of threads."""

from semel.sqs.client.cancellation import Cancel
from semel.sqs.client.client import Client
from semel.sqs.client.messages import Attribute, AttributeValue, Entry, Failure, Received, Sent
from semel.sqs.client.queue import Queue

__all__ = ["Attribute", "AttributeValue", "Cancel", "Client", "Entry", "Failure", "Queue", "Received", "Sent"]

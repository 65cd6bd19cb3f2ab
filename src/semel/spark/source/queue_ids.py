"""The ids of queues in segments, acknowledgements and the list of unconfirmed deletes.

The rule: two queues never share an id, whatever their names are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.spark.source.options import OptionError
from semel.sqs.client import Queue


def queue_id(queue: Queue) -> str:
    return queue.scope


def label(queue: Queue, references: Sequence[str]) -> str:
    """The value of the column `queue`: the queue's name, or its URL if another queue in the option 'queue' has the same
    name."""
    names = [queue.client.queue(reference).name for reference in references]
    return queue.url if names.count(queue.name) > 1 else queue.name


def by_id(queues: Mapping[str, Queue]) -> dict[str, Queue]:
    """The queues of the option 'queue' by their ids. Raises OptionError if two of its entries are one queue."""
    names: dict[str, str] = {}
    for name, queue in queues.items():
        first = names.setdefault(queue_id(queue), name)
        if first != name:
            raise OptionError(f"option 'queue' names one queue twice: {first} and {name}. Leave one out")
    return {queue_id(queue): queue for queue in queues.values()}

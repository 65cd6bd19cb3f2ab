"""The consumer: takes each message of a queue through a line of stages, so that its effect happens once.

Follow one message in this order: `app` and `runtime` start a `queue_consumer` for each handler; its line is `receiver`,
`claimer`, `scheduler`, `worker` (which calls the handler through `handler_caller`), `dead_letter_sender`, `recorder`,
`acknowledger`. `in_flight` knows the state of every message, `lifecycle` says what may follow from it, and `heartbeat`
keeps messages hidden and claimed meanwhile. docs/explanation/architecture.md walks down the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.consumer.app import App as App
    from semel.consumer.backoff import Backoff as Backoff
    from semel.consumer.backoff import Exponential as Exponential
    from semel.consumer.backoff import Fixed as Fixed
    from semel.consumer.backoff import Schedule as Schedule
    from semel.consumer.batch import Batch as Batch
    from semel.consumer.batch import Item as Item
    from semel.consumer.context import Context as Context
    from semel.consumer.context import Message as Message
    from semel.consumer.outcomes import Lost as Lost
    from semel.consumer.outcomes import Reject as Reject
    from semel.consumer.outcomes import Retry as Retry
    from semel.consumer.outcomes import Skip as Skip
    from semel.consumer.run_report import Report as Report

# Each name is imported on first use: other modules of this package are used without them.
_WHERE: Final = {
    "App": "semel.consumer.app",
    "Backoff": "semel.consumer.backoff",
    "Batch": "semel.consumer.batch",
    "Context": "semel.consumer.context",
    "Exponential": "semel.consumer.backoff",
    "Fixed": "semel.consumer.backoff",
    "Item": "semel.consumer.batch",
    "Lost": "semel.consumer.outcomes",
    "Message": "semel.consumer.context",
    "Reject": "semel.consumer.outcomes",
    "Report": "semel.consumer.run_report",
    "Retry": "semel.consumer.outcomes",
    "Schedule": "semel.consumer.backoff",
    "Skip": "semel.consumer.outcomes",
}
__all__ = [
    "App",
    "Backoff",
    "Batch",
    "Context",
    "Exponential",
    "Fixed",
    "Item",
    "Lost",
    "Message",
    "Reject",
    "Report",
    "Retry",
    "Schedule",
    "Skip",
]
__getattr__, __dir__ = lazy_names(__name__, _WHERE)

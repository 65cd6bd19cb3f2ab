"""Many messages for one call of a batch handler, each with its own outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from semel.consumer.outcomes import Outcome, Reject, Retry, Skip
from semel.durations import Duration

if TYPE_CHECKING:
    from semel.consumer.context import Context, Message
    from semel.consumer.delivery import Delivery

T = TypeVar("T")


class Item(Generic[T]):
    """One message of a batch. It is done when the handler returns, unless the handler gives it another outcome.

    >>> from semel import App, Batch
    >>> app = App()
    >>> @app.batch_handler("payments", key="$.id")
    ... def book(batch: Batch[dict]) -> None:
    ...     for item in batch:
    ...         if item.value["amount"] < 0:
    ...             item.reject("the amount is negative")
    """

    __slots__ = ("_delivery", "outcome", "value")

    def __init__(self, delivery: Delivery) -> None:
        """Internal. A worker makes it."""
        self._delivery = delivery
        self.value: T = delivery.value
        self.outcome: Outcome | None = None

    @property
    def context(self) -> Context:
        """The context of this message: its claim, a logger and steps."""
        return self._delivery.context

    @property
    def message(self) -> Message:
        """The message as it was received."""
        return self._delivery.received

    @property
    def key(self) -> str:
        """The idempotency key of this message."""
        return self._delivery.key

    @property
    def fence(self) -> int:
        """The fence of this message's claim. It grows with every claim of the key."""
        return self._delivery.fence

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._delivery.attempt

    @property
    def is_set_aside(self) -> bool:
        """Whether the handler called `reject` or `retry` for it."""
        return isinstance(self.outcome, Reject | Retry)

    def reject(self, reason: str) -> None:
        """Send this message to the dead-letter queue, with this reason. In a transaction, nothing remains of what was
        written for it: the transaction is rolled back, and the handler is called again with the other items."""
        self.outcome = Reject(reason)

    def retry(self, reason: str = "", *, after: Duration | None = None) -> None:
        """Try this message again later. In a transaction, nothing remains of what was written for it, as with
        `reject`."""
        self.outcome = Retry(reason, after=after)

    def skip(self) -> None:
        """Count this message as done, because there is nothing to do."""
        self.outcome = Skip()


class Batch(Generic[T]):
    """The messages of one call, in the order in which they were received, and within a FIFO group in its order.

    >>> from semel import App, Batch, Transaction
    >>> app = App()
    >>> @app.batch_handler("payments", key="$.id", size=100)
    ... def book(batch: Batch[dict], tx: Transaction) -> None:
    ...     rows = [(payment["id"], payment["amount"]) for payment in batch.values]
    ...     tx.executemany("INSERT INTO payments VALUES (?, ?)", rows)
    """

    __slots__ = ("items",)

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        """Internal. A worker makes it."""
        self.items: list[Item[T]] = [Item(delivery) for delivery in deliveries]

    def __iter__(self) -> Iterator[Item[T]]:
        """Iterates over the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """The number of items."""
        return len(self.items)

    def __getitem__(self, place: int) -> Item[T]:
        """The item at this index."""
        return self.items[place]

    @property
    def values(self) -> list[T]:
        """The decoded bodies, in the order of the items."""
        return [item.value for item in self.items]

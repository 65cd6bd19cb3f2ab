"""The order of a FIFO queue's groups inside one process: one message of a group at a time, groups side by side."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.consumer.delivery import Delivery


class Groups:
    """Not thread-safe: its lane asks under its own lock."""

    def __init__(self) -> None:
        self._members: dict[str, deque[Delivery]] = {}  # the first one is at work, or about to be

    def __len__(self) -> int:
        return len(self._members)

    def add(self, delivery: Delivery) -> bool:
        """Whether it may start now: nobody of its group is before it."""
        assert delivery.group is not None
        members = self._members.setdefault(delivery.group, deque())
        members.append(delivery)
        return members[0] is delivery

    def ended(self, delivery: Delivery) -> Delivery | None:
        """The life of `delivery` is over: who of its group is next."""
        members = self._members.get(delivery.group or "")
        if members is None:
            return None
        first = members[0] is delivery
        if not first:
            if delivery in members:
                members.remove(delivery)
            return None
        members.popleft()
        if not members:
            del self._members[delivery.group or ""]
            return None
        return members[0]

    def behind(self, delivery: Delivery) -> list[Delivery]:
        """Those of its group that wait for it, in order, wherever it stands itself. They are taken out."""
        members = self._members.get(delivery.group or "")
        if members is None or delivery not in members:
            return []
        waiting: list[Delivery] = []
        while members[-1] is not delivery:
            waiting.insert(0, members.pop())
        return waiting

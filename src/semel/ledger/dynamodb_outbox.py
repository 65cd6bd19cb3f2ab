"""Messages that DynamoDB transactions have sent, until they are handed to SQS.

The rule here: an item is taken by a conditional update on the time it is due, so no two dispatchers get it at once. A
small index of a fixed number of boxes finds what is due without reading the table; messages of a group share a box.
"""

from __future__ import annotations

import random
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from semel.ledger.contract import LedgerError, LedgerUnavailable, Outgoing
from semel.ledger.dynamodb_link import OUTBOX, Link

BOXES: Final = 4
_PREFIX: Final = "outbox#"


class Outbox:
    def __init__(self, link: Link, now: Callable[[], int]) -> None:
        self._link, self._now = link, now
        self._has_index: bool | None = None

    def put(self, message: Outgoing, place: int) -> dict[str, Any]:
        """The part of a transaction that keeps a message; `place` is its place among those of the transaction."""
        if not self._is_there():
            raise LedgerError(
                f"the DynamoDB table {self._link.table} has no index {OUTBOX!r}, so no messages can be sent in a "
                f"transaction: add a global secondary index {OUTBOX!r} on box (number) and due (number), keys only, "
                "or have Semel make the table with create=True"
            )
        box = random.randrange(BOXES) if message.group is None else zlib.crc32(message.group.encode()) % BOXES
        content = {
            "body": message.body,
            "key": message.key,
            "delay": message.delay,
            "group": message.group,
            "attributes": dict(message.attributes),
        }
        item = {
            "pk": {"S": f"{_PREFIX}{uuid.uuid4().hex}"},
            "box": {"N": str(box)},
            "due": {"N": str(self._now() + place)},
            "queue": {"S": message.queue},
            "message": {"S": orjson.dumps(content).decode()},
        }
        return {"Put": {"TableName": self._link.table, "Item": item}}

    def take(self, limit: int, lease: int) -> list[Outgoing]:
        if not self._is_there():
            return []
        taken: list[Outgoing] = []
        start = random.randrange(BOXES)
        for box in (*range(start, BOXES), *range(start)):
            if len(taken) < limit:
                taken += self._take_from(box, limit - len(taken), lease)
        return taken

    def _take_from(self, box: int, limit: int, lease: int) -> list[Outgoing]:
        now = self._now()
        found = self._link.call(
            "Query",
            IndexName=OUTBOX,
            KeyConditionExpression="box = :box AND due <= :now",
            ExpressionAttributeValues={":box": {"N": str(box)}, ":now": {"N": str(now)}},
            Limit=limit,
        )["Items"]

        def take(item: dict[str, Any]) -> Outgoing | None:
            made, whole = self._link.update(
                {
                    "Key": {"pk": item["pk"]},
                    "UpdateExpression": "SET due = :later",
                    "ConditionExpression": "due = :seen",
                    "ExpressionAttributeValues": {":later": {"N": str(now + lease)}, ":seen": item["due"]},
                }
            )
            return _outgoing(whole) if made else None

        return [message for message in self._link.side_by_side(take, found) if message is not None]

    def count(self) -> int:
        """All of them, however many pages of the index that takes."""
        if not self._is_there():
            return 0
        total = 0
        for box in range(BOXES):
            after: dict[str, Any] = {}
            while True:
                page = self._link.call(
                    "Query",
                    IndexName=OUTBOX,
                    Select="COUNT",
                    KeyConditionExpression="box = :box",
                    ExpressionAttributeValues={":box": {"N": str(box)}},
                    **after,
                )
                total += page["Count"]
                if not page.get("LastEvaluatedKey"):
                    break
                after = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return total

    def drop(self, ids: Sequence[str]) -> None:
        self._link.side_by_side(
            lambda name: self._link.call("DeleteItem", Key={"pk": {"S": f"{_PREFIX}{name}"}}), list(ids)
        )

    def _is_there(self) -> bool:
        if self._has_index is None:
            try:
                table = self._link.call("DescribeTable")["Table"]
            except LedgerUnavailable:
                raise
            except LedgerError:  # we may not ask: find out by using it
                return True
            self._has_index = any(index["IndexName"] == OUTBOX for index in table.get("GlobalSecondaryIndexes", ()))
        return self._has_index


def _outgoing(item: dict[str, Any]) -> Outgoing:
    content = orjson.loads(item["message"]["S"])
    return Outgoing(queue=item["queue"]["S"], id=item["pk"]["S"].removeprefix(_PREFIX), **content)

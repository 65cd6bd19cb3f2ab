"""Messages that DynamoDB transactions have sent, until SQS has accepted them.

The rules: an item is taken by a conditional update of its due time, so that no two dispatchers get it at once. Messages
of a group are taken together, by a conditional update of an item that represents the group, and keep their due times:
so they stay in order, whoever takes them and however often. A small index with a fixed number of partitions, called
boxes, finds due messages without reading the table; all messages of a group share a box. After a query that found
nothing, the index is left alone for a while, unless this process has committed a message or has one that is due again.
"""

from __future__ import annotations

import hashlib
import random
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from semel.ledger.contract import LedgerError, OutboxStatus, Outgoing
from semel.ledger.dynamodb.client import TableClient
from semel.ledger.dynamodb.table import OUTBOX, has_outbox_index

BOXES: Final = 4
IDLE_PAUSE: Final = 4_000  # milliseconds between two looks at all boxes while nothing is found: one query a second
INDEX_DELAY: Final = 5_000  # milliseconds after which the index should have what was committed
LOOKED_AT: Final = 40  # items that are read to see whether SQS has refused them
_PREFIX: Final = "outbox#"
_GROUP: Final = "outbox-group#"
_GROUP_KEPT: Final = 86_400  # seconds; an item of a group is made again when it is needed
_GROUPED: Final = re.compile(r"g([0-9a-f]{16})-")


class Outbox:
    def __init__(self, client: TableClient, now: Callable[[], int]) -> None:
        self._client, self._now = client, now
        self._has_index: bool | None = None
        self._groups: dict[str, int] = {}  # the groups that we have taken, and until when
        self._due_again: dict[str, int] = {}  # messages that we have taken and not dropped, and when they are due again
        self._next_look = 0
        self._busy_until = 0

    def put(self, message: Outgoing, place: int) -> dict[str, Any]:
        """The write, for a transaction, that puts a message into the outbox. `place`: its place among the messages of
        the transaction."""
        if not self._is_there():
            raise LedgerError(
                f"the DynamoDB table {self._client.table} has no index {OUTBOX!r}, so no messages can be sent in a "
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
            "pk": {"S": f"{_PREFIX}{_group_name(message)}{uuid.uuid4().hex}"},
            "box": {"N": str(box)},
            "due": {"N": str(self._now() + place)},
            "queue": {"S": message.queue},
            "message": {"S": orjson.dumps(content).decode()},
        }
        return {"Put": {"TableName": self._client.table, "Item": item}}

    def look_soon(self) -> None:
        """This process has changed the outbox: query the index each time until it surely has the change."""
        self._busy_until = self._now() + INDEX_DELAY

    def take(self, limit: int, lease: int) -> list[Outgoing]:
        now = self._now()
        if self._busy_until <= now < self._next_look or not self._is_there():
            return []
        messages: list[Outgoing] = []
        start = random.randrange(BOXES)
        for box in (*range(start, BOXES), *range(start)):
            if len(messages) < limit:
                messages += self._take_from(box, limit - len(messages), lease)
        self._due_again = {id: due for id, due in self._due_again.items() if due > now}
        if messages:
            self._due_again |= {message.id: now + lease for message in messages}
        else:
            self._next_look = min([now + IDLE_PAUSE, *self._due_again.values()])
        return messages

    def _take_from(self, box: int, limit: int, lease: int) -> list[Outgoing]:
        """Take due messages, page by page, because messages of groups that others have taken are still among them."""
        now = self._now()
        messages: list[Outgoing] = []
        groups: dict[str, bool] = {}  # whether we have taken the group
        after: dict[str, Any] = {}
        while len(messages) < limit:
            page = self._client.call(
                "Query",
                IndexName=OUTBOX,
                KeyConditionExpression="box = :box AND due <= :now",
                ExpressionAttributeValues={":box": {"N": str(box)}, ":now": {"N": str(now)}},
                Limit=limit,
                **after,
            )
            due = page["Items"][: limit - len(messages)]
            for group in dict.fromkeys(_group_of(item) for item in due):
                if group and group not in groups:
                    groups[group] = self._take_group(group, now, lease)

            def take(item: dict[str, Any]) -> Outgoing | None:
                group = _group_of(item)
                if group:
                    return self._of_group(item, groups[group])
                made, whole = self._client.update(
                    {
                        "Key": {"pk": item["pk"]},
                        "UpdateExpression": "SET due = :later",
                        "ConditionExpression": "due = :seen",
                        "ExpressionAttributeValues": {":later": {"N": str(now + lease)}, ":seen": item["due"]},
                    },
                    returned=True,
                )
                return _outgoing(whole) if made else None

            messages += [message for message in self._client.side_by_side(take, due) if message is not None]
            if not page.get("LastEvaluatedKey"):
                break
            after = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return messages

    def _take_group(self, group: str, now: int, lease: int) -> bool:
        made, _ = self._client.update(
            {
                "Key": {"pk": {"S": f"{_GROUP}{group}"}},
                "UpdateExpression": "SET till = :later, expires = :expires",
                "ConditionExpression": "attribute_not_exists(till) OR till <= :now",
                "ExpressionAttributeValues": {
                    ":later": {"N": str(now + lease)},
                    ":now": {"N": str(now)},
                    ":expires": {"N": str(now // 1_000 + _GROUP_KEPT)},  # in seconds: by then nobody has taken it
                },
            }
        )
        if made:
            self._groups[group] = now + lease
        return made

    def _of_group(self, item: dict[str, Any], ours: bool) -> Outgoing | None:
        if not ours:
            return None
        whole = self._client.call("GetItem", Key={"pk": item["pk"]}, ConsistentRead=True).get("Item")
        return _outgoing(whole) if whole else None  # the index may still have a message that was sent

    def _set_group(self, group: str, till: int) -> None:
        """Keep the group until `till`, but only if it is still ours: another dispatcher may have taken it."""
        ours = self._groups.pop(group, None)
        if ours is None:
            return
        made, _ = self._client.update(
            {
                "Key": {"pk": {"S": f"{_GROUP}{group}"}},
                "UpdateExpression": "SET till = :till",
                "ConditionExpression": "till = :ours",
                "ExpressionAttributeValues": {":till": {"N": str(till)}, ":ours": {"N": str(ours)}},
            }
        )
        if made and till:
            self._groups[group] = till

    def refused(self, ids: Sequence[str], error: str, wait: int) -> None:
        later = self._now() + wait
        self._due_again |= dict.fromkeys(ids, later)
        self.look_soon()
        for group in dict.fromkeys(filter(None, map(_group_in, ids))):
            self._set_group(group, later)

        def put_off(id: str) -> None:
            grouped = bool(_group_in(id))
            values = {":one": {"N": "1"}, ":error": {"S": error}} | ({} if grouped else {":later": {"N": str(later)}})
            self._client.update(
                {
                    "Key": {"pk": {"S": f"{_PREFIX}{id}"}},
                    "UpdateExpression": f"SET {'' if grouped else 'due = :later, '}refusal = :error ADD attempts :one",
                    "ConditionExpression": "attribute_exists(pk)",
                    "ExpressionAttributeValues": values,
                }
            )

        self._client.side_by_side(put_off, list(ids))

    def status(self, examples: int) -> OutboxStatus:
        """Refused messages are counted only among the first ones, because each item has to be read for that."""
        waiting = self.count()
        if not waiting:
            return OutboxStatus()
        keys = [{"pk": item["pk"]} for page in self._pages(Limit=LOOKED_AT) for item in page["Items"]][:LOOKED_AT]
        stored, _ = self._client.get_many(keys) if keys else ([], [])
        refused = [_outgoing(item) for item in stored if "attempts" in item]
        return OutboxStatus(waiting, len(refused), tuple(refused[:examples]))

    def count(self) -> int:
        """How many messages there are, from all pages of the index."""
        return sum(page["Count"] for page in self._pages(Select="COUNT"))

    def _pages(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        if not self._is_there():
            return
        for box in range(BOXES):
            after: dict[str, Any] = {}
            while True:
                page = self._client.call(
                    "Query",
                    IndexName=OUTBOX,
                    KeyConditionExpression="box = :box",
                    ExpressionAttributeValues={":box": {"N": str(box)}},
                    **wanted,
                    **after,
                )
                yield page
                if "Limit" in wanted or not page.get("LastEvaluatedKey"):
                    break
                after = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def drop(self, ids: Sequence[str]) -> None:
        self._client.side_by_side(
            lambda name: self._client.call("DeleteItem", Key={"pk": {"S": f"{_PREFIX}{name}"}}), list(ids)
        )
        for group in dict.fromkeys(filter(None, map(_group_in, ids))):
            self._set_group(group, 0)  # the rest of the group need not wait
        for id in ids:
            self._due_again.pop(id, None)
        self.look_soon()

    def _is_there(self) -> bool:
        if self._has_index is None:
            self._has_index = has_outbox_index(self._client)
        return self._has_index


def _group_name(message: Outgoing) -> str:
    """The prefix of the id of a message of a group. The index has only keys, and this shows the group in them."""
    if message.group is None:
        return ""
    return f"g{hashlib.sha256(orjson.dumps([message.queue, message.group])).hexdigest()[:16]}-"


def _group_in(id: str) -> str:
    match = _GROUPED.match(id)
    return match[1] if match else ""


def _group_of(item: dict[str, Any]) -> str:
    return _group_in(item["pk"]["S"].removeprefix(_PREFIX))


def _outgoing(item: dict[str, Any]) -> Outgoing:
    content = orjson.loads(item["message"]["S"])
    return Outgoing(
        queue=item["queue"]["S"],
        id=item["pk"]["S"].removeprefix(_PREFIX),
        attempts=int(item.get("attempts", {"N": "0"})["N"]),
        error=item.get("refusal", {"S": ""})["S"],
        **content,
    )

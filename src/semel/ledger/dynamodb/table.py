"""The table itself: created on request, with its time to live, its outbox index and the version of its items.

The rule: many processes may open or create the same table at once, and a table of another version is refused.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.dynamodb.client import Refused, TableClient

log: Final = logging.getLogger("semel.ledger")

SCHEMA: Final = 2
OUTBOX: Final = "outbox"  # the index that finds outgoing messages
_PATIENCE: Final = 120.0  # seconds until a new table is active
_TABLE: Final[dict[str, Any]] = {
    "BillingMode": "PAY_PER_REQUEST",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "box", "AttributeType": "N"},
        {"AttributeName": "due", "AttributeType": "N"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": OUTBOX,
            "KeySchema": [
                {"AttributeName": "box", "KeyType": "HASH"},
                {"AttributeName": "due", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
    ],
}


def create_table(client: TableClient) -> None:
    """Create the table unless it exists, and enable its time to live."""
    try:
        client.call("DescribeTable")
    except LedgerError as error:
        if _code(error) != "ResourceNotFoundException":
            raise
        _create(client)
    deadline = time.monotonic() + _PATIENCE
    while client.call("DescribeTable")["Table"]["TableStatus"] not in ("ACTIVE", "UPDATING"):
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"the DynamoDB table {client.table} is still not active; try again later")
        time.sleep(0.5)
    if _ttl_is_off(client):
        try:
            client.call("UpdateTimeToLive", TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"})
        except LedgerUnavailable:
            raise
        except LedgerError:  # another process was faster
            if _ttl_is_off(client):
                raise


def _create(client: TableClient) -> None:
    try:
        client.call("CreateTable", **_TABLE)
    except LedgerError as error:
        if _code(error) != "ResourceInUseException":  # another process is creating it
            raise


def _code(error: LedgerError) -> str:
    return error.__cause__.code if isinstance(error.__cause__, Refused) else ""


def open_schema(client: TableClient) -> None:
    """Write the version of the items into a new table, or check it in an old one."""
    _, meta = client.update(
        {
            "Key": {"pk": {"S": "meta#semel"}},
            "UpdateExpression": "SET #version = if_not_exists(#version, :version)",
            "ExpressionAttributeNames": {"#version": "version"},
            "ExpressionAttributeValues": {":version": {"N": str(SCHEMA)}},
        },
        returned=True,
    )
    version = int(meta["version"]["N"])
    if version > SCHEMA:
        raise LedgerError(
            f"the ledger in the DynamoDB table {client.table} has schema {version}, this Semel knows up to "
            f"{SCHEMA}: upgrade Semel, or use another table"
        )
    if version < SCHEMA:
        raise LedgerError(
            f"the ledger in the DynamoDB table {client.table} has schema {version}, which this Semel cannot read: "
            "use another table"
        )


def warn_without_ttl(client: TableClient) -> None:
    try:
        is_off = _ttl_is_off(client)
    except LedgerUnavailable:
        raise
    except LedgerError:  # we are not allowed to ask
        return
    if is_off:
        log.warning(
            "the DynamoDB table %s has no time to live, so what has expired is never dropped: "
            "enable it on the attribute 'expires'",
            client.table,
        )


def has_outbox_index(client: TableClient) -> bool:
    try:
        table = client.call("DescribeTable")["Table"]
    except LedgerUnavailable:
        raise
    except LedgerError:  # we are not allowed to ask: find out by using it
        return True
    return any(index["IndexName"] == OUTBOX for index in table.get("GlobalSecondaryIndexes", ()))


def _ttl_is_off(client: TableClient) -> bool:
    about = client.call("DescribeTimeToLive")["TimeToLiveDescription"]
    return about.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING")

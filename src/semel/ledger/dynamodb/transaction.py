"""The handler's writes to DynamoDB and the ledger's record in one TransactWriteItems.

The rule here: nothing is sent before the block ends; then everything goes in one call, or nothing does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

import botocore.exceptions as driver

from semel.ledger import outgoing
from semel.ledger.contract import (
    Completion,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Transaction,
    check_completions,
)
from semel.ledger.dynamodb import items
from semel.ledger.dynamodb.client import Link
from semel.ledger.dynamodb.outbox import Outbox

MOST_ITEMS: Final = 100
MOST_BYTES: Final = 350_000  # of a body: an item has 400 KiB, in which the body is written as JSON, with attributes
_ACTIONS: Final = frozenset({"Put", "Update", "Delete", "ConditionCheck"})
_TRIES: Final = 5
_PASSING: Final = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


class DynamoTransaction(Transaction):
    """Collects writes with `write`, and commits them together with the record when the block ends.

    tx.write({"Put": {"TableName": "orders", "Item": {"id": {"S": "7"}}}}) takes one item of boto3's
    transact_write_items. At most 100 items in all: each write, each key that is recorded and each message that is sent
    is one; no item twice. The writes happen once and with the record, or not at all: if a newer claim exists, the block
    ends with Fenced. Nothing written here can be read before the block has ended.
    """

    def __init__(self, link: Link, outbox: Outbox, now: Callable[[], int], kept: Callable[[Completion], int]) -> None:
        self._link, self._outbox, self._now, self._kept = link, outbox, now, kept
        self._finishes: list[Completion] = []
        self._writes: list[Mapping[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._token = uuid.uuid4().hex

    @property
    def connection(self) -> Any:
        """The boto3 client, for reads: what it writes by itself is not part of the transaction."""
        return self._link.client

    def write(self, action: Mapping[str, Any]) -> None:
        """Add one write: {"Put": …}, {"Update": …}, {"Delete": …} or {"ConditionCheck": …}, as boto3 takes them."""
        if len(action) != 1 or not _ACTIONS.issuperset(action):
            raise LedgerError(
                f"tx.write takes one of {', '.join(sorted(_ACTIONS))}, not {', '.join(action) or 'nothing'}"
            )
        self._make_room(1)
        self._writes.append(action)

    def send(
        self,
        queue: str,
        body: Any,
        *,
        key: str = "",
        delay: int | None = None,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self._make_room(1)
        message = outgoing.checked(queue, body, key, delay, group, attributes)
        if (size := len(message.body.encode())) > MOST_BYTES:
            raise LedgerError(
                f"tx.send to {queue}: a body of {size} bytes does not fit into DynamoDB's outbox, which takes up to "
                f"{MOST_BYTES}; send the address of what is large instead"
            )
        self._messages.append(self._outbox.put(message, len(self._messages)))

    def record(self, completions: Sequence[Completion]) -> list[bool]:
        """Takes part in the commit. Whether a newer claim exists shows only there, as Fenced."""
        check_completions(completions)
        self._make_room(len(completions))
        self._finishes += completions
        return [True] * len(completions)

    def execute(self, query: Any, parameters: Any = (), /) -> NoReturn:
        self._refuse_sql(query, parameters)

    def executemany(self, query: Any, parameters: Any, /) -> NoReturn:
        self._refuse_sql(query, parameters)

    def _refuse_sql(self, *_statement: Any) -> NoReturn:
        raise LedgerError(
            f"the ledger in the DynamoDB table {self._link.table} runs no statements: collect the handler's writes "
            "with tx.write({'Put': {…}})"
        )

    def savepoint(self) -> AbstractContextManager[None]:
        raise LedgerError(
            "DynamoDB has no savepoints: a transaction commits as a whole; decide what to tx.write before you do"
        )

    def _make_room(self, more: int) -> None:
        size = len(self._writes) + len(self._messages) + len(self._finishes) + more
        if size > MOST_ITEMS:
            raise LedgerError(
                f"a DynamoDB transaction has at most {MOST_ITEMS} items, and this would be number {size}: records, "
                "writes and sent messages count; take fewer messages at a time, or write less in each"
            )

    def commit(self) -> None:
        """Called when the block has ended without an exception."""
        actions: list[Mapping[str, Any]] = [*self._records(), *self._writes, *self._messages]
        if not actions:
            return
        is_unknown = False
        for tried in range(_TRIES):
            if tried:
                time.sleep(min(0.5, 0.02 * 2**tried))
            try:
                self._link.transact(actions, self._token)
                return
            except driver.ClientError as error:
                if self._was_carried_out(error):
                    return
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                is_unknown = is_unknown or status >= 500 or _code(error) == "TransactionInProgressException"
                last: Exception = error
            except (driver.HTTPClientError, driver.ConnectionError) as error:
                # Only a connection that was never made proves that nothing was carried out.
                never_sent = isinstance(error, driver.EndpointConnectionError | driver.ConnectTimeoutError)
                last, is_unknown = error, is_unknown or not never_sent
                if tried:
                    break
        where = f"TransactWriteItems with the DynamoDB table {self._link.table}"
        if is_unknown:
            raise OutcomeUnknown(f"{where}: it is not known whether it was carried out: {last}") from last
        raise LedgerUnavailable(f"{where} was not carried out: {last}") from last

    def _records(self) -> list[dict[str, Any]]:
        now = self._now()
        return [
            {
                "Update": {
                    "TableName": self._link.table,
                    **items.record(finish, now, self._kept(finish), commit=self._token).parameters(),
                }
            }
            for finish in self._finishes
        ]

    def _was_carried_out(self, error: Any) -> bool:
        """True: an earlier try was carried out after all. False: it may be tried again. All else raises."""
        if _code(error) == "TransactionCanceledException":
            return self._was_cancelled_by_itself(error)
        refusal = self._link.refusal("TransactWriteItems", error)
        if isinstance(refusal, LedgerUnavailable):
            return False
        raise refusal from error

    def _was_cancelled_by_itself(self, error: Any) -> bool:
        """Why DynamoDB has cancelled the transaction: it gives a reason for each item, in their order."""
        for place, reason in enumerate(error.response.get("CancellationReasons", ())):
            code = reason.get("Code", "None")
            if code == "None" or code in _PASSING:
                continue
            if place < len(self._finishes) and code == "ConditionalCheckFailed":
                claim = self._finishes[place].claim
                if items.was_committed(reason.get("Item") or self._item(claim.key), self._token):
                    return True
                raise Fenced(
                    f"{claim.key!r} is no longer held with fence {claim.fence}: this transaction is undone"
                ) from error
            what = place - len(self._finishes) + 1
            raise LedgerError(
                f"write {what} of the transaction was refused, so nothing was written: "
                f"{code}: {reason.get('Message', '')}"
            ) from error
        return False

    def _item(self, key: str) -> items.Item:
        found, _ = self._link.get_many([items.key_of(key)])
        return found[0] if found else {}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))

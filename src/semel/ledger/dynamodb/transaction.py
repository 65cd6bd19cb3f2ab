"""The handler's writes to DynamoDB and the ledger's record in one TransactWriteItems.

The rule: nothing is sent before the block ends; then everything is sent in one call, or nothing is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

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
from semel.ledger.dynamodb.client import Refused, TableClient
from semel.ledger.dynamodb.outbox import Outbox
from semel.sqs.client.transport import CannotConnect

MOST_ITEMS: Final = 100
MOST_BYTES: Final = 350_000  # of a body: an item has up to 400 KiB, for the body as JSON and the attributes
_ACTIONS: Final = frozenset({"Put", "Update", "Delete", "ConditionCheck"})
_TRIES: Final = 5
_PASSING: Final = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


class DynamoTransaction(Transaction):
    """Collects writes with `write`, and commits them together with the record when the block ends.

    tx.write({"Put": {"TableName": "orders", "Item": {"id": {"S": "7"}}}}) takes one item of boto3's
    transact_write_items. A transaction has at most 100 items: each write, each recorded key and each sent message
    counts as one, and no item may occur twice. The writes happen once, together with the record, or not at all: if a
    newer claim exists, the block raises Fenced. Nothing that is written here can be read before the block has ended.
    """

    def __init__(
        self, client: TableClient, outbox: Outbox, now: Callable[[], int], kept: Callable[[Completion], int]
    ) -> None:
        self._client, self._outbox, self._now, self._kept = client, outbox, now, kept
        self._completions: list[Completion] = []
        self._writes: list[Mapping[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._token = uuid.uuid4().hex

    @property
    def connection(self) -> Any:
        """The boto3 client, for reads. Writes that you make with it are not part of the transaction."""
        return self._client.boto_client

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
        """Record these with the commit. If a newer claim exists, only the commit finds out, and raises Fenced."""
        check_completions(completions)
        self._make_room(len(completions))
        self._completions += completions
        return [True] * len(completions)

    def execute(self, query: Any, parameters: Any = (), /) -> NoReturn:
        self._refuse_sql(query, parameters)

    def executemany(self, query: Any, parameters: Any, /) -> NoReturn:
        self._refuse_sql(query, parameters)

    def _refuse_sql(self, *_statement: Any) -> NoReturn:
        raise LedgerError(
            f"the ledger in the DynamoDB table {self._client.table} runs no statements: collect the handler's writes "
            "with tx.write({'Put': {…}})"
        )

    def savepoint(self) -> AbstractContextManager[None]:
        raise LedgerError(
            "DynamoDB has no savepoints: a transaction commits as a whole; decide what to tx.write before you do"
        )

    def _make_room(self, more: int) -> None:
        size = len(self._writes) + len(self._messages) + len(self._completions) + more
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
        try:
            self._commit(actions)
        finally:
            if self._messages:
                self._outbox.look_soon()

    def _commit(self, actions: Sequence[Mapping[str, Any]]) -> None:
        is_unknown = False
        for tried in range(_TRIES):
            if tried:
                time.sleep(min(0.5, 0.02 * 2**tried))
            try:
                self._client.transact(actions, self._token)
                return
            except Refused as error:
                if self._was_carried_out(error):
                    return
                is_unknown = is_unknown or error.status >= 500 or error.code == "TransactionInProgressException"
                last: Exception = error
            except OSError as error:
                # Only a connection that was never made proves that nothing was carried out.
                last, is_unknown = error, is_unknown or not isinstance(error, CannotConnect)
                if tried:
                    break
        where = f"TransactWriteItems with the DynamoDB table {self._client.table}"
        if is_unknown:
            raise OutcomeUnknown(f"{where}: it is not known whether it was carried out: {last}") from last
        raise LedgerUnavailable(f"{where} was not carried out: {last}") from last

    def _records(self) -> list[dict[str, Any]]:
        now = self._now()
        return [
            {
                "Update": {
                    "TableName": self._client.table,
                    **items.record(completion, now, self._kept(completion), commit=self._token).parameters(),
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                }
            }
            for completion in self._completions
        ]

    def _was_carried_out(self, error: Refused) -> bool:
        """True: an earlier try was carried out after all. False: it may be tried again. Raises in all other cases."""
        if error.code == "TransactionCanceledException":
            return self._was_cancelled_by_itself(error)
        refusal = self._client.refusal("TransactWriteItems", error)
        if isinstance(refusal, LedgerUnavailable):
            return False
        raise refusal from error

    def _was_cancelled_by_itself(self, error: Refused) -> bool:
        """Finds out why DynamoDB has cancelled the transaction: it gives a reason for each item, in order. Returns and
        raises as `_was_carried_out`."""
        for place, reason in enumerate(error.body.get("CancellationReasons", ())):
            code = reason.get("Code", "None")
            if code == "None" or code in _PASSING:
                continue
            if place < len(self._completions) and code == "ConditionalCheckFailed":
                claim = self._completions[place].claim
                if items.was_committed(reason.get("Item") or self._item(claim.key), self._token):
                    return True
                raise Fenced(
                    f"{claim.key!r} is no longer held with fence {claim.fence}: this transaction is undone"
                ) from error
            what = place - len(self._completions) + 1
            raise LedgerError(
                f"write {what} of the transaction was refused, so nothing was written: "
                f"{code}: {reason.get('Message', '')}"
            ) from error
        return False

    def _item(self, key: str) -> items.Item:
        stored, _ = self._client.get_many([items.key_of(key)])
        return stored[0] if stored else {}

"""The way to a DynamoDB table: its client, its making, and driver errors turned into ours.

The rule here: no exception of boto3 gets past `translated`, and each text says the action, the table and the way out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import boto3
import botocore.exceptions as driver
from botocore.config import Config

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.forks import OwningProcess

log: Final = logging.getLogger("semel.ledger")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

OUTBOX: Final = "outbox"  # the index that finds outgoing messages
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "LimitExceededException",
        "TransactionConflictException",
        "TransactionInProgressException",
        "InternalServerError",
        "ServiceUnavailable",
        "RequestTimeout",
        "RequestTimeoutException",
    }
)
_NOT_LET_IN: Final = frozenset(
    {
        "AccessDeniedException",
        "AccessDenied",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "ExpiredTokenException",
        "ExpiredToken",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
    }
)
_NOT_ANSWERED: Final = (driver.HTTPClientError, driver.ConnectionError, driver.CredentialRetrievalError)
_PATIENCE: Final = 120.0


class Link:
    """The client of one table, and the threads that send the calls of a batch side by side. Thread-safe."""

    def __init__(
        self,
        table: str,
        *,
        region: str | None,
        endpoint_url: str | None,
        session: Any,
        timeout: float,
        workers: int,
    ) -> None:
        self.table, self._closed = table, False
        self._endpoint, self._region, self._timeout, self._workers = endpoint_url, region, timeout, workers
        with self.translated("creating a client"):
            self._session = session or boto3.Session()
        self.process = OwningProcess(f"the ledger in the DynamoDB table {table}")
        with self.translated("creating a client"):
            self.client: Any = self._make_client(3)
        self._single_attempt: Any = None
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="semel-dynamodb")

    def _make_client(self, attempts: int) -> Any:
        config = Config(
            connect_timeout=self._timeout,
            read_timeout=self._timeout,
            max_pool_connections=2 * self._workers,
            retries={"mode": "standard", "total_max_attempts": attempts},
        )
        return self._session.client("dynamodb", region_name=self._region, endpoint_url=self._endpoint, config=config)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call about this table; `operation` as AWS names it: UpdateItem."""
        method = getattr(self.client, _METHODS[operation])
        with self.translated(operation):
            answer: dict[str, Any] = method(TableName=self.table, **parameters)
        return answer

    def update(self, parameters: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        """Whether a conditional update was made, and the item after it, or as it was when the update was refused."""
        method = self.client.update_item
        with self.translated("UpdateItem"):
            try:
                return True, method(TableName=self.table, ReturnValues="ALL_NEW", **parameters)["Attributes"]
            except self.client.exceptions.ConditionalCheckFailedException as error:
                return False, error.response.get("Item") or {}

    def transact(self, actions: Sequence[Mapping[str, Any]], token: str) -> None:
        """One TransactWriteItems, sent once: it must be known whether an attempt may have been carried out. Raises the
        driver's errors, for DynamoTransaction to tell apart."""
        self.process.check()
        if self._single_attempt is None:
            self._single_attempt = self._make_client(1)
        self._single_attempt.transact_write_items(TransactItems=list(actions), ClientRequestToken=token)

    def get_many(self, keys: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The items of these keys that there are, and the keys that DynamoDB has left for another call."""
        with self.translated("BatchGetItem"):
            answer = self.client.batch_get_item(RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}})
        return answer["Responses"].get(self.table, []), answer.get("UnprocessedKeys", {}).get(self.table, {}).get(
            "Keys", []
        )

    def side_by_side(self, work: Callable[[Asked], Answer], asked: Sequence[Asked]) -> list[Answer]:
        """The work for each, at once on the pool's threads; all have ended when this returns or raises."""
        self.process.check()
        if self._closed:
            raise LedgerUnavailable(f"the ledger in the DynamoDB table {self.table} was closed")
        if len(asked) <= 1:
            return [work(one) for one in asked]
        futures = [self._pool.submit(work, one) for one in asked]
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        if not self.process.is_this():
            return
        self._closed = True
        self._pool.shutdown(wait=True)
        self.client.close()
        if self._single_attempt is not None:
            self._single_attempt.close()

    @contextmanager
    def translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except driver.ClientError as error:
            raise self.refusal(operation, error) from error
        except _NOT_ANSWERED as error:
            raise LedgerUnavailable(f"DynamoDB did not answer to {operation} on table {self.table}: {error}") from error
        except driver.NoCredentialsError as error:
            raise LedgerError(
                f"there are no AWS credentials for the DynamoDB table {self.table}: set AWS_PROFILE or "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass session="
            ) from error
        except driver.NoRegionError as error:
            raise LedgerError(
                f"the region of the DynamoDB table {self.table} is not known: add ?region=… to the address, or set "
                "AWS_DEFAULT_REGION"
            ) from error
        except (driver.BotoCoreError, ValueError) as error:
            raise LedgerError(f"{operation} on the DynamoDB table {self.table} is not possible: {error}") from error

    def refusal(self, operation: str, error: Any) -> LedgerError:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        where = f"{operation} on the DynamoDB table {self.table}"
        if code in _NOT_LET_IN:
            return LedgerError(
                f"{where} is not allowed ({code}): grant dynamodb:{operation} on this table to the role or user whose "
                f"credentials are used, and check that they are valid: {error}"
            )
        if code == "ResourceNotFoundException":
            return LedgerError(
                f"there is no DynamoDB table {self.table} in region {self.client.meta.region_name}: check the name and "
                "the region, or have it made with create=True (?create=1 in the address)"
            )
        if code in _THROTTLED or status >= 500:
            return LedgerUnavailable(f"{where} failed for now: {error}")
        return LedgerError(f"{where} was refused: {error}")


_METHODS: Final = {
    "DeleteItem": "delete_item",
    "DescribeTable": "describe_table",
    "DescribeTimeToLive": "describe_time_to_live",
    "GetItem": "get_item",
    "Query": "query",
    "UpdateTimeToLive": "update_time_to_live",
}


def create_table(link: Link) -> None:
    """Make the table unless it is there, and have it drop what has expired."""
    client = link.client
    with link.translated("CreateTable"):
        try:
            client.describe_table(TableName=link.table)
        except client.exceptions.ResourceNotFoundException:
            # In use: somebody else makes it just now.
            with suppress(client.exceptions.ResourceInUseException):
                client.create_table(TableName=link.table, **_TABLE)
    deadline = time.monotonic() + _PATIENCE
    while link.call("DescribeTable")["Table"]["TableStatus"] not in ("ACTIVE", "UPDATING"):
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"the DynamoDB table {link.table} is still not active; try again later")
        time.sleep(0.5)
    if _ttl_is_off(link):
        try:
            link.call("UpdateTimeToLive", TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"})
        except LedgerUnavailable:
            raise
        except LedgerError:  # another process was faster
            if _ttl_is_off(link):
                raise


def warn_without_ttl(link: Link) -> None:
    try:
        is_off = _ttl_is_off(link)
    except LedgerUnavailable:
        raise
    except LedgerError:  # we may not ask
        return
    if is_off:
        log.warning(
            "the DynamoDB table %s has no time to live, so what has expired is never dropped: "
            "enable it on the attribute 'expires'",
            link.table,
        )


def _ttl_is_off(link: Link) -> bool:
    about = link.call("DescribeTimeToLive")["TimeToLiveDescription"]
    return about.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING")


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

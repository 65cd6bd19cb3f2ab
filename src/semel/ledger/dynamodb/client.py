"""Makes calls to DynamoDB about one table: signs them, reuses connections, retries, and turns errors into ours.

The rules: `call`, `put`, `update` and the like raise only LedgerError, and each text names the action and the
table, and says what to do. A call is sent up to three times, not counting calls that are sent again with new
credentials or a corrected clock. The connections, the signature and the rules for credentials, region and endpoint are
those of Semel's SQS client.
"""

from __future__ import annotations

import platform
import random
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, TypeVar

import botocore.exceptions
import orjson

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.forks import OwningProcess
from semel.sqs.client import error_parser
from semel.sqs.client.config import Wanted, resolve
from semel.sqs.client.connection import Answer, Malformed
from semel.sqs.client.retries import pause_before_retry
from semel.sqs.client.signer import Signer
from semel.sqs.client.transport import Transport
from semel.sqs.errors import NoCredentials, SqsError
from semel.sqs.hosts import is_loopback
from semel.version import __version__

Argument = TypeVar("Argument")
Result = TypeVar("Result")

ATTEMPTS: Final = 3
_CLOCK_SKEW: Final = 240.0  # seconds; DynamoDB does not object to a clock that is off by less
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "LimitExceededException",
        "TransactionConflictException",
    }
)
_FAILED_FOR_NOW: Final = _THROTTLED | {
    "TransactionInProgressException",
    "InternalServerError",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestTimeoutException",
}
_NOT_ALLOWED: Final = frozenset(
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
_NOT_FETCHED: Final = (
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.ConnectionError,
)
_WITHOUT_TABLE: Final = frozenset({"BatchGetItem", "TransactWriteItems"})


class Refused(Exception):
    """DynamoDB's answer is an error. `body` has its details: the item, or the reasons of a cancellation."""

    def __init__(self, answer: Answer) -> None:
        try:
            body = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            body = None
        self.body: dict[str, Any] = body if isinstance(body, dict) else {}
        self.head, self.status = answer.head, answer.status
        self.code = str(self.body.get("__type", "")).rpartition("#")[2]
        message = self.body.get("message") or self.body.get("Message") or "no reason given"
        super().__init__(f"{message} ({self.code or 'no code'}, HTTP {answer.status})")

    @property
    def may_pass(self) -> bool:
        return self.code in _FAILED_FOR_NOW or self.status >= 500 or self.status == 429


class TableClient:
    """The calls about one table, and the threads that send the calls of a batch in parallel. Thread-safe."""

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
        self.table, self._timeout = table, timeout
        try:
            self._resolved = resolve(Wanted(endpoint_url, region, session=session, service="dynamodb"))
        except SqsError as error:
            raise self._unusable(error) from error
        self.region = self._resolved.region
        self._credentials = self._resolved.credentials
        self._transport = Transport(self._resolved.address, timeout)
        self._signer = Signer(
            host=self._resolved.host,
            path=self._resolved.path,
            region=self._resolved.region,
            key_pair=self._credentials,
            user_agent=f"semel/{__version__} python/{platform.python_version()}",
            address=self._resolved.request_address,
            headers=self._resolved.proxy_headers,
            service="dynamodb",
            target="DynamoDB_20120810",
            query_mode=False,
        )
        self._clock_offset = 0.0  # seconds that DynamoDB's clock is ahead of ours; 0 until a call is refused for it
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="semel-dynamodb")
        self.process, self._closed = OwningProcess(f"the ledger in the DynamoDB table {table}"), False

    # Calls.

    def call(self, operation: str, *, timeout: float | None = None, **parameters: Any) -> dict[str, Any]:
        """One call about this table. `operation`: its name in AWS, such as GetItem. With `timeout`, it is sent once."""
        with self.translated(operation):
            return self._perform(operation, parameters, timeout)

    def put(self, parameters: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
        """Make a conditional put. Returns whether it was made, and the present item if it was refused."""
        return self._write("PutItem", parameters, None)

    def update(
        self, parameters: Mapping[str, Any], *, returned: bool = False, timeout: float | None = None
    ) -> tuple[bool, dict[str, Any]]:
        """Make a conditional update. Returns whether it was made, and the present item if it was refused; if
        `returned`, also the new item if it was made."""
        if returned:
            parameters = {**parameters, "ReturnValues": "ALL_NEW"}
        return self._write("UpdateItem", parameters, timeout)

    def _write(
        self, operation: str, parameters: Mapping[str, Any], timeout: float | None
    ) -> tuple[bool, dict[str, Any]]:
        parameters = {**parameters, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        with self.translated(operation):
            try:
                return True, self._perform(operation, parameters, timeout).get("Attributes", {})
            except Refused as refusal:
                if refusal.code == _CONDITION_FAILED:
                    return False, refusal.body.get("Item") or {}
                raise

    def get_many(self, keys: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The items of these keys, as far as they exist, and the keys that DynamoDB has left for another call."""
        answer = self.call("BatchGetItem", RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}})
        left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
        return answer["Responses"].get(self.table, []), left

    def transact(self, actions: Sequence[Mapping[str, Any]], token: str) -> None:
        """One TransactWriteItems, sent once, because the caller must know whether it may have been carried out.

        Raises Refused or OSError, which DynamoTransaction tells apart. CannotConnect: it was never sent."""
        parameters = {"TransactItems": actions, "ClientRequestToken": token}
        self._perform("TransactWriteItems", parameters, self._timeout, repeat=False)

    def _perform(
        self, operation: str, parameters: Mapping[str, Any], timeout: float | None, *, repeat: bool = True
    ) -> dict[str, Any]:
        self.check_usable()
        if operation not in _WITHOUT_TABLE:
            parameters = {"TableName": self.table, **parameters}
        try:
            body = orjson.dumps(parameters, default=_as_json)
        except TypeError as error:
            raise LedgerError(f"{operation} on the DynamoDB table {self.table} is not possible: {error}") from error
        attempts = ATTEMPTS if timeout is None else 1
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        attempt, mended = 1, set[str]()
        while True:
            try:
                return self._send(operation, body, seconds, repeat)
            except (Refused, OSError) as error:
                mend = self._mend(error)
                if mend and mend not in mended:
                    mended.add(mend)
                    continue
                if attempt >= attempts or (isinstance(error, Refused) and not error.may_pass):
                    raise
                is_throttled = isinstance(error, Refused) and error.code in _THROTTLED
            time.sleep(pause_before_retry(attempt, random.random(), throttled=is_throttled))
            attempt += 1

    def _send(self, operation: str, body: bytes, seconds: float, repeat: bool) -> dict[str, Any]:
        try:
            request = self._signer.request(operation, body, time.time() + self._clock_offset)
        except SqsError as error:
            raise self._unusable(error) from error
        answer = self._transport.exchange(request, seconds, repeat=repeat)
        if answer.status != 200:
            raise Refused(answer)
        try:
            result = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            result = None
        if not isinstance(result, dict):
            raise Malformed(f"what is not JSON: {answer.body[:80]!r}")
        return result

    def _mend(self, error: Refused | OSError) -> str:
        """Remove the cause of a refusal if possible. Returns which: "credentials" (renewed), "clock" (corrected) or
        ""."""
        if not isinstance(error, Refused):
            return ""
        code = error_parser.short(error.code)
        if code in error_parser.EXPIRED:
            return "credentials" if self._credentials.renew() else ""
        if code in error_parser.CLOCK and (server_time := error_parser.server_time(error.head)) is not None:
            offset = server_time - time.time()
            if abs(offset - self._clock_offset) > _CLOCK_SKEW:
                self._clock_offset = offset
                return "clock"
        return ""

    # Threads, processes and the end.

    def side_by_side(self, work: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
        """Call `work` for each argument, in parallel on the pool's threads. All calls have ended when this returns or
        raises."""
        self.check_usable()
        if len(arguments) <= 1:
            return [work(argument) for argument in arguments]
        futures = [self._pool.submit(work, argument) for argument in arguments]
        failed = [failure for future in futures if (failure := future.exception()) is not None]
        if failed:
            raise failed[0]
        return [future.result() for future in futures]

    def check_usable(self) -> None:
        if self._closed:
            raise LedgerUnavailable(f"the ledger in the DynamoDB table {self.table} was closed")
        self.process.check()

    @cached_property
    def boto_client(self) -> Any:
        """A boto3 client for the same endpoint, region and credentials, for calls that users make themselves."""
        session, host = self._resolved.session, self._resolved.address.host
        make = getattr(session, "create_client", None) or session.client
        options: dict[str, Any] = {"region_name": self.region, "endpoint_url": self._resolved.url}
        if is_loopback(host):  # where boto3 finds no credentials, ours have a default
            keys = self._credentials()
            options |= {"aws_access_key_id": keys.access_key, "aws_secret_access_key": keys.secret_key}
            options["aws_session_token"] = keys.token
        return make("dynamodb", **options)

    def close(self) -> None:
        if not self.process.is_this():
            return
        self._closed = True
        self._pool.shutdown(wait=True)
        self._transport.close()
        if "boto_client" in self.__dict__:
            self.boto_client.close()

    # Errors.

    @contextmanager
    def translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise self.refusal(operation, error) from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise LedgerUnavailable(
                f"DynamoDB did not answer to {operation} on table {self.table}: {reason}"
            ) from error

    def _unusable(self, error: SqsError) -> LedgerError:
        """An error in the configuration. It is about all AWS services, so the text is that of the SQS client."""
        if not isinstance(error, NoCredentials):
            return LedgerError(
                f"the DynamoDB table {self.table} cannot be reached: {error} In a ledger's address, write ?region=… "
                "and, for another endpoint than that of AWS, &endpoint=http://host:port."
            )
        if isinstance(error.__cause__, _NOT_FETCHED):
            return LedgerUnavailable(f"the DynamoDB table {self.table} cannot be reached: {error}")
        return LedgerError(
            f"there are no usable AWS credentials for the DynamoDB table {self.table}: set AWS_PROFILE or "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass session=: {error}"
        )

    def refusal(self, operation: str, error: Refused) -> LedgerError:
        where = f"{operation} on the DynamoDB table {self.table}"
        if error.code in _NOT_ALLOWED:
            return LedgerError(
                f"{where} is not allowed ({error.code}): grant dynamodb:{operation} on this table to the role or user "
                f"whose credentials are used, and check that they are valid: {error}"
            )
        if error.code == "ResourceNotFoundException":
            return LedgerError(
                f"there is no DynamoDB table {self.table} in region {self.region}: check the name and the region, or "
                "have it made with create=True (?create=1 in the address)"
            )
        if error.may_pass:
            return LedgerUnavailable(f"{where} failed for now: {error}")
        return LedgerError(f"{where} was refused: {error}")


def _as_json(value: Any) -> str:
    """Binary values, as boto3 takes them, are sent in base64."""
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON")

"""A prefix in a bucket of S3 or a compatible service, Google Cloud Storage or Azure Blob Storage, through obstore.

The service's conditional write decides races. When a log is created, a test write finds out whether the store ignores
the condition. A call without an answer fails within the store's patience, with all its retries: whoever seals a segment
has no more time than that before SQS delivers its messages to others.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import obstore
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import BotoCoreError
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from semel.spark.segments.storage import PATIENCE, StorageError, StoragePermissionDenied, StorageUnavailable
from semel.sqs.client.config import CredentialSource, new_session
from semel.sqs.errors import SqsError

SCHEMES: Final = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "az": "abfss", "abfs": "abfss", "abfss": "abfss"}
_TRIES: Final = 5
_CREDENTIALS_LIVE: Final = timedelta(minutes=5)  # botocore renews credentials earlier than this before they expire
_GRANTS: Final = {
    "s3": "s3:PutObject, s3:GetObject and s3:DeleteObject on its objects and s3:ListBucket",
    "gs": "the role Storage Object User (roles/storage.objectUser)",
    "abfss": "the role Storage Blob Data Contributor",
}
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"(?:<Code>|\(code: )(\w+)")
_CAUSE: Final = re.compile(r"(?:<Message>|message: \"|error: \"|credential provider: )([^<\"\n]{1,300})")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_PASSING: Final = re.compile(r"status code: (5\d\d|408|409|429)|InternalError|SlowDown|RequestTimeout")


class ObjectStore:
    """For S3, credentials, region and endpoint are looked up as boto3 does; for the others, as object_store does."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        scheme, _, address = url.partition("://")
        host, _, prefix = address.partition("/")
        self._scheme = SCHEMES[scheme]
        self._bucket, _, self._host = host.partition("@")
        self._prefix = prefix.strip("/")
        self._patience = patience
        self._made: Any = None
        if not self._bucket:
            raise StorageError(f"{url} needs a bucket: write it as {scheme}://bucket/folder")
        if self._scheme == "abfss" and not self._host:
            if not (account := os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")):
                raise StorageError(
                    f"{url} does not name its storage account: set AZURE_STORAGE_ACCOUNT_NAME, or write "
                    f"abfss://{self._bucket}@ACCOUNT.dfs.core.windows.net/{self._prefix}"
                )
            self._host = f"{account}.dfs.core.windows.net"

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, float]]:
        return ObjectStore, (self.url, self._patience)

    @property
    def url(self) -> str:
        bucket = f"{self._bucket}@{self._host}" if self._host else self._bucket
        return f"{self._scheme}://{bucket}/{self._prefix}".rstrip("/")

    @property
    def spark_url(self) -> str:  # Hadoop's connectors use the scheme s3a
        return re.sub("^s3:", "s3a:", self.url)

    def check(self) -> None:
        """Checks that a second put of a name is refused. The content afterwards decides, as an answer may have been
        lost."""
        name, first, second = f"check/{uuid4().hex}", b"1", b"2"
        self.put_if_absent(name, first)
        replaced = self.put_if_absent(name, second) or self.read(name) != first
        self.delete([name])
        if replaced:
            raise StorageError(
                f"{self.url}: this store ignores If-None-Match, which decides who seals a segment; AWS S3, MinIO and "
                "other stores with conditional writes can keep a segment log"
            )

    def put(self, name: str, data: bytes) -> None:
        self._call("put", name, lambda store: obstore.put(store, name, data, use_multipart=False))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        def create(store: Any) -> object:
            return obstore.put(store, name, data, mode="create", use_multipart=False)

        return self._call("put", name, create, AlreadyExistsError) is not None

    def read(self, name: str) -> bytes | None:
        data: bytes | None = self._call(
            "read", name, lambda store: obstore.get(store, name).bytes().to_bytes(), FileNotFoundError
        )
        return data

    def names(self, folder: str = "") -> list[str]:
        pages = self._call("list", folder, lambda store: list(obstore.list(store, folder or None)))
        return sorted(entry["path"] for page in pages for entry in page)

    def names_with(self, prefix: str) -> list[str]:
        def listed(store: Any) -> list[str]:
            """Stores list in the order of names, from any name on. A prefix of theirs must end at a slash, ours need
            not."""
            names = (entry["path"] for page in obstore.list(store, offset=prefix) for entry in page)
            return list(takewhile(lambda name: name.startswith(prefix), names))

        names: list[str] = self._call("list", prefix, listed)
        return names

    def delete(self, names: Iterable[str]) -> None:
        if paths := list(names):
            self._call("delete", paths[0], lambda store: _delete(store, paths))

    def _call(
        self, operation: str, name: str, request: Callable[[Any], Any], expected: type[Exception] | None = None
    ) -> Any:
        """Returns None if it ended with the `expected` error. All retries are made here: obstore does not repeat a
        create whose answer was lost, and it takes S3's "two writes at once, try again" for "the name exists"."""
        timeout = self._patience / 3
        last_start = time.monotonic() + self._patience - timeout
        store, attempt = self._store(timeout), 0
        while True:
            try:
                return request(store)
            except (BaseError, OSError, ValueError) as error:
                failure = self._failure(operation, name, error)
                conflict = self._scheme == "s3" and "409 Conflict" in str(error)
                if expected and isinstance(error, expected) and not conflict and _code(error) not in _NO_BUCKET:
                    return None
            attempt += 1
            pause = min(2.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
            again = isinstance(failure, StorageUnavailable) and (conflict or attempt < _TRIES)
            if not again or time.monotonic() + pause > last_start:
                raise failure
            time.sleep(pause)

    def _failure(self, operation: str, name: str, error: Exception) -> StorageError:
        said, code = str(error), _code(error)
        cause = (
            match[1]
            if (match := _CAUSE.search(said))
            else "timed out"
            if "TimedOut" in said
            else said.partition("\n")[0].rpartition(" - ")[2]
        )
        cause = re.sub(r"\?\S+", "", cause)  # the query of a URL may contain a signature
        reason = f"{operation} of {self.url}/{name} failed: {code or 'no answer'}: {cause}"
        if code in _NO_BUCKET:
            return StorageError(f"{self.url}: there is no bucket {self._bucket}: create it, or name another one")
        if isinstance(error, PermissionDeniedError) or code in ("403", "AccessDenied"):
            return StoragePermissionDenied(f"{reason}. The credentials need {_GRANTS[self._scheme]} on {self._bucket}")
        if "redirect" in said:
            return StorageError(f"{self.url}: the bucket is in another region. Set AWS_REGION to the bucket's region")
        unanswered = not code and isinstance(error, (GenericError, UnauthenticatedError))
        if unanswered or _PASSING.search(said):
            return StorageUnavailable(reason)
        return StorageError(reason)

    def _store(self, timeout: float) -> Any:
        if self._made is None:
            options: dict[str, Any] = {
                "client_options": {"timeout": timedelta(seconds=timeout)},
                "retry_config": {"max_retries": 0},
                "prefix": self._prefix or None,
            }
            try:
                if self._scheme == "s3":
                    self._made = open_s3(self._bucket, options)
                elif self._scheme == "gs":
                    self._made = GCSStore(self._bucket, **options)
                else:
                    self._made = AzureStore(self._bucket, account_name=self._host.partition(".")[0], **options)
            except (BaseError, BotoCoreError, SqsError, OSError, ValueError) as error:
                raise StorageError(f"{self.url}: {str(error).partition(chr(10))[0]}") from None
        return self._made


def open_s3(
    bucket: str, options: dict[str, Any], *, region: str | None = None, endpoint_url: str | None = None
) -> S3Store:
    """Opens a bucket as boto3 would: profiles, roles, AWS_ENDPOINT_URL_S3, AWS_CA_BUNDLE."""
    session = new_session(None)
    region = region or session.get_config_variable("region") or "us-east-1"
    configured = (
        endpoint_url or ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    )
    if configured and not re.match("https?://.", configured):
        raise ValueError(f"the endpoint {configured} of S3 (AWS_ENDPOINT_URL) is no address: write http://host:port")
    in_host = not configured and "." not in bucket
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = configured or f"https://{f'{bucket}.' if in_host else ''}s3.{region}.{domain}"
    client = options["client_options"] | {"allow_http": endpoint.startswith("http://")}
    if bundle := session.get_config_variable("ca_bundle"):
        client["root_certificate"] = Path(bundle).read_bytes()
    credentials = CredentialSource(session, None, local=False)

    def provide() -> Any:
        keys, expires = credentials(), datetime.now(UTC) + _CREDENTIALS_LIVE
        pair = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
        return pair | {"token": keys.token, "expires_at": expires}

    provide()  # fails at once if there are no credentials; if they cannot be renewed later, that is an outage
    return S3Store(
        bucket,
        endpoint=endpoint,
        region=region,
        virtual_hosted_style_request=in_host,
        conditional_put="etag",
        credential_provider=provide,
        **options | {"client_options": client},
    )


def _delete(store: Any, paths: list[str]) -> None:
    try:
        obstore.delete(store, paths)
    except FileNotFoundError:  # one of them does not exist, which is an error everywhere but in S3
        for path in paths:
            with suppress(FileNotFoundError):
                obstore.delete(store, path)


def _code(error: Exception) -> str:
    """The service's own error code, else the HTTP status, else an empty text."""
    match = _CODE.search(str(error)) or _STATUS.search(str(error))
    return match[1] if match else ""

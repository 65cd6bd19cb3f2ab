"""A prefix in a bucket of S3, or of a store that speaks S3's protocol, through botocore.

Races are decided by S3's conditional write (`If-None-Match: *`). A store that ignores the condition is found out when
the log is made, by trying. A call that is not answered fails within the store's patience, all its tries together: who
seals a segment has no more time than that before its messages are given to others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import uuid4

from semel.spark.segments.storage import PATIENCE, StorageError

_LISTED_AT_ONCE: Final = 1_000


class Timeouts(NamedTuple):
    """What botocore is told: how often it tries, and the seconds of each try to connect and to wait for an answer."""

    tries: int
    connect: float
    read: float

    @property
    def longest(self) -> float:
        """Before the second try botocore waits up to a second, and before each further one twice as long."""
        return self.tries * (self.connect + self.read) + (1 << self.tries - 1) - 1

    @classmethod
    def within(cls, seconds: float) -> Timeouts:
        tries = 5 if seconds > 60 else 3 if seconds > 12 else 1
        each = (seconds - cls(tries, 0.0, 0.0).longest) / tries
        return cls(tries, each / 3, each * 2 / 3)


class S3Store:
    """`address` is bucket/prefix. Credentials, region and endpoint (AWS_ENDPOINT_URL_S3) as boto3 finds them."""

    def __init__(self, address: str, patience: float = PATIENCE) -> None:
        bucket, _, prefix = address.partition("/")
        if not bucket:
            raise StorageError("s3:// needs a bucket: write it as s3://bucket/folder")
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._patience = patience
        self._made: Any = None

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, float]]:
        return S3Store, (f"{self._bucket}/{self._prefix}", self._patience)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def _client(self) -> Any:
        if self._made is None:
            from botocore.config import Config
            from botocore.session import Session

            tries, connect, read = Timeouts.within(self._patience * 2 / 3)
            config = Config(
                retries={"mode": "standard", "total_max_attempts": tries},
                connect_timeout=connect,
                read_timeout=read,
                max_pool_connections=32,
            )
            self._made = Session().create_client("s3", config=config)
        return self._made

    def check(self) -> None:
        """That the second put of a name is refused."""
        name = f"check/{uuid4().hex}"
        won = [self.put_if_absent(name, b"1"), self.put_if_absent(name, b"2")]
        self.delete([name])
        if won != [True, False]:
            raise StorageError(
                f"{self.url}: this store ignores If-None-Match, which decides who seals a segment; AWS S3, MinIO and "
                "other stores with conditional writes can keep a segment log"
            )

    def put(self, name: str, data: bytes) -> None:
        self._call("put_object", Key=self._prefix + name, Body=data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        until = time.monotonic() + self._patience / 3
        while True:
            code = self._call(
                "put_object",
                ("PreconditionFailed", "412", "ConditionalRequestConflict", "409"),
                Key=self._prefix + name,
                Body=data,
                IfNoneMatch="*",
            )
            if isinstance(code, dict):
                return True
            if code in ("PreconditionFailed", "412"):
                return False
            if time.monotonic() >= until:
                raise StorageError(f"{self.url}/{name}: S3 answers {code} again and again")
            time.sleep(0.05)

    def read(self, name: str) -> bytes | None:
        answer = self._call("get_object", ("NoSuchKey", "404"), Key=self._prefix + name)
        if not isinstance(answer, dict):
            return None
        data: bytes = answer["Body"].read()
        return data

    def names(self, folder: str = "") -> list[str]:
        prefix = self._prefix + (f"{folder.rstrip('/')}/" if folder else "")
        found: list[str] = []
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **more)
            assert isinstance(page, dict)
            found += [entry["Key"][len(self._prefix) :] for entry in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return sorted(found)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._prefix + name} for name in names]
        for start in range(0, len(keys), _LISTED_AT_ONCE):
            self._call("delete_objects", Delete={"Objects": keys[start : start + _LISTED_AT_ONCE], "Quiet": True})

    def _call(self, operation: str, expected: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any] | str:
        """The answer, or the code of an error that was `expected`."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in expected:
                return code
            raise StorageError(f"{self.url}: {operation} failed: {error}") from error
        except ParamValidationError as error:
            raise StorageError(
                f"{self.url}: this botocore does not know conditional writes; pip install --upgrade botocore ({error})"
            ) from error
        except BotoCoreError as error:
            raise StorageError(f"{self.url}: {operation} failed: {error}") from error
        return answer

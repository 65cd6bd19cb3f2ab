"""Log folders in a bucket (s3://, gs://, az://), listed and read through obstore.

The address may say where the bucket is, as the attempt log's does: s3://bucket/prefix?region=eu-west-1.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, BinaryIO, Final
from urllib.parse import parse_qs

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import LogFile, hidden, kind_of
from semel.extras import importing
from semel.telemetry.logs import safe_text

SCHEMES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
_WHY: Final = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "no permission to list it: the credentials in use need s3:ListBucket and s3:GetObject",
    "InvalidAccessKeyId": "these credentials are not known there",
    "NotFound": "there is no such file or folder",
    "error sending request": "it cannot be reached; check the endpoint and the network",
}


def files(address: str, any_name: bool) -> list[LogFile]:
    """All log files below an address. Raises DoctorError, with a text of one line, if it cannot be listed."""
    with _errors_of(address):
        return list(_files(address, any_name))


def stream(file: LogFile) -> BinaryIO:
    """The content of a file, read as it comes."""
    import obstore

    try:
        result = obstore.get(_store(file.store), file.path)
    except (OSError, ValueError, obstore.exceptions.BaseError) as error:
        raise OSError(why(error)) from None
    return io.BufferedReader(_Stream(iter(result.stream())), 1 << 20)


class _Stream(io.RawIOBase):
    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks, self._rest, self._place = blocks, memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        import obstore

        while not self._rest:
            try:
                self._rest = memoryview(bytes(next(self._blocks)))
            except StopIteration:
                return 0
            except (ValueError, obstore.exceptions.BaseError) as error:
                raise OSError(why(error)) from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        self._place += size
        return size


@contextmanager
def _errors_of(address: str) -> Iterator[None]:
    """Turns whatever the bucket's library raises into an error of one line that names the address."""
    try:
        yield
    except (DoctorError, ImportError):
        raise
    except Exception as error:
        raise DoctorError(f"--log {safe_text(address, 300)}: {why(error)}") from error


def why(error: Exception) -> str:
    text = str(error)
    known = next((words for code, words in _WHY.items() if code in text), None)
    return known or text.strip().partition("\n")[0][:300] or type(error).__name__


def _files(address: str, any_name: bool) -> Iterator[LogFile]:
    store, pattern = _split(address)
    scheme, _, place = store.partition("?")[0].partition("://")
    bucket, _, prefix = place.partition("/")
    prefix = prefix.strip("/")
    entries = sorted(_entries(store, prefix), key=lambda entry: str(entry["path"]))
    for entry in entries:
        path = str(entry["path"])
        below = path[len(prefix) :].strip("/")
        if path == prefix:  # the address is that of a file
            kind = kind_of(path.rpartition("/")[2], any_name=any_name, named=True)
        else:
            if prefix and not path.startswith(f"{prefix}/"):
                continue
            kind = kind_of(path.rpartition("/")[2], any_name=any_name)
            if any(hidden(part) for part in below.split("/")) or not _matches(below, pattern):
                continue
        if kind is not None:
            yield LogFile(f"{scheme}://{bucket}/{path}", kind, int(entry["size"]), path, store)


def _entries(store: str, prefix: str) -> Iterable[Any]:
    import obstore

    opened = _store(store)
    if prefix:
        try:
            return [obstore.head(opened, prefix)]
        except FileNotFoundError:
            pass
    return [entry for page in obstore.list(opened, prefix or None) for entry in page]


def _split(address: str) -> tuple[str, str]:
    """An address without its glob, and the glob: everything from the first part on that has a star in it."""
    place, mark, options = address.partition("?")
    if "*" not in place:
        return address, ""
    parts = place.split("/")
    first = next(number for number, part in enumerate(parts) if "*" in part)
    if first < 3:
        raise DoctorError(f"--log {address}: a bucket's name takes no star")
    return "/".join(parts[:first]) + mark + options, "/".join(parts[first:]).rstrip("/")


def _matches(below: str, pattern: str) -> bool:
    """Whether a file, or a folder that it is in, matches the glob."""
    if not pattern:
        return True
    parts, wanted = below.split("/"), pattern.split("/")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted))


@lru_cache(maxsize=16)
def _store(address: str) -> Any:
    place, _, query = address.partition("?")
    scheme, _, rest = place.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise DoctorError(
            f"--log {safe_text(address, 300)}: no such kind of address; there are {known} and local paths"
        )
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    bucket = rest.partition("/")[0]
    if not bucket:
        raise DoctorError(f"--log {safe_text(address, 300)}: the name of the bucket is missing")
    with importing(f"reading {scheme}://", extra="doctor"):
        from obstore.store import AzureStore, GCSStore

        from semel.spark.segments.object_store import open_s3
    retry: dict[str, Any] = {"client_options": {}, "retry_config": {"max_retries": 3}}
    if SCHEMES[scheme] == "s3":
        endpoint = options.get("endpoint_override")
        if endpoint and not re.match("https?://", endpoint):
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        return open_s3(bucket, retry, region=options.get("region"), endpoint_url=endpoint)
    if SCHEMES[scheme] == "gs":
        return GCSStore(bucket)
    container, _, host = bucket.partition("@")
    return AzureStore(container, account_name=host.partition(".")[0] or None)

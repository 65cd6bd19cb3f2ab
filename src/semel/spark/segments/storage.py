"""Where the segment log is kept: a folder on a file system, or a prefix in a bucket.

The rule: `put_if_absent` decides races. Exactly one of several puts of the same name returns True, and every reader of
the name sees the complete bytes of that put. A store that cannot promise this is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from semel.errors import PermissionDenied, SemelError, Unavailable

TEMPORARY: Final = ".tmp-"
PATIENCE: Final = 120.0
WHERE: Final = (
    "a folder that all executors see (a path or file://…), s3://bucket/prefix, gs://bucket/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_PASSING: Final = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN)
_DROPPED: Final = 10  # a folder may be dropped while a file is written to it, but not more often than this


class StorageError(SemelError):
    """The folder of a segment log or a checkpoint cannot be used. Correct the folder's address as the text says."""


class StoragePermissionDenied(StorageError, PermissionDenied):
    """The credentials are wrong, or do not allow reading and writing in the folder. Allow reading, writing and listing
    in the folder."""


class StorageUnavailable(StorageError, Unavailable):
    """The store does not answer. Wait and try again."""


class Store(Protocol):
    """Small files by name; a name may have slashes in it. Every call is atomic, and durable once it has returned."""

    @property
    def url(self) -> str: ...

    @property
    def spark_url(self) -> str:
        """The address in the form that Spark expects."""

    def put(self, name: str, data: bytes) -> None: ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """False: the name exists. This call itself may have created it, if an answer was lost and the call repeated."""

    def read(self, name: str) -> bytes | None: ...

    def names(self, folder: str = "") -> list[str]:
        """The names under a folder, at any depth, in order."""

    def names_with(self, prefix: str) -> list[str]:
        """The names that begin with `prefix`. The cost depends on these names only, not on all that exist."""

    def delete(self, names: Iterable[str]) -> None:
        """A name that does not exist counts as deleted."""


def open_store(url: str, patience: float = PATIENCE) -> Store:
    """The store at a path or an address. Nothing is created before it is used. `patience`: after how many seconds a
    call fails that an object store does not answer."""
    if "\0" in url:
        raise StorageError(f"{url!r}: no file can have such a name. Give {WHERE}")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme == "file":
        path = unquote(_path(url)) if separator else url
        return LocalStore(path if path.startswith("/") else str(Path(path).resolve()))
    from semel.spark.segments.object_store import SCHEMES, ObjectStore

    if scheme not in SCHEMES:
        raise StorageError(f"{url!r}: {scheme}:// is not known to have an atomic put-if-absent. Give {WHERE}")
    return ObjectStore(url, patience)


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError as error:
        raise StorageError(f"{url!r}: {error}. Give {WHERE}") from None


class LocalStore:
    """A folder. Hard links decide races, on network file systems too. Files are synced, and so is every folder above
    them: without its folder, a file would be lost."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def spark_url(self) -> str:
        return self.root.as_uri()

    def put(self, name: str, data: bytes) -> None:
        self._write(name, data, os.replace)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return not (self.root / name).exists() and self._write(name, data, os.link)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, error) from error

    def names(self, folder: str = "") -> list[str]:
        paths: list[str] = []
        for path, _, files in os.walk(self.root / folder, onerror=self._not_listed):
            paths += [os.path.join(path, file) for file in files if not file.startswith(TEMPORARY)]
        return sorted(os.path.relpath(path, self.root) for path in paths)

    def names_with(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")
        try:
            names = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(folder, error) from error
        return sorted(os.path.join(folder, name) for name in names if name.startswith(start))

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self.root / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise self._failed(name, error) from error
            folders.add(path.parent)
        for folder in folders - {self.root}:
            for left in folder.glob(f"{TEMPORARY}*"):
                left.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty: somebody has written a file meanwhile
                folder.rmdir()

    def _write(self, name: str, data: bytes, move: Callable[[Path, Path], None]) -> bool:
        """Returns False if the name exists and `move` does not replace files."""
        target = self.root / name
        temporary = target.parent / f"{TEMPORARY}{uuid4().hex}"
        top = self.root
        while not top.exists():
            top = top.parent
        for left in reversed(range(_DROPPED)):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_file(temporary, data)
                move(temporary, target)
                break
            except OSError as error:
                if isinstance(error, FileExistsError) and target.exists():
                    return False
                if move is os.link and error.errno in _NO_LINKS and error.filename2 is not None:
                    raise StorageError(
                        f"{self.root} is on a file system without hard links, which decide who seals a segment: "
                        "keep the segment log on another file system or in a bucket"
                    ) from error
                if not (isinstance(error, FileNotFoundError) and left):  # else its folder was dropped meanwhile
                    raise self._failed(name, error) from error
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
        # All folders, also those that another process has created: it may not have synced them yet.
        for folder in target.parents:
            _sync_folder(folder)
            if folder == top:
                break
        return True

    def _not_listed(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise self._failed("", error) from error

    def _failed(self, name: str, error: OSError) -> StorageError:
        kind = StorageUnavailable if error.errno in _PASSING else StorageError
        return kind(f"{self.root / name}: {error.strerror or error}. All executors need to read and write there.")


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

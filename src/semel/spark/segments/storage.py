"""Where the segment log is kept: a folder on a file system, or a prefix in a bucket.

The rule: `put_if_absent` decides a race. Of all that put the same name, exactly one gets True, and whoever reads the
name sees that one's bytes, whole. A file system that cannot promise this is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from semel.errors import SemelError, Unavailable

TEMPORARY: Final = ".tmp-"
PATIENCE: Final = 120.0


class StorageError(SemelError):
    """The folder of a segment log cannot be used; the text says why."""


class StorageUnavailable(StorageError, Unavailable):
    """The store does not answer: waiting may help."""


class Store(Protocol):
    """Small files by name; a name may have slashes in it. Every call is atomic, and durable once it has returned."""

    @property
    def url(self) -> str: ...

    def put(self, name: str, data: bytes) -> None: ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """False: the name was taken. Perhaps by this very call, if an answer was lost and the call repeated."""

    def read(self, name: str) -> bytes | None: ...

    def names(self, folder: str = "") -> list[str]:
        """The names under a folder, at any depth, in order."""

    def delete(self, names: Iterable[str]) -> None:
        """What is not there counts as deleted."""


def open_store(url: str, patience: float = PATIENCE) -> Store:
    """The store at a path, a file:// address or an s3:// address. Nothing is made before it is used. `patience`: after
    so many seconds a call that S3 does not answer has failed."""
    scheme, _, rest = url.partition("://")
    if scheme == url or scheme == "file":
        path = unquote(urlsplit(url).path) if rest else url
        if not path.startswith("/"):
            path = str(Path(path).resolve())
        return LocalStore(path)
    if scheme in ("s3", "s3a", "s3n"):
        from semel.spark.segments.object_store import S3Store

        return S3Store(rest, patience)
    raise StorageError(
        f"{url!r}: a segment log can be kept in a folder that all executors see (a path or file://…) or in S3 "
        f"(s3://bucket/prefix); {scheme}:// is not known to have an atomic put-if-absent here"
    )


class LocalStore:
    """A folder. Hard links decide races, on network file systems too. Files are synced, and every folder on the way to
    them: a file is nowhere if its folder is not."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)

    @property
    def url(self) -> str:
        return str(self.root)

    def put(self, name: str, data: bytes) -> None:
        temporary = self._written(name, data)
        os.replace(temporary, self.root / name)
        self._sync_folders(temporary.parent)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if (self.root / name).exists():
            return False
        temporary = self._written(name, data)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise StorageError(
                    f"{self.root} is on a file system without hard links, which decide who seals a segment: "
                    "keep the segment log on another file system or in S3"
                ) from error
            raise self._failed(name, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        self._sync_folders(temporary.parent)
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, error) from error

    def names(self, folder: str = "") -> list[str]:
        found = []
        for path, _, files in os.walk(self.root / folder):
            relative = os.path.relpath(path, self.root)
            prefix = "" if relative == "." else f"{relative}/"
            found += [prefix + file for file in files if not file.startswith(TEMPORARY)]
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self.root / name
            path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders - {self.root}:
            for left in folder.glob(f"{TEMPORARY}*"):
                left.unlink(missing_ok=True)
            with suppress(OSError):  # somebody has put a file into it
                folder.rmdir()

    def _written(self, name: str, data: bytes) -> Path:
        target = self.root / name
        temporary = target.parent / f"{TEMPORARY}{uuid4().hex}"
        try:
            _make_folder(target.parent)
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:  # its folder was dropped between the two
            return self._written(name, data)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise self._failed(name, error) from error
        return temporary

    def _sync_folders(self, folder: Path) -> None:
        """This one and those above it, also if another has made them: whether it came to sync them, nobody knows."""
        while folder != self.root:
            _sync_folder(folder)
            folder = folder.parent
        _sync_folder(folder)

    def _failed(self, name: str, error: OSError) -> StorageError:
        return StorageError(
            f"{self.root / name}: {error.strerror or error}. All executors need to read and write there."
        )


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        if not folder.parent.exists():
            _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

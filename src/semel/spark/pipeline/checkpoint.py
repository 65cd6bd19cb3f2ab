"""A pipeline's checkpoint: who it is, what it was run with, and who runs it now.

    pipeline.json   its id and what of its file must not change under a running history
    status.json     how it does, or did
    lock            locked by the one driver that runs it (a checkpoint on a file system)
    query/          Spark's own: offsets, commits, state
    segments/       the source's segment log

The rule: nothing is run on a checkpoint that another driver holds, or whose record says that exactly once would break.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson

from semel import __version__
from semel.errors import SemelError
from semel.spark.storage import LocalStore, StorageError, Store, open_store

RECORD: Final = "pipeline.json"
LOCK: Final = "lock"
QUERY: Final = "query"


class CheckpointError(SemelError):
    """A checkpoint cannot be used; the text says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Record:
    """`id` names the pipeline to its sinks for as long as the checkpoint lives."""

    id: str
    spec: Mapping[str, Any]
    version: str = __version__

    def encode(self) -> bytes:
        made = {"id": self.id, "semel": self.version, "spec": self.spec}
        return orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


class Checkpoint:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or "/"
        self.store: Store = open_store(self.url)

    @property
    def query(self) -> str:
        """Where Spark keeps its part, as Spark wants it named."""
        if isinstance(self.store, LocalStore):
            return (self.store.root / QUERY).as_uri()
        return f"s3a://{self.store.url.partition('://')[2]}/{QUERY}"

    def record(self) -> Record | None:
        data = self.store.read(RECORD)
        if data is None:
            return None
        try:
            found = orjson.loads(data)
            return Record(found["id"], found["spec"], found.get("semel", "?"))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.url}/{RECORD} cannot be read ({error}). It holds the pipeline's id, by which its sink knows "
                "what is in already: restore it from a copy, or begin with a new checkpoint and an empty table"
            ) from error

    def fresh(self, spec: Mapping[str, Any]) -> Record:
        """The record of a pipeline that has not run yet."""
        if self.store.names(f"{QUERY}/commits") or self.store.names(f"{QUERY}/offsets"):
            raise CheckpointError(
                f"{self.url} holds the progress of a query but no {RECORD}. Without the id in it, what the sink has "
                "already would be written again: restore the file, or begin with a new checkpoint and an empty table"
            )
        return Record(uuid4().hex, dict(spec))

    def keep(self, record: Record) -> None:
        self.store.put(RECORD, record.encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """One driver at a time. In S3 there is no such lock: Spark itself stops the second one at its first batch."""
        if not isinstance(self.store, LocalStore):
            yield
            return
        descriptor = self._locked(self.store)
        try:
            yield
        finally:
            os.close(descriptor)  # which gives the lock back; the file stays, so that all lock the same one

    def _locked(self, store: LocalStore) -> int:
        path = store.root / LOCK
        try:
            store.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"checkpoint {store.root}: {error.strerror}; choose a folder that can be written"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise CheckpointError(
                f"{self.url} is in use by {holder or 'another driver'}. One checkpoint is run by one driver at a time; "
                "stop that one first, or give this pipeline a checkpoint of its own"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return descriptor

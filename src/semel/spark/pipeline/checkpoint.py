"""A pipeline's checkpoint: the pipeline's identity, what it was run with, and the driver that runs it now.

    pipeline.json   its id, the id of its query, and the parts of its file that must not change once it has run
    status.json     its state and its counts
    lock            locked by the one driver that runs it (only on a file system)
    query/          Spark's own: offsets, commits, state
    segments/       the source's segment log

The rule: nothing is run on a checkpoint that another driver holds, or whose record says that exactly once would break.
agreement.py checks whether query, log and sink belong together.
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

from semel.errors import SemelError
from semel.spark.segments.storage import LocalStore, StorageError, Store, open_store
from semel.version import __version__

RECORD: Final = "pipeline.json"
LOCK: Final = "lock"
QUERY: Final = "query"
SEGMENTS: Final = "segments"
METADATA: Final = "metadata"


RESET: Final = (
    "Do not remove files or restore an older copy: `semel pipeline reset FILE` goes on from what the log and the table "
    "have. It shows what it will do and what it would repeat before it changes anything"
)


class CheckpointError(SemelError):
    """A checkpoint cannot be used. Do what the text says."""


class Disagreement(CheckpointError):
    """The checkpoint, its segment log and the sink do not belong together. Nothing was started. Restore the part that
    is wrong, or run `semel pipeline reset`."""


@dataclass(frozen=True, slots=True)
class Record:
    """`id`: identifies the pipeline in its sinks, for as long as the checkpoint exists. `query`: Spark's id of the
    query that progress, log and commits belong to; None in a record of an earlier version. `base`: the number, in the
    sinks, of that query's batch 0."""

    id: str
    spec: Mapping[str, Any]
    version: str = __version__
    query: str | None = None
    base: int = 0

    def encode(self) -> bytes:
        made = {
            "id": self.id,
            "semel": self.version,
            "spec": self.spec,
            "query": self.query,
            "base": self.base,
        }
        return orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


class Checkpoint:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or "/"
        self.store: Store = open_store(self.url)

    @property
    def query(self) -> str:
        """The folder of Spark's part, in the form that Spark expects."""
        return f"{self.store.spark_url}/{QUERY}"

    def record(self) -> Record | None:
        data = self.store.read(RECORD)
        if data is None:
            return None
        try:
            values = orjson.loads(data)
            version, query, base = values.get("semel", "?"), values.get("query"), values.get("base", 0)
            return Record(values["id"], values["spec"], version, query, base)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.url}/{RECORD} cannot be read ({error}). It holds the pipeline's id, by which its sink knows "
                "what is in already. It changes only with the pipeline's file and with a reset: restore this one file "
                "from a copy that is newer than those, or begin with a new checkpoint and a new table"
            ) from error

    def fresh(self, spec: Mapping[str, Any]) -> Record:
        """The record of a pipeline that has not run yet."""
        if self.newest("commits") >= 0 or self.newest("offsets") >= 0 or self.store.names(SEGMENTS):
            raise CheckpointError(
                f"{self.url} holds the progress of a query but no {RECORD}. Without the id in it, what the sink has "
                "already would be written again: restore this one file, or begin with a new checkpoint and a new table"
            )
        return Record(uuid4().hex, dict(spec), query=self.query_id() or str(uuid4()))

    def keep(self, record: Record) -> None:
        """Writes the query's id first, then the record. So if a record's query is missing, it was removed. If two
        drivers begin a pipeline at once, only one succeeds: the other would use another id, which the sinks do not
        know."""
        if record.query is not None and self.query_id() is None:
            self.store.put_if_absent(f"{QUERY}/{METADATA}", orjson.dumps({"id": record.query}))
        if record.query not in (None, self.query_id()):
            raise self._begun_by_another(f"{QUERY}/{METADATA}")
        kept = self.record()
        if kept is None:
            self.store.put_if_absent(RECORD, record.encode())
            kept = self.record()
        if kept is None or kept.id != record.id:
            raise self._begun_by_another(RECORD)
        self.store.put(RECORD, record.encode())

    def _begun_by_another(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.url}/{name} was written by another driver that has just begun this pipeline. One checkpoint is run "
            "by one driver at a time: stop one of the two, and start again"
        )

    def query_id(self) -> str | None:
        """The id of the query that Spark's part belongs to."""
        data = self.store.read(f"{QUERY}/{METADATA}")
        if data is None:
            return None
        try:
            return str(orjson.loads(data)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.url}/{QUERY}/{METADATA} cannot be read ({error}): it says which query Spark's progress is of. "
                f"{RESET}"
            ) from error

    def newest(self, folder: str) -> int:
        """The last batch in Spark's `offsets` (planned) or `commits` (done); -1 if there is none."""
        names = [name.rpartition("/")[2] for name in self.store.names(f"{QUERY}/{folder}")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One driver at a time. A bucket has no such lock: there, the sealed plan of a batch stops a second driver."""
        if not isinstance(self.store, LocalStore):
            yield
            return
        descriptor = self._locked(self.store)
        try:
            yield
        finally:
            os.close(descriptor)  # releases the lock; the file stays, so that all drivers lock the same one

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

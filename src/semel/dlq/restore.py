"""Restores messages from a snapshot to a dead-letter queue, each once, however often this is run.

The rules: a journal next to the file records each batch before it is sent and again afterwards; both are on disk before
the next step. So a second run after a crash sends what is missing. If the crash came during a send, nobody can know
whether that batch arrived: its messages are sent again, and the job says which they are. Their keys keep them from
being processed twice. A lock keeps two runs from restoring the same messages at the same time. In a FIFO group each
message is sent only after the one before it was accepted. Uploaded files are kept for 30 days, with their journals.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import IO, Final

import orjson

from semel.dlq import queues as listing
from semel.dlq import snapshots
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterMessage
from semel.errors import SemelError
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs.client import Client
from semel.sqs.client.admin import Admin
from semel.sqs.client.messages import Attribute, Entry, Sent
from semel.text import count

BATCH: Final = 10
JOURNAL: Final = ".restored"
_NO_GROUP: Final = "dead-letters"  # of messages without a group that go into a FIFO queue
_KEPT_FOR: Final = 30 * 86_400.0  # seconds
_KEPT: Final = 100  # uploaded files


class Restorer:
    """Restores one file: each message to the queue that it was in, or all to `queue`. `run` is a job's work."""

    def __init__(
        self,
        client: Client,
        source: Path | Iterable[bytes],
        queue: str = "",
        *,
        folder: Path,
        clock: Callable[[], float] = time.time,
        crash: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self._client = client
        self._folder = folder
        prune(folder, clock())
        self._path = source if isinstance(source, Path) else _spooled(source, folder)
        self._queue = queue
        self._clock = clock
        self._crash = crash
        # The whole file is read before anything is sent: if it is broken in the middle, nothing is sent.
        self._count = 0
        queues: set[str] = set()
        for message in snapshots.messages_in(self._path):
            self._count += 1
            queues.add(self._queue_of(message))
        if not self._count:
            raise snapshots.SnapshotError(f"{self._path}: it has no messages")
        self.queues = tuple(sorted(queues))

    @property
    def name(self) -> str:
        return str(self._path)

    def _queue_of(self, message: DeadLetterMessage) -> str:
        return self._queue or message.queue

    def run(self, job: Job) -> None:
        for name in self.queues:
            # Few people read a file before they restore it, so it may send to dead-letter queues only.
            info = listing.dead_letter_queue(self._client, name)
            if not self._queue and not info.sources:
                raise snapshots.SnapshotError(
                    f"{self._path.name} has messages for {info.name}, which is not the dead-letter queue of any queue, "
                    f"so nothing was sent; to send them there, use --to {info.name}"
                )
        holder = f"job {job.id} of {job.who or 'somebody'} (process {os.getpid()})"
        with contextlib.ExitStack() as stack:
            # A lock by content as well: a copy of the file, or an upload of it, has a journal of its own.
            stack.enter_context(_lock(_by_content(self._path, self._folder), self._path, holder))
            path = self._path.with_name(self._path.name + JOURNAL)
            where = {"endpoint": self._client.endpoint, "queue": self._queue}
            journal = stack.enter_context(contextlib.closing(_Journal(path, self._path, where, holder)))
            self._send_all(job, journal)

    def _send_all(self, job: Job, journal: _Journal) -> None:
        job.total = self._count
        if journal.done:
            job.log(f"skipped {count(len(journal.done), 'message')} that an earlier run sent")
        unknown = journal.begun - journal.done
        if unknown:
            job.log(
                f"an earlier run ended while it sent {len(unknown)}: whether they arrived cannot be known, so they are "
                f"sent again: {', '.join(sorted(unknown))}"
            )
        behind: dict[tuple[str, str], str] = {}  # the message that was not sent, by FIFO group
        for name, planned in self._batches(job, journal, behind):
            job.checkpoint()
            batch = self._missing(job, name, planned)
            if not batch:
                continue
            journal.begin([message.id for message in batch])
            self._crash("before_restore_send")
            target = self._client.queue(name)
            outcomes = target.send_many([entry(message, fifo=target.fifo) for message in batch])
            self._crash("after_restore_send")
            sent = [message.id for message, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Sent)]
            journal.finish(sent)
            job.add(sent=len(sent), failed=len(batch) - len(sent))
            for message, outcome in zip(batch, outcomes, strict=True):
                if not isinstance(outcome, Sent):
                    job.log(f"message {message.id} was not sent: {outcome.code}: {outcome.message}")
                    if target.fifo:
                        behind[name, message.group or _NO_GROUP] = message.id
        if job.counts.failed:
            waiting = "".join(f"; those of group {group} wait for message {id}" for (_, group), id in behind.items())
            raise SemelError(f"{job.counts.failed} messages were not sent{waiting}; run it again to send those")
        job.log(f"restored {count(job.counts.sent, 'message')} to {', '.join(self.queues)}")

    def _missing(self, job: Job, queue: str, batch: list[DeadLetterMessage]) -> list[DeadLetterMessage]:
        """Leaves out messages that an interrupted delete never deleted. Only Semel's broker shows which they are."""
        admin = Admin.of(self._client)
        if admin is None:
            return batch
        page = admin.peek(self._client.queue(queue).name, ids=[message.id for message in batch], bodies=False)
        there = {shown["MessageId"] for shown in page.messages}
        if there:
            job.add(skipped=len(there), matched=-len(there))
            job.log(f"skipped {count(len(there), 'message')} still in {queue}")
        return [message for message in batch if message.id not in there]

    def _batches(
        self, job: Job, journal: _Journal, behind: Mapping[tuple[str, str], str]
    ) -> Iterator[tuple[str, list[DeadLetterMessage]]]:
        """Batches in the file's order; each is for one queue, and has at most one message of each FIFO group."""
        for name, messages in groupby(snapshots.messages_in(self._path), key=self._queue_of):
            fifo = self._client.queue(name).fifo
            batch: list[DeadLetterMessage] = []
            for message in messages:
                group = message.group or _NO_GROUP
                if batch and (
                    len(batch) == BATCH or (fifo and any(group == (other.group or _NO_GROUP) for other in batch))
                ):
                    yield name, batch
                    batch = []
                job.add(scanned=1)
                if message.id in journal.done:
                    job.add(skipped=1)
                elif fifo and (name, group) in behind:
                    job.add(matched=1, failed=1)
                else:
                    job.add(matched=1)
                    batch.append(message)
            if batch:
                yield name, batch


def entry(message: DeadLetterMessage, *, fifo: bool) -> Entry:
    """The message as it was, with the same key, reason, error and source."""
    return Entry(
        message.body,
        attributes=_attributes(message) or None,
        group=message.group or (_NO_GROUP if fifo else None),
        # Not its own: if the message was sent within the last five minutes, SQS would drop the copy as a duplicate.
        dedup=f"restore-{message.id}" if fifo else None,
        trace=message.trace or None,
    )


def _attributes(message: DeadLetterMessage) -> dict[str, Attribute]:
    size = len(message.body.encode())
    if message.by_semel:
        about = own_attributes.DeadLetterDetails(
            key=message.key,
            reason=message.reason,
            error=message.error,
            attempts=message.attempts,
            message_id=message.original_id,
            queue=message.source,
            redrives=message.redrives,
        )
        return own_attributes.attributes(about, message.attributes, size)
    attributes = own_attributes.sent_back(
        message.attributes,
        size,
        key=message.key,
        message_id=message.original_id or message.id,
        queue=message.source,
        times=message.redrives,
    )
    return dict(message.attributes) if attributes is None else attributes


class _Journal:
    """Which messages of a file were sent, and which were about to be sent. Only one run can have it open."""

    def __init__(self, path: Path, restored: Path, where: dict[str, str], holder: str) -> None:
        self._path = path
        self.begun: set[str] = set()
        self.done: set[str] = set()
        self._file = _lock(path, restored)
        try:
            lines = path.read_bytes().split(b"\n")
            self._read(lines, where)
            if lines[-1]:
                self._file.write(b"\n")  # a run that was killed left half a line
            if lines == [b""]:
                self._write(where)
                snapshots.sync_folder(path.parent)
            self._write({"holder": holder})
        except OSError as error:
            self._file.close()
            raise _unwritable(path, error) from None
        except BaseException:
            self._file.close()
            raise

    def _read(self, lines: list[bytes], where: dict[str, str]) -> None:
        for number, text in enumerate(lines):
            try:
                content = orjson.loads(text)
            except ValueError:
                continue  # half a line of a run that was killed
            if number == 0 and content != where:
                raise snapshots.SnapshotError(
                    f"{self._path} records that this file was restored to {content.get('queue') or 'its own queues'} "
                    f"at {content.get('endpoint')}; to restore it elsewhere too, remove {self._path.name}"
                )
            self.begun.update(content.get("begun", ()))
            self.done.update(content.get("done", ()))

    def begin(self, ids: list[str]) -> None:
        self._write({"begun": ids})

    def finish(self, ids: list[str]) -> None:
        self._write({"done": ids})
        self.done.update(ids)

    def _write(self, content: Mapping[str, object]) -> None:
        try:
            self._file.write(orjson.dumps(content) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise snapshots.SnapshotError(f"{self._path} cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        self._file.close()


def _lock(path: Path, restored: Path, holder: str = "") -> IO[bytes]:
    """The file, locked until it is closed or the process ends. Raises SnapshotError, which says who has the lock."""
    try:
        while (file := _locked(path)) is None:
            pass  # it was pruned at this very moment: open it again
        if holder:
            file.write(orjson.dumps({"holder": holder}) + b"\n")
            file.flush()
    except BlockingIOError:
        raise snapshots.SnapshotError(
            f"{restored} is being restored already, by {_holder(path)}; nothing was sent. When that has ended, run it "
            "again: it sends what is missing"
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    return file


def _locked(path: Path) -> IO[bytes] | None:
    """None if the file was removed before it was locked. Raises BlockingIOError."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _holder(path: Path) -> str:
    for line in reversed(path.read_bytes().split(b"\n")):
        with contextlib.suppress(ValueError):
            if name := orjson.loads(line).get("holder"):
                return str(name)
    return "another process"


def _by_content(path: Path, folder: Path) -> Path:
    """The path of the lock for all files with this content."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("rb") as file:
            return folder / f"{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}.lock"
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(path: Path, error: OSError) -> snapshots.SnapshotError:
    return snapshots.SnapshotError(
        f"{path} cannot be written: {error.strerror or error}; it records what was sent: copy the file to a folder "
        "that this user may write to, and restore it from there"
    )


def _spooled(lines: Iterable[bytes], folder: Path) -> Path:
    """Writes an upload to a file that is named by its content: the same upload again finds the first one's journal."""
    digest = hashlib.sha256()
    draft = folder / f".{os.getpid()}-{time.monotonic_ns()}.part"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for text in lines:
                digest.update(text)
                file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path = folder / f"{digest.hexdigest()[:16]}.jsonl"
        draft.replace(path)
    except OSError as error:
        raise snapshots.SnapshotError(f"the upload cannot be kept in {folder}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def prune(folder: Path, now: float) -> None:
    """Removes uploads beyond the newest hundred or older than 30 days, and leftovers; never a file that is in use."""
    uploads = snapshots.newest_first(folder.glob("*.jsonl"))
    old = [path for path, at in uploads if now - at > _KEPT_FOR] + [path for path, _ in uploads[_KEPT:]]
    old += [path for path, at in snapshots.newest_first(folder.glob(".*.part")) if now - at > 86_400]
    old += [path for path, at in snapshots.newest_first(folder.glob("*.lock")) if now - at > _KEPT_FOR]
    for path in old:
        with contextlib.suppress(OSError, snapshots.SnapshotError), contextlib.ExitStack() as stack:
            journal = path if path.suffix == ".lock" else path.with_name(path.name + JOURNAL)
            if journal.exists():
                stack.enter_context(_lock(journal, path))
                journal.unlink()
            path.unlink(missing_ok=True)

"""Jobs: long operations on dead-letter queues that can be followed, paused, resumed and cancelled.

Work calls `checkpoint` wherever nothing is half done; only there it waits while the job is paused, and ends when it is
cancelled. Any process of this user can request that (see `job_control`), and learns whether the job has acknowledged
it. A job's state is on disk before its end is announced, and an older state never overwrites a newer one. A job whose
process is gone is interrupted, never running.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from semel.dlq.job_control import ACTIONS, HEARTBEAT, ControlFile, JobNotRunning, Process, alive, this_process
from semel.errors import SemelError

MAX_JOBS: Final = 200  # files of ended jobs beyond these are removed, the oldest first
_MAX_LINES: Final = 500
_WRITE_EVERY: Final = 1.0
_RATE_WINDOW: Final = 10.0
_POLL_EVERY: Final = 0.2  # seconds between two reads of the control files
_ACKNOWLEDGE_TIMEOUT: Final = 5.0  # seconds to wait for a job of another process
_WAIT_EVERY: Final = 0.5
_log: Final = logging.getLogger("semel.dlq")


class JobCancelled(SemelError):
    """The job was cancelled. Raised at a checkpoint, so nothing is half done."""


class JobStopped(SemelError):
    """The work itself ends the job early, for the reason in the text."""


class NoSuchJob(SemelError):
    """There is no job of this id."""


class State(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    CANARY = "canary"  # waits for the outcome of the canary messages
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # by itself: the canary failed, or too many messages returned
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # its process ended first

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED: Final = frozenset({State.DONE, State.CANCELLED, State.STOPPED, State.FAILED, State.INTERRUPTED})


@dataclass(slots=True)
class Counts:
    """`released`: claimed and released. `skipped`: matched, but left where it is for a reason. `returned`: sent, and
    back in the dead-letter queue."""

    scanned: int = 0
    matched: int = 0
    sent: int = 0
    deleted: int = 0
    failed: int = 0
    released: int = 0
    skipped: int = 0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    text: str


class JobRecord(msgspec.Struct):
    """A job as JSON: in its file, and in the answers of the API."""

    id: str
    kind: str
    queue: str
    plan: dict[str, Any]
    state: State
    counts: Counts
    total: int | None
    created: float
    started: float | None
    ended: float | None
    reason: str
    messages: list[Line]
    who: str = ""
    pausing: bool = False
    cancelling: bool = False
    rate: float | None = None
    eta: float | None = None
    result: dict[str, Any] = {}


class JobFile(JobRecord):
    """`acknowledged`: ids of the control requests that the job has carried out."""

    process: Process = Process()
    acknowledged: list[str] = []


class Job:
    """One job. Thread-safe; `to_json` is everything that can be known about it."""

    def __init__(
        self,
        kind: str,
        queue: str,
        plan: Mapping[str, Any] | None = None,
        *,
        who: str = "",
        id: str | None = None,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[Job], None] | None = None,
        on_checkpoint: Callable[[Job], None] | None = None,
    ) -> None:
        self.kind, self.queue, self.who = kind, queue, who
        self.plan: dict[str, Any] = dict(plan or {})
        self.created = clock()
        self.id = id or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(self.created))}-{uuid.uuid4().hex[:6]}"
        self.counts = Counts()
        self.total: int | None = None  # messages to process, as far as that is known
        self.started: float | None = None
        self.ended: float | None = None
        self.reason = ""  # why it ended
        self.messages: deque[Line] = deque(maxlen=_MAX_LINES)
        self.result: dict[str, Any] = {}  # such as the path of a snapshot
        self._clock = clock
        self._on_change, self._on_checkpoint = on_change, on_checkpoint
        self._state = State.PLANNED
        self._working = State.RUNNING  # its state when it is not paused
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._paused = self._cancelled = False
        self._over = threading.Event()
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)

    # For everybody.

    @property
    def state(self) -> State:
        with self._lock:
            return self._state

    def pause(self) -> bool:
        """Returns False if it has ended or is being cancelled."""
        with self._changed:
            if self._state.ended or self._cancelled:
                return False
            self._paused = True
            self._changed.notify_all()
        self._notify()
        return True

    def resume(self) -> bool:
        with self._changed:
            if self._state.ended:
                return False
            self._paused = False
            self._changed.notify_all()
        self._notify()
        return True

    def cancel(self) -> bool:
        """Ends it at its next checkpoint, also while it is paused."""
        with self._changed:
            if self._state.ended:
                return False
            self._cancelled = True
            self._changed.notify_all()
        return True

    @property
    def cancelling(self) -> bool:
        return self._cancelled

    @property
    def pausing(self) -> bool:
        return self._paused

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended by then. For jobs of other processes see `Jobs.wait`."""
        return self._over.wait(timeout)

    # For the work.

    def checkpoint(self, before_pause: Callable[[], None] | None = None) -> None:
        """Waits while the job is paused, after `before_pause`; raises JobCancelled once it was cancelled."""
        if self._on_checkpoint is not None:
            self._on_checkpoint(self)
        if not (self._paused or self._cancelled):
            return
        if before_pause is not None and not self._cancelled:
            before_pause()
        with self._changed:
            while self._paused and not self._cancelled:
                if self._state is not State.PAUSED:
                    self._state = State.PAUSED
                    self._samples.clear()
                    self._notify()
                self._changed.wait()
            if self._cancelled:
                raise JobCancelled(f"{self.kind} of {self.queue} was cancelled")
            self._state = self._working
        self._notify()

    def rest(self, seconds: float) -> None:
        """Waits, at most until it is paused or cancelled, which is left to the next checkpoint."""
        with self._changed:
            if seconds > 0 and not (self._paused or self._cancelled):
                self._changed.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Waits, and is a checkpoint."""
        self.rest(seconds)
        self.checkpoint()

    def working(self, state: State) -> None:
        """RUNNING or CANARY."""
        with self._lock:
            if self._state.ended:
                return
            self._working = self._state = state
        self._notify()

    def add(self, **amounts: int) -> None:
        """Adds to the counts, as in `add(sent=10, deleted=9)`."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.counts, name, getattr(self.counts, name) + amount)
            self._samples.append((time.monotonic(), self.counts.deleted or self.counts.sent))
        self._notify()

    def log(self, text: str) -> None:
        with self._lock:
            self.messages.append(Line(self._clock(), text))
        self._notify()

    def begin(self) -> None:
        with self._lock:
            self.started = self._clock()
            self._state = self._working = State.RUNNING
        self._notify()

    def end(self, state: State, reason: str = "") -> None:
        with self._changed:
            if self._state.ended:
                return
            self._state, self.reason, self.ended = state, reason, self._clock()
            if reason:
                self.messages.append(Line(self.ended, reason))
            # Still under the lock: who sees the end may exit, and the state must be on disk by then.
            self._notify()
            self._changed.notify_all()
        self._over.set()

    def run(self, work: Callable[[Job], None]) -> Self:
        """Runs the work on this thread. An error is the job's end, and is not raised."""
        self.begin()
        try:
            self.checkpoint()
            work(self)
        except JobCancelled:
            self.end(State.CANCELLED, "cancelled; the other messages stay in the queue")
        except JobStopped as error:
            self.end(State.STOPPED, str(error))
        except SemelError as error:
            self.end(State.FAILED, str(error))
        except KeyboardInterrupt:
            self.end(State.CANCELLED, "interrupted; claimed messages become visible again by themselves")
            raise
        except BaseException as error:
            _log.exception("job %s failed", self.id)
            self.end(State.FAILED, f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        else:
            self.end(State.DONE)
        return self

    # Its figures.

    @property
    def rate(self) -> float | None:
        """Messages a second, over the last ten seconds."""
        with self._lock:
            newest = time.monotonic() if not self._state.ended else (self._samples[-1][0] if self._samples else 0.0)
            recent = [sample for sample in self._samples if newest - sample[0] <= _RATE_WINDOW]
        if len(recent) < 2 or newest <= recent[0][0]:
            return None
        return (recent[-1][1] - recent[0][1]) / (newest - recent[0][0])

    @property
    def eta(self) -> float | None:
        """Seconds left, where the total and the rate are known."""
        rate, counts = self.rate, self.counts
        if self.total is None or not rate or self._state.ended:
            return None
        return max(0.0, (self.total - counts.deleted - counts.failed - counts.skipped) / rate)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            record = JobRecord(
                id=self.id,
                kind=self.kind,
                queue=self.queue,
                plan=self.plan,
                state=self._state,
                counts=self.counts,
                total=self.total,
                created=self.created,
                started=self.started,
                ended=self.ended,
                reason=self.reason,
                messages=list(self.messages),
                who=self.who,
                pausing=self._paused and not self._state.ended,
                cancelling=self._cancelled and not self._state.ended,
                rate=self.rate,
                eta=self.eta,
                result=self.result,
            )
            content: dict[str, Any] = msgspec.to_builtins(record)
            return content

    @classmethod
    def of(cls, record: JobRecord) -> Job:
        """A job as it was recorded: to be shown, not to be run."""
        job = cls(record.kind, record.queue, record.plan, who=record.who, id=record.id)
        job.created, job.started, job.ended = record.created, record.started, record.ended
        job.counts, job.total, job.reason, job.result = record.counts, record.total, record.reason, record.result
        job.messages.extend(record.messages)
        job._state, job._paused, job._cancelled = record.state, record.pausing, record.cancelling
        if job._state.ended:
            job._over.set()
        return job

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """Raises msgspec.ValidationError."""
        return cls.of(msgspec.convert(content, JobRecord))

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


@dataclass(frozen=True, slots=True)
class Control:
    """The answer to a request to pause, resume or cancel. `acknowledged`: the job has it, and obeys at its next
    checkpoint."""

    job: Job
    action: str
    acknowledged: bool

    def __str__(self) -> str:
        if not self.acknowledged:
            return f"asked to {self.action}; the job has not acknowledged it yet"
        if self.job.state.ended:
            return f"acknowledged; the job has ended: {self.job.state}"
        if self.action == "pause":
            return "paused" if self.job.state is State.PAUSED else "acknowledged; it pauses at its next checkpoint"
        return "acknowledged; " + ("it ends at its next checkpoint" if self.action == "cancel" else "it goes on")


class _Own:
    """What this process knows of a job that it runs."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job = job
        self.control = ControlFile(path)
        self.acknowledged: list[str] = []
        self.thread: threading.Thread | None = None
        self.version = -1  # of the state in the file
        self.written_at = 0.0
        self.written_state: State | None = None


@dataclass(slots=True)
class _CachedFile:
    """`stamp`: time, size and inode of the file that was read. `ended`: its job, if that can change no more."""

    stamp: tuple[int, int, int]
    record: JobFile | None
    ended: Job | None = None


class Jobs:
    """The jobs of this user: those that this process runs, and the files of all processes."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}
        self._versions = itertools.count()
        self._writing, self._applying = threading.Lock(), threading.Lock()
        self._poller: threading.Thread | None = None
        self._cache: dict[str, _CachedFile] = {}

    def create(self, kind: str, queue: str, plan: Mapping[str, Any] | None = None, *, who: str = "") -> Job:
        """A job that the caller runs: `job.run(work)`."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SemelError(
                f"{kind} of {queue} was not started: its job cannot be recorded in {self._folder}: "
                f"{error.strerror or error}; set SEMEL_STATE to a folder that this user may write to"
            ) from None
        job = Job(
            kind, queue, plan, who=who, clock=self._clock, on_change=self._on_change, on_checkpoint=self._apply_requests
        )
        with self._lock:
            self._own[job.id] = _Own(job, self._path(job.id))
        self._write(job)
        self._remove_old()
        with self._lock:
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="semel-jobs", daemon=True)
                self._poller.start()
        return job

    def start(
        self,
        kind: str,
        queue: str,
        work: Callable[[Job], None],
        plan: Mapping[str, Any] | None = None,
        *,
        who: str = "",
    ) -> Job:
        """Runs `work` on a thread of its own."""
        job = self.create(kind, queue, plan, who=who)
        thread = threading.Thread(target=job.run, args=(work,), name=f"semel-job-{job.id}", daemon=True)
        self._own[job.id].thread = thread
        thread.start()
        return job

    def get(self, id: str) -> Job:
        own = self._own.get(id)
        job = own.job if own is not None else self._load(self._path(id))
        if job is None:
            raise NoSuchJob(f"there is no job {id!r}; `semel jobs list` shows the last {MAX_JOBS}")
        return job

    def all(self) -> list[Job]:
        """The newest first."""
        jobs = {id: own.job for id, own in list(self._own.items())}
        paths = list(self._folder.glob("*.json"))
        for path in paths:
            if path.stem not in jobs and (job := self._load(path)) is not None:
                jobs[job.id] = job
        for name in set(self._cache) - {path.name for path in paths}:
            self._cache.pop(name, None)
        return sorted(jobs.values(), key=lambda job: (job.created, job.id), reverse=True)[:MAX_JOBS]

    def wait(
        self,
        id: str,
        timeout: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Job:
        """The job when it has ended, or as it is after `timeout` seconds. Polls the file of another process's job."""
        return polled(lambda: self.get(id), timeout, clock=clock, sleep=sleep)

    def close(self, timeout: float = 10.0) -> None:
        """Cancels the jobs of this process, and waits for them to end."""
        running = [own for own in self._own.values() if not own.job.state.ended]
        for own in running:
            own.job.cancel()
        until = time.monotonic() + timeout
        for own in running:
            if own.thread is not None:
                own.thread.join(max(0.0, until - time.monotonic()))

    # Pause, resume, cancel.

    def control(self, id: str, action: str, who: str = "", *, patience: float = _ACKNOWLEDGE_TIMEOUT) -> Control:
        """Requests this of the job, in whichever process it runs, and waits for its answer. Raises JobNotRunning."""
        if action not in ACTIONS:
            raise SemelError(f"unknown action {action!r} for job {id}; the actions are {', '.join(ACTIONS)}")
        job = self.get(id)
        control = ControlFile(self._path(id))
        if job.state.ended:
            control.remove()  # of a process that was killed before it read it
            raise _not_running(job, action)
        if id in self._own:
            if not _apply(job, action):
                raise _not_running(job, action)
            return Control(job, action, acknowledged=True)
        request = control.ask(action, who, self._clock())
        until = time.monotonic() + patience
        while True:
            file, job = self._file(self._path(id)), self.get(id)
            if file is not None and file.record is not None and request.id in file.record.acknowledged:
                return Control(job, action, acknowledged=True)
            if job.state.ended:
                control.remove()
                raise _not_running(job, action)
            if time.monotonic() >= until:
                return Control(job, action, acknowledged=False)
            time.sleep(_POLL_EVERY / 4)

    def _poll(self) -> None:
        """While jobs run here: carries out requests of other processes, and writes heartbeats."""
        while True:
            with self._lock:
                running = [own for own in self._own.values() if not own.job.state.ended]
                if not running:
                    self._poller = None
                    return
            for own in running:
                self._apply_requests(own.job)
                if not own.job.state.ended and time.monotonic() - own.written_at >= HEARTBEAT:
                    self._write(own.job)
            time.sleep(_POLL_EVERY)

    def _apply_requests(self, job: Job) -> None:
        """In order. They are acknowledged on disk before the work goes on."""
        with self._applying:
            own = self._own.get(job.id)
            requests = own.control.new() if own is not None else ()
            for request in requests:
                _apply(job, request.action)
                job.log(f"{request.who or 'somebody'} asked to {request.action} it")
                if own is not None:
                    own.acknowledged.append(request.id)
            if requests:
                self._write(job)

    # Files.

    def _path(self, id: str) -> Path:
        if not id or "/" in id or "\0" in id:
            raise NoSuchJob(f"{id!r} is not the id of a job")
        return self._folder / f"{id}.json"

    def _on_change(self, job: Job) -> None:
        own = self._own.get(job.id)
        if own is None:
            return
        if own.written_state is not job.state or time.monotonic() - own.written_at >= _WRITE_EVERY:
            self._write(job)

    def _write(self, job: Job) -> None:
        own = self._own.get(job.id)
        if own is None:
            return
        with job._lock:  # so that a higher version is a newer state
            version, content = next(self._versions), job.to_json()
        content |= {
            "process": msgspec.to_builtins(this_process(self._clock())),
            "acknowledged": list(own.acknowledged),
        }
        path = self._path(job.id)
        draft = path.with_suffix(f".{threading.get_ident()}.tmp")
        with self._writing:
            if version > own.version:
                try:
                    draft.write_bytes(msgspec.json.encode(content))
                    draft.replace(path)
                except OSError as error:
                    _log.warning("the state of job %s cannot be written to %s: %s", job.id, path, error)
                own.version = version
                own.written_at, own.written_state = time.monotonic(), State(content["state"])
        if content["state"] in _ENDED:
            own.control.remove()

    def _file(self, path: Path) -> _CachedFile | None:
        """The job file; read again only if it has changed."""
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            cached = self._cache.get(path.name)
            if cached is None or cached.stamp != stamp:
                cached = self._cache[path.name] = _CachedFile(stamp, _decode(path))
            return cached
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("job file %s cannot be read: %s", path, error)
            return None

    def _load(self, path: Path) -> Job | None:
        cached = self._file(path)
        if cached is None or cached.record is None:
            return None
        if cached.ended is not None:
            return cached.ended
        job = Job.of(cached.record)
        if job.state.ended:
            cached.ended = job
        elif not alive(cached.record.process, self._clock()):
            job.end(State.INTERRUPTED, "interrupted: its process is gone; run the command again for the rest")
            job.ended = None
        return job

    def _remove_old(self) -> None:
        paths = sorted(self._folder.glob("*.json"), key=lambda path: path.name, reverse=True)
        for path in paths[MAX_JOBS:]:
            own = self._own.get(path.stem)
            job = own.job if own is not None else self._load(path)
            if job is not None and not job.state.ended:
                continue
            path.unlink(missing_ok=True)
            ControlFile(path).remove()
            self._own.pop(path.stem, None)


def polled(
    get: Callable[[], Job],
    timeout: float | None,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Job:
    """The job when it has ended, or as it is after `timeout` seconds."""
    ends = None if timeout is None else clock() + timeout
    while True:
        job = get()
        left = _WAIT_EVERY if ends is None else min(_WAIT_EVERY, ends - clock())
        if job.state.ended or left <= 0:
            return job
        sleep(left)


def _decode(path: Path) -> JobFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobFile)
    except msgspec.DecodeError as error:
        _log.warning("%s is not a job file: %s", path, error)
        return None


def _apply(job: Job, action: str) -> bool:
    return {"pause": job.pause, "resume": job.resume, "cancel": job.cancel}[action]()


def _not_running(job: Job, action: str) -> JobNotRunning:
    if job.state is State.INTERRUPTED:
        return JobNotRunning(
            f"cannot {action} job {job.id}: its process is gone. Nothing is lost; run the {job.kind} of {job.queue} "
            "again for the rest"
        )
    if not job.state.ended:
        return JobNotRunning(f"cannot {action} job {job.id}: it is being cancelled")
    return JobNotRunning(f"cannot {action} job {job.id}: it has already ended: {job.state}")

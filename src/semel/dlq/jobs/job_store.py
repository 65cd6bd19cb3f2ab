"""The jobs of a user: those that this process runs, and the files of all processes.

Any process of this user can request that a job pauses, resumes or is cancelled, and learns whether the job has
acknowledged it. A job's state is on disk before its end is announced, and an older state never overwrites a newer one.
A job whose process is gone is interrupted, never running.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from semel.dlq.jobs.job import Job, JobRecord, State
from semel.dlq.jobs.job_control import ACTIONS, HEARTBEAT, ControlFile, JobNotRunning, Process, alive, this_process
from semel.errors import SemelError

MAX_JOBS: Final = 200  # files of ended jobs beyond these are removed, the oldest first
_WRITE_EVERY: Final = 1.0
_POLL_EVERY: Final = 0.2  # seconds between two reads of the control files
_ACKNOWLEDGE_TIMEOUT: Final = 5.0  # seconds to wait for a job of another process
_WAIT_EVERY: Final = 0.5
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_log: Final = logging.getLogger("semel.dlq")


class NoSuchJob(SemelError):
    """There is no job with this id. List the jobs: `semel jobs list`."""


class JobFile(JobRecord):
    """`acknowledged`: ids of the control requests that the job has carried out."""

    process: Process = Process()
    acknowledged: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Control:
    """The answer to a request to pause, resume or cancel. `acknowledged`: the job has the request, and carries it out
    at its next checkpoint."""

    job: Job
    action: str
    acknowledged: bool

    @property
    def carried_out(self) -> bool:
        """Whether the job has reached that checkpoint."""
        if self.action == "cancel" or self.job.state.ended:
            return self.job.state.ended
        return (self.job.state is State.PAUSED) == (self.action == "pause")

    def __str__(self) -> str:
        if not self.acknowledged:
            return f"asked to {self.action}; the job has not acknowledged it yet"
        if self.job.state.ended:
            return f"acknowledged; the job has ended: {self.job.state}"
        if self.action == "pause":
            return "paused" if self.job.state is State.PAUSED else "acknowledged; it pauses at its next checkpoint"
        return "acknowledged; " + ("it ends at its next checkpoint" if self.action == "cancel" else "it goes on")


class _OwnJob:
    """A job that this process runs, with its file and the requests for it."""

    def __init__(self, job: Job, path: Path, clock: Callable[[], float]) -> None:
        self.job, self._path, self._clock = job, path, clock
        self.control = ControlFile(path)
        self.thread: threading.Thread | None = None
        self._acknowledged: list[str] = []
        self._versions = itertools.count()
        self._version = -1  # of the state in the file
        self._written_at = 0.0
        self._written_state: State | None = None
        self._writing, self._applying = threading.Lock(), threading.Lock()
        job.on_change, job.on_checkpoint = self._on_change, self.apply_requests

    def beat(self) -> None:
        if not self.job.state.ended and time.monotonic() - self._written_at >= HEARTBEAT:
            self.write()

    def apply_requests(self) -> None:
        """Applies the requests in order, and acknowledges them on disk before the work continues."""
        with self._applying:
            requests = self.control.new()
            for request in requests:
                _apply(self.job, request.action)
                self.job.log(f"{request.who or 'somebody'} asked to {request.action} it")
                self._acknowledged.append(request.id)
            if requests:
                self.write()

    def _on_change(self) -> None:
        if self._written_state is not self.job.state or time.monotonic() - self._written_at >= _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        job = self.job
        with job._lock:  # so that a higher version is a newer state
            version, content, state = next(self._versions), job.to_json(), job.state
        content["process"] = msgspec.to_builtins(this_process(self._clock()))
        content["acknowledged"] = list(self._acknowledged)
        draft = self._path.with_suffix(f".{threading.get_ident()}.tmp")
        with self._writing:
            if version > self._version:
                try:
                    draft.write_bytes(msgspec.json.encode(content))
                    draft.replace(self._path)
                except OSError as error:
                    _log.warning("the state of job %s cannot be written to %s: %s", job.id, self._path, error)
                self._version = version
                self._written_at, self._written_state = time.monotonic(), state
        if state.ended:
            self.control.remove()


@dataclass(slots=True)
class _CachedFile:
    """`stamp`: time, size and inode of the file that was read. `ended`: its job, if that can no longer change."""

    stamp: tuple[int, int, int]
    record: JobFile | None
    ended: Job | None = None


class Jobs:
    """The jobs of this user: those that this process runs, and the files of all processes."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, _OwnJob] = {}
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
        job = Job(kind, queue, plan, who=who, clock=self._clock)
        own = _OwnJob(job, self._path(job.id), self._clock)
        with self._lock:
            self._own[job.id] = own
        own.write()
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
        """All jobs, the newest first."""
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
        """Sends the request to the job, in whichever process it runs, and waits until it is carried out, or for
        `patience` seconds. Raises JobNotRunning."""
        if action not in ACTIONS:
            raise SemelError(f"unknown action {action!r} for job {id}; the actions are {', '.join(ACTIONS)}")
        job = self.get(id)
        control = ControlFile(self._path(id))
        if job.state.ended:
            control.remove()  # left over if its process was killed before it read the requests
            raise _not_running(job, action)
        if id in self._own:
            if not _apply(job, action):
                raise _not_running(job, action)
            return Control(job, action, acknowledged=True)
        request = control.ask(action, who, self._clock())
        until = time.monotonic() + patience
        while True:
            job = self.get(id)  # read before the file: a job that this request ended has acknowledged it there
            file = self._file(self._path(id))
            acknowledged = file is not None and file.record is not None and request.id in file.record.acknowledged
            if job.state.ended and not acknowledged:
                control.remove()
                raise _not_running(job, action)
            answer = Control(job, action, acknowledged)
            if (acknowledged and answer.carried_out) or time.monotonic() >= until:
                return answer
            time.sleep(_POLL_EVERY / 4)

    def _poll(self) -> None:
        """While jobs run here, carries out the requests of other processes and writes heartbeats."""
        while True:
            with self._lock:
                running = [own for own in self._own.values() if not own.job.state.ended]
                if not running:
                    self._poller = None
                    return
            for own in running:
                own.apply_requests()
                own.beat()
            time.sleep(_POLL_EVERY)

    # Files.

    def _path(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise NoSuchJob(f"{id!r} is not the id of a job")
        return self._folder / f"{id}.json"

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
    except (ValueError, RecursionError) as error:
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

"""Long pieces of work on dead letters: seen while they run, paused, resumed, cancelled, and remembered afterwards.

The rules: whoever does the work calls `checkpoint` wherever nothing is half done; there, and only there, it waits while
the job is paused and ends when it is cancelled. Any process of this user can ask for that (see `job_control`), and is
told whether the job has acknowledged it. What a job says of itself is on disk before its end is announced. A job whose
process is gone is shown as interrupted, never as running.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from semel.dlq.job_control import ACTIONS, HEARTBEAT, ControlFile, JobNotRunning, alive, this_process
from semel.errors import SemelError

KEPT: Final = 200
_LINES_KEPT: Final = 500
_WRITE_EVERY: Final = 1.0
_RATE_SPAN: Final = 10.0  # seconds that the present rate is taken over
_LISTEN_EVERY: Final = 0.2  # seconds between two looks for what other processes ask
_ACKNOWLEDGED_IN: Final = 5.0  # seconds that are waited for a job of another process to acknowledge
_log: Final = logging.getLogger("semel.dlq")


class JobCancelled(SemelError):
    """The job was cancelled; raised at a checkpoint, after which nothing is half done."""


class JobStopped(SemelError):
    """The job ends before its time, for a reason that the work itself gives."""


class NoSuchJob(SemelError):
    """There is no job of this id."""


class State(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    CANARY = "canary"  # waits for the fate of those that went first
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # by itself: the canary failed, or too many came back
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # its process ended before it did

    @property
    def ended(self) -> bool:
        return self in _ENDS


_ENDS: Final = frozenset({State.DONE, State.CANCELLED, State.STOPPED, State.FAILED, State.INTERRUPTED})


@dataclass(slots=True)
class Counts:
    """`returned`: sent, and back in the dead-letter queue. `skipped`: matched, and left where it is for a reason."""

    looked_at: int = 0
    matched: int = 0
    sent: int = 0
    deleted: int = 0
    failed: int = 0
    given_back: int = 0
    skipped: int = 0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    text: str


class Job:
    """One piece of work. Thread-safe; `to_json` is all there is to see of it."""

    def __init__(
        self,
        kind: str,
        queue: str,
        plan: Mapping[str, Any] | None = None,
        *,
        who: str = "",
        id: str | None = None,
        clock: Callable[[], float] = time.time,
        changed: Callable[[Job], None] | None = None,
        listen: Callable[[Job], None] | None = None,
    ) -> None:
        self.kind, self.queue, self.who = kind, queue, who
        self.plan: dict[str, Any] = dict(plan or {})
        self.created = clock()
        self.id = id or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(self.created))}-{uuid.uuid4().hex[:6]}"
        self.counts = Counts()
        self.total: int | None = None  # how many there are to do, as far as that is known
        self.started: float | None = None
        self.ended: float | None = None
        self.reason = ""  # why it ended as it did
        self.messages: deque[Line] = deque(maxlen=_LINES_KEPT)
        self.result: dict[str, Any] = {}  # what the work wants to tell beyond counts, such as a file's name
        self._clock = clock
        self._changed = changed
        self._listen = listen  # carries out what other processes ask for
        self._state = State.PLANNED
        self._working = State.RUNNING  # what it is when it is not paused
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._paused = self._cancelled = False
        self._over = threading.Event()
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)

    # What anybody may do.

    @property
    def state(self) -> State:
        return self._state

    def pause(self) -> bool:
        """Whether it will: a job that has ended cannot be paused."""
        with self._moved:
            if self._state.ended or self._cancelled:
                return False
            self._paused = True
            self._moved.notify_all()
        self._tell()
        return True

    def resume(self) -> bool:
        with self._moved:
            if self._state.ended:
                return False
            self._paused = False
            self._moved.notify_all()
        self._tell()
        return True

    def cancel(self) -> bool:
        """Ends it at its next checkpoint, also while it is paused."""
        with self._moved:
            if self._state.ended:
                return False
            self._cancelled = True
            self._moved.notify_all()
        return True

    @property
    def cancelling(self) -> bool:
        return self._cancelled

    @property
    def pausing(self) -> bool:
        return self._paused

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, by then."""
        return self._over.wait(timeout)

    # What the work does.

    def checkpoint(self, before_pause: Callable[[], None] | None = None) -> None:
        """Waits while the job is paused, after `before_pause`; raises JobCancelled once it was cancelled."""
        if self._listen is not None:
            self._listen(self)
        if not (self._paused or self._cancelled):
            return
        if before_pause is not None and not self._cancelled:
            before_pause()
        with self._moved:
            while self._paused and not self._cancelled:
                if self._state is not State.PAUSED:
                    self._state = State.PAUSED
                    self._samples.clear()
                    self._tell()
                self._moved.wait()
            if self._cancelled:
                raise JobCancelled(f"{self.kind} of {self.queue} was cancelled")
            self._state = self._working
        self._tell()

    def rest(self, seconds: float) -> None:
        """Waits so long, or until it is paused or cancelled, which is then for the caller to see to."""
        with self._moved:
            if seconds > 0 and not (self._paused or self._cancelled):
                self._moved.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """The same, and a checkpoint."""
        self.rest(seconds)
        self.checkpoint()

    def working(self, state: State) -> None:
        """RUNNING or CANARY."""
        with self._lock:
            self._working = self._state = state
        self._tell()

    def add(self, **amounts: int) -> None:
        """Counts up, as in `add(sent=10, deleted=9)`."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.counts, name, getattr(self.counts, name) + amount)
            self._samples.append((time.monotonic(), self.counts.deleted or self.counts.sent))
        self._tell()

    def say(self, text: str) -> None:
        with self._lock:
            self.messages.append(Line(self._clock(), text))
        self._tell()

    def begin(self) -> None:
        with self._lock:
            self.started = self._clock()
            self._state = self._working = State.RUNNING
        self._tell()

    def end(self, state: State, reason: str = "") -> None:
        with self._moved:
            if self._state.ended:
                return
            self._state, self.reason, self.ended = state, reason, self._clock()
            if reason:
                self.messages.append(Line(self.ended, reason))
            self._moved.notify_all()
        self._tell()
        self._over.set()

    def run(self, work: Callable[[Job], None]) -> Self:
        """The work from beginning to end on this thread; however it ends is this job's end, and is not raised."""
        self.begin()
        try:
            self.checkpoint()
            work(self)
        except JobCancelled:
            self.end(State.CANCELLED, "cancelled; what is left stays in the queue")
        except JobStopped as error:
            self.end(State.STOPPED, str(error))
        except SemelError as error:
            self.end(State.FAILED, str(error))
        except KeyboardInterrupt:
            self.end(State.CANCELLED, "interrupted; what was in hand comes back by itself")
            raise
        except Exception as error:  # noqa: BLE001 - a job's end is always written down
            _log.exception("job %s failed", self.id)
            self.end(State.FAILED, f"{type(error).__name__}: {error}")
        else:
            self.end(State.DONE)
        return self

    # What is seen.

    @property
    def rate(self) -> float | None:
        """Messages a second, just now."""
        with self._lock:
            newest = time.monotonic() if not self._state.ended else (self._samples[-1][0] if self._samples else 0.0)
            recent = [sample for sample in self._samples if newest - sample[0] <= _RATE_SPAN]
        if len(recent) < 2 or newest <= recent[0][0]:
            return None
        return (recent[-1][1] - recent[0][1]) / (newest - recent[0][0])

    @property
    def eta(self) -> float | None:
        """Seconds to go, if that can be told."""
        rate, counts = self.rate, self.counts
        if self.total is None or not rate or self._state.ended:
            return None
        return max(0.0, (self.total - counts.deleted - counts.failed - counts.skipped) / rate)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {
                "id": self.id,
                "kind": self.kind,
                "queue": self.queue,
                "plan": self.plan,
                "who": self.who,
                "state": self._state.value,
                "pausing": self._paused and not self._state.ended,
                "cancelling": self._cancelled and not self._state.ended,
                "counts": asdict(self.counts),
                "total": self.total,
                "rate": self.rate,
                "eta": self.eta,
                "created": self.created,
                "started": self.started,
                "ended": self.ended,
                "reason": self.reason,
                "result": self.result,
                "messages": [asdict(line) for line in self.messages],
            }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """A job as it was written down: to be shown, not to be run."""
        job = cls(content["kind"], content["queue"], content["plan"], who=content.get("who", ""), id=content["id"])
        job.created, job.started, job.ended = content["created"], content["started"], content["ended"]
        job.counts = Counts(**content["counts"])
        job.total, job.reason, job.result = content["total"], content["reason"], content.get("result", {})
        job.messages.extend(Line(**line) for line in content["messages"])
        job._state = State(content["state"])
        job._paused, job._cancelled = bool(content.get("pausing")), bool(content.get("cancelling"))
        if job._state.ended:
            job._over.set()
        return job

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self)


@dataclass(frozen=True, slots=True)
class Control:
    """What came of a request to pause, resume or cancel. `acknowledged`: the job knows, and obeys at its next
    checkpoint; if not, it was asked and has not said so yet."""

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


class Jobs:
    """The jobs of this user: those that this process runs, and those that were written down by any, the last 200."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, Job] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._written: dict[str, tuple[float, State]] = {}
        self._order = itertools.count()
        self._newest: dict[str, int] = {}  # of each job, the newest of its notes that is on disk
        self._writing, self._obeying = threading.Lock(), threading.Lock()
        self._listening: threading.Thread | None = None
        self._controls: dict[str, ControlFile] = {}
        self._acknowledged: dict[str, list[str]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SemelError(f"jobs cannot be written down in {folder}: {error.strerror or error}") from None

    def create(self, kind: str, queue: str, plan: Mapping[str, Any] | None = None, *, who: str = "") -> Job:
        """A job that is written down from now on, and that the caller runs: `job.run(work)`."""
        job = Job(kind, queue, plan, who=who, clock=self._clock, changed=self._keep, listen=self._obey)
        with self._lock:
            self._own[job.id] = job
            self._controls[job.id] = ControlFile(self._path(job.id))
            self._acknowledged[job.id] = []
        self._write(job)
        self._forget_old()
        with self._lock:
            if self._listening is None:
                self._listening = threading.Thread(target=self._attend, name="semel-jobs", daemon=True)
                self._listening.start()
        return job

    def start(
        self,
        kind: str,
        queue: str,
        work: Callable[[Job], None],
        plan: Mapping[str, Any] | None = None,
        *,
        who: str = "",
        then: Callable[[Job], None] | None = None,
    ) -> Job:
        """Runs `work` on a thread of its own; `then` is called there at its end, whichever that was."""
        job = self.create(kind, queue, plan, who=who)

        def run() -> None:
            job.run(work)
            if then is not None:
                then(job)

        thread = threading.Thread(target=run, name=f"semel-job-{job.id}", daemon=True)
        self._threads[job.id] = thread
        thread.start()
        return job

    def get(self, id: str) -> Job:
        own = self._own.get(id)
        if own is not None:
            return own
        path = self._path(id)
        found = self._read(path) if path.parent == self._folder else None
        if found is None:
            raise NoSuchJob(f"there is no job {id!r} any more; `semel dlq jobs` lists those that there are")
        return found

    def all(self) -> list[Job]:
        """The newest first."""
        found = dict(self._own)
        for path in self._folder.glob("*.json"):
            if path.stem not in found and (job := self._read(path)) is not None:
                found[job.id] = job
        return sorted(found.values(), key=lambda job: (job.created, job.id), reverse=True)[:KEPT]

    def close(self, timeout: float = 10.0) -> None:
        """Cancels what runs here, and waits for its end."""
        running = [job for job in self._own.values() if not job.state.ended]
        for job in running:
            job.cancel()
        until = time.monotonic() + timeout
        for job in running:
            thread = self._threads.get(job.id)
            if thread is not None:
                thread.join(max(0.0, until - time.monotonic()))

    # Pausing, resuming, cancelling.

    def control(self, id: str, action: str, who: str = "", *, patience: float = _ACKNOWLEDGED_IN) -> Control:
        """Asks the job, in whichever process it runs, and says what is known then. Raises JobNotRunning."""
        if action not in ACTIONS:
            raise SemelError(f"a job can be told to pause, resume or cancel, not {action!r}")
        job = self.get(id)
        control = ControlFile(self._path(id))
        if job.state.ended:
            control.remove()  # of a process that was killed before it could read it
            raise _not_running(job, action)
        if id in self._own:
            if not {"pause": job.pause, "resume": job.resume, "cancel": job.cancel}[action]():
                raise _not_running(job, action)
            return Control(job, action, acknowledged=True)
        request = control.ask(action, who, self._clock())
        until = time.monotonic() + patience
        while True:
            job, acknowledged = self._noted(id)
            if request.id in acknowledged:
                return Control(job, action, acknowledged=True)
            if job.state.ended:
                control.remove()
                raise _not_running(job, action)
            if time.monotonic() >= until:
                return Control(job, action, acknowledged=False)
            time.sleep(_LISTEN_EVERY / 4)

    def _attend(self) -> None:
        """While a job of this process runs: obeys what others ask of it, and shows them that it is alive."""
        while True:
            with self._lock:
                running = [job for job in self._own.values() if not job.state.ended]
                if not running:
                    self._listening = None
                    return
            for job in running:
                self._obey(job)
                if not job.state.ended and time.monotonic() - self._written.get(job.id, (0.0, None))[0] >= HEARTBEAT:
                    self._write(job)
            time.sleep(_LISTEN_EVERY)

    def _obey(self, job: Job) -> None:
        """In the order in which it was asked; on disk before anything else is done."""
        with self._obeying:
            control = self._controls.get(job.id)
            requests = control.new() if control is not None else ()
            for request in requests:
                {"pause": job.pause, "resume": job.resume, "cancel": job.cancel}[request.action]()
                job.say(f"{request.who or 'somebody'} asked to {request.action} it")
                self._acknowledged[job.id].append(request.id)
            if requests:
                self._write(job)

    def _noted(self, id: str) -> tuple[Job, Sequence[str]]:
        """The job as its process noted it last, and which requests that had acknowledged by then."""
        try:
            acknowledged = json.loads(self._path(id).read_text()).get("acknowledged", ())
        except (OSError, ValueError):
            acknowledged = ()
        return self.get(id), acknowledged

    # Writing down.

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _keep(self, job: Job) -> None:
        at, state = self._written.get(job.id, (0.0, None))
        if state is not job.state or time.monotonic() - at >= _WRITE_EVERY:
            self._write(job)

    def _write(self, job: Job) -> None:
        # Several threads note one job: none may put an older state in the place of a newer one.
        with job._lock:
            order, content = next(self._order), job.to_json()
        content |= {"process": this_process(self._clock()), "acknowledged": list(self._acknowledged.get(job.id, ()))}
        path = self._path(job.id)
        draft = path.with_suffix(f".{threading.get_ident()}.tmp")
        with self._writing:
            if order > self._newest.get(job.id, -1):
                try:
                    draft.write_text(json.dumps(content, ensure_ascii=False))
                    draft.replace(path)
                except OSError as error:
                    _log.warning("job %s cannot be written down in %s: %s", job.id, self._folder, error)
                self._newest[job.id] = order
                self._written[job.id] = (time.monotonic(), State(content["state"]))
        if content["state"] in _ENDS and (control := self._controls.get(job.id)) is not None:
            control.remove()

    def _read(self, path: Path) -> Job | None:
        try:
            content = json.loads(path.read_text())
            job = Job.from_json(content)
            process = content.get("process", {})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s is no job that can be read: %s", path, error)
            return None
        if not job.state.ended and not alive(process, self._clock()):
            job.end(State.INTERRUPTED, "interrupted: its process ended; nothing is lost, run it again")
            job.ended = None
        return job

    def _forget_old(self) -> None:
        paths = sorted(self._folder.glob("*.json"), key=lambda path: path.name, reverse=True)
        for path in paths[KEPT:]:
            if self._own.get(path.stem) is None or self._own[path.stem].state.ended:
                path.unlink(missing_ok=True)
                ControlFile(path).remove()
                for known in (
                    self._own,
                    self._written,
                    self._threads,
                    self._newest,
                    self._controls,
                    self._acknowledged,
                ):
                    known.pop(path.stem, None)


def _not_running(job: Job, action: str) -> JobNotRunning:
    if job.state is State.INTERRUPTED:
        return JobNotRunning(
            f"job {job.id} cannot be asked to {action}: its process is gone. Nothing is lost; run the {job.kind} of "
            f"{job.queue} again for the rest"
        )
    if not job.state.ended:
        return JobNotRunning(f"job {job.id} cannot be asked to {action}: it is being cancelled")
    return JobNotRunning(f"job {job.id} cannot be asked to {action}: it has already ended: {job.state}")

"""A job: a long operation on a dead-letter queue that can be followed, paused, resumed and cancelled.

The work calls `checkpoint` wherever nothing is half done. Only there does it wait while the job is paused, and end when
it is cancelled.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from semel.errors import SemelError

_MAX_LINES: Final = 500
_RATE_WINDOW: Final = 10.0
_log: Final = logging.getLogger("semel.dlq")


class JobCancelled(SemelError):
    """The job was cancelled. Raised at a checkpoint, so nothing is half done. Start it again for the rest."""


class JobStopped(SemelError):
    """The work itself ended the job early; the text says why. Remove the reason, then start the job again for the
    rest."""


class State(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    CANARY = "canary"  # waits for the outcome of the canary messages
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    STOPPED = "stopped"  # by itself: the canary failed, or too many messages returned
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # its process ended before the job

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
    """A job as JSON: in its file, and in the answers of the API. Each field is an attribute of `Job`."""

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


def _nothing() -> None:
    pass


class Job:
    """One job. Thread-safe. `to_json` returns everything that can be known about it."""

    def __init__(
        self,
        kind: str,
        queue: str,
        plan: Mapping[str, Any] | None = None,
        *,
        who: str = "",
        id: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.kind, self.queue, self.who = kind, queue, who
        self.plan: dict[str, Any] = dict(plan or {})
        self.created = clock()
        self.id = id or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(self.created))}-{uuid.uuid4().hex[:6]}"
        self.counts = Counts()
        self.total: int | None = None  # messages to process, if known
        self.started: float | None = None
        self.ended: float | None = None
        self.reason = ""  # why it ended
        self.messages: list[Line] = []
        self.pausing = self.cancelling = False  # requested, and carried out at the next checkpoint
        self.result: dict[str, Any] = {}  # such as the path of a snapshot
        self._clock = clock
        self.on_change: Callable[[], None] = _nothing
        self.on_checkpoint: Callable[[], None] = _nothing
        self._state = State.PLANNED
        self._working = State.RUNNING  # its state when it is not paused
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)

    # For callers.

    @property
    def state(self) -> State:
        with self._lock:
            return self._state

    def pause(self) -> bool:
        """Requests a pause. Returns False if the job has ended or is being cancelled."""
        return not self.cancelling and self._request("pausing", True)

    def resume(self) -> bool:
        return self._request("pausing", False)

    def cancel(self) -> bool:
        """Ends the job at its next checkpoint, even while it is paused."""
        return self._request("cancelling", True)

    def _request(self, name: str, value: bool) -> bool:
        with self._changed:
            if self._state.ended:
                return False
            setattr(self, name, value)
            self._changed.notify_all()
        self.on_change()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end; returns whether the job has ended. For jobs of other processes see `Jobs.wait`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state.ended, timeout)

    # For the work.

    def checkpoint(self, before_pause: Callable[[], None] | None = None) -> None:
        """If the job is paused, calls `before_pause` and waits. Raises JobCancelled if it was cancelled."""
        self.on_checkpoint()
        if not (self.pausing or self.cancelling):
            return
        if before_pause is not None and not self.cancelling:
            before_pause()
        with self._changed:
            while self.pausing and not self.cancelling:
                if self._state is not State.PAUSED:
                    self._state = State.PAUSED
                    self._samples.clear()
                    self.on_change()
                self._changed.wait()
            if self.cancelling:
                raise JobCancelled(f"{self.kind} of {self.queue} was cancelled")
            self._state = self._working
        self.on_change()

    def rest(self, seconds: float) -> None:
        """Waits, at most until a pause or a cancel is requested; the next checkpoint carries that out."""
        with self._changed:
            if seconds > 0 and not (self.pausing or self.cancelling):
                self._changed.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Waits, then calls `checkpoint`."""
        self.rest(seconds)
        self.checkpoint()

    def working(self, state: State) -> None:
        """Sets the state to RUNNING or CANARY."""
        with self._lock:
            if self._state.ended:
                return
            self._working = self._state = state
        self.on_change()

    def add(self, **amounts: int) -> None:
        """Adds to the counts, as in `add(sent=10, deleted=9)`."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.counts, name, getattr(self.counts, name) + amount)
            self._samples.append((time.monotonic(), self.counts.deleted or self.counts.sent))
        self.on_change()

    def log(self, text: str) -> None:
        with self._lock:
            self.messages.append(Line(self._clock(), text))
            del self.messages[:-_MAX_LINES]
        self.on_change()

    def begin(self) -> None:
        with self._lock:
            self.started = self._clock()
            self._state = self._working = State.RUNNING
        self.on_change()

    def end(self, state: State, reason: str = "") -> None:
        with self._changed:
            if self._state.ended:
                return
            self._state, self.reason, self.ended = state, reason, self._clock()
            self.pausing = self.cancelling = False
            if reason:
                self.messages.append(Line(self.ended, reason))
            # Still under the lock: whoever sees the end may exit, so the state must be on disk by then.
            self.on_change()
            self._changed.notify_all()

    def run(self, work: Callable[[Job], None]) -> Self:
        """Runs the work on this thread. An error ends the job, and is not raised."""
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
        """Seconds left, if the total and the rate are known."""
        rate, counts = self.rate, self.counts
        if self.total is None or not rate or self._state.ended:
            return None
        return max(0.0, (self.total - counts.deleted - counts.failed - counts.skipped) / rate)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            content: dict[str, Any] = msgspec.to_builtins(
                {name: getattr(self, name) for name in JobRecord.__struct_fields__}
            )
            return content

    @classmethod
    def of(cls, record: JobRecord) -> Job:
        """A job as it was recorded: to be shown, not to be run."""
        job = cls(record.kind, record.queue, id=record.id)
        job._state = record.state
        for name in set(JobRecord.__struct_fields__) - {"state", "rate", "eta"}:
            setattr(job, name, getattr(record, name))
        return job

"""A job on a terminal until its end: a bar that moves, keys to pause and cancel, and Ctrl-C that ends it in order.

The rule: the first Ctrl-C cancels the job, which gives back what it has in hand; only the second ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

from semel.cli.dlq_text import plain, span

if TYPE_CHECKING:
    from semel.cli.dlq_options import AnyService
    from semel.dlq.jobs import Job, Line

_ERASE: Final = "\r\x1b[K"
_TICK: Final = 0.1
_REMOTE_TICK: Final = 0.5
_SELDOM: Final = 5.0  # seconds between lines where there is no terminal


def follow(service: AnyService, job: Job, *, quiet: bool = False, stream: TextIO | None = None) -> Job:
    """The job as it is at its end."""
    screen = _Screen(sys.stderr if stream is None else stream, quiet)
    last = time.monotonic()
    with _interrupts() as asked, _keys(screen) as key:
        cancelled = False
        while True:
            job = service.job(job.id)
            screen.news(job)
            if job.state.ended:
                break
            if asked() and not cancelled:
                cancelled = True
                screen.say("cancelling: what is in hand is given back; Ctrl-C again ends it at once")
                _control(service, job, "cancel")
            if pressed := key():
                _carry_out(service, job, pressed, screen)
            if screen.moves or time.monotonic() - last >= _SELDOM:
                last = time.monotonic()
                screen.draw(job)
            job.wait(_REMOTE_TICK if service.remote else _TICK)
    screen.erase()
    return job


def _carry_out(service: AnyService, job: Job, pressed: str, screen: _Screen) -> None:
    if pressed == "p":
        action = "resume" if job.to_json()["pausing"] else "pause"
        _control(service, job, action)
        screen.say("going on" if action == "resume" else "pausing; p goes on, c cancels")
    elif pressed == "c":
        screen.say("cancelling: what is in hand is given back")
        _control(service, job, "cancel")


def _control(service: AnyService, job: Job, action: str) -> None:
    from semel.dlq.job_control import JobNotRunning

    with contextlib.suppress(JobNotRunning):  # it has just ended, which is seen next
        service.control(job.id, action)


def summary(job: Job) -> str:
    """One line for the end."""
    counts = job.counts
    parts = [
        f"{value:,} {name}"
        for name, value in (
            ("matched", counts.matched),
            ("sent", counts.sent),
            ("deleted", counts.deleted),
            ("skipped", counts.skipped),
            ("failed", counts.failed),
            ("came back", counts.returned),
        )
        if value
    ]
    took = f" in {span(job.ended - job.started)}" if job.ended and job.started and job.ended - job.started >= 1 else ""
    return f"{job.kind} of {job.queue}: {job.state}{took}: {', '.join(parts) or 'nothing to do'}"


def bar(job: Job, room: int, *, unicode: bool = True) -> str:
    """`[████████░░░░] 412/812  1,240/s  3s left`"""
    counts = job.counts
    done = max(counts.deleted, counts.sent) + counts.failed + counts.skipped
    total = job.total or counts.matched
    state = "" if str(job.state) == "running" else f"  {job.state}"
    rate = f"  {job.rate:,.0f}/s" if job.rate else ""
    left = f"  {span(job.eta)} left" if job.eta is not None else ""
    failed = f"  {counts.failed:,} failed" if counts.failed else ""
    back = f"  {counts.returned:,} came back" if counts.returned else ""
    said = (
        f" {done:,}/{total:,}{rate}{left}{failed}{back}{state}" if total else f" {counts.looked_at:,} looked at{state}"
    )
    cells = min(30, room - len(said) - 3)
    if cells < 5 or not total:
        return said.strip()[: max(0, room - 1)]
    full = min(cells, cells * done // total)
    return f"[{('█' if unicode else '#') * full}{('░' if unicode else '.') * (cells - full)}]{said}"


class _Screen:
    def __init__(self, stream: TextIO, quiet: bool) -> None:
        self._stream = stream
        self.moves = not quiet and stream.isatty()
        self._quiet = quiet
        self._said: Line | None = None  # the newest line of the job that was shown
        self._unicode = "utf" in (getattr(stream, "encoding", "") or "").lower()

    def news(self, job: Job) -> None:
        """What the job says, once each."""
        lines = list(job.messages)
        shown = max((place for place, line in enumerate(lines) if line == self._said), default=-1)
        for line in lines[shown + 1 :]:
            self.say(line.text)
        if lines:
            self._said = lines[-1]

    def say(self, text: str) -> None:
        if not self._quiet:
            self.erase()
            self._write("\n".join(plain(line) for line in text.split("\n")) + "\n")

    def draw(self, job: Job) -> None:
        if self.moves:
            room = shutil.get_terminal_size().columns
            self._write(f"{_ERASE}{bar(job, room, unicode=self._unicode)}")
        elif not self._quiet:
            self._write(f"{bar(job, 100, unicode=self._unicode)}\n")

    def erase(self) -> None:
        if self.moves:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.moves, self._quiet = False, True  # nobody looks any more


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; the second time it is a KeyboardInterrupt."""
    pressed = 0

    def on_signal(_number: int, _frame: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    try:
        before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield lambda: False
        return
    try:
        yield lambda: pressed > 0
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _keys(screen: _Screen) -> Iterator[Callable[[], str]]:
    """The key that was pressed, or nothing; on a terminal that shows the bar only."""
    try:
        import termios
        import tty

        usable = screen.moves and sys.stdin.isatty()
        handle = sys.stdin.fileno() if usable else -1
        before = termios.tcgetattr(handle) if usable else None
    except (ImportError, OSError, ValueError):
        before = None
    if before is None:
        yield lambda: ""
        return
    tty.setcbreak(handle)
    screen.say("p pauses, c cancels")
    try:
        yield (
            lambda: os.read(handle, 1).decode(errors="ignore").lower() if select.select([handle], [], [], 0)[0] else ""
        )
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)

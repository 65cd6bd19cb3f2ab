"""Shows a job on a terminal until it ends: a progress bar, keys to pause and cancel, and Ctrl-C.

The rule: the first Ctrl-C cancels the job, which releases what it has claimed; the second ends the process at once. A
job that the command only waits for is not cancelled.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from semel.cli import output
from semel.cli.command import ExitCode
from semel.cli.output import one_line
from semel.cli.progress import StatusLine
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.cli.service import Records
    from semel.dlq.jobs import Job, Line

_TICK: Final = 0.1
_REMOTE_TICK: Final = 0.5
_LINE_INTERVAL: Final = 5.0  # seconds between lines where there is no terminal


class Followed(NamedTuple):
    """`interrupted`: cancelled here, with Ctrl-C or the key c. If the timeout has passed, the job has not ended."""

    job: Job
    interrupted: bool


def follow(
    service: Records,
    job: Job,
    *,
    quiet: bool = False,
    cancel: bool = True,
    timeout: float | None = None,
    stream: TextIO | None = None,
) -> Followed:
    """Returns the job when it has ended or the timeout has passed. With `cancel`, Ctrl-C and the key c cancel it."""
    screen = _Screen(quiet=quiet, stream=stream)
    started = last = time.monotonic()
    cancelled = False
    with _interrupts(cancel) as interrupted, _keys(screen, cancel) as key:
        while True:
            job = service.job(job.id)
            screen.news(job)
            if job.state.ended or (timeout is not None and time.monotonic() - started >= timeout):
                break
            pressed = key()
            if (interrupted() or pressed == "c") and not cancelled:
                cancelled = True
                screen.write("cancelling: claimed messages are released; Ctrl-C again ends it at once")
                _control(service, job, "cancel", screen)
            elif pressed == "p":
                action = "resume" if job.pausing else "pause"
                screen.write("resuming" if action == "resume" else "pausing; p resumes, c cancels")
                _control(service, job, action, screen)
            if screen.moves or time.monotonic() - last >= _LINE_INTERVAL:
                last = time.monotonic()
                screen.draw_bar(job)
            left = _REMOTE_TICK if timeout is None else min(_REMOTE_TICK, max(0.0, started + timeout - last))
            job.wait(left if service.remote else min(_TICK, left))
    screen.erase()
    return Followed(job, cancelled)


def _control(service: Records, job: Job, action: str, screen: _Screen) -> None:
    from semel.dlq.jobs import JobNotRunning

    try:
        service.control(job.id, action)
    except JobNotRunning:  # it has just ended, as the next poll shows
        pass
    except SemelError as error:
        screen.write(f"the job could not be asked to {action}: {error}")


def finish(service: Records, job: Job, args: argparse.Namespace) -> int:
    """Follows a job that this command started, prints its end, and returns the exit code."""
    followed = follow(service, job, quiet=args.quiet)
    job = followed.job
    output.show(args, job, lambda: summary(job))
    if job.reason and args.quiet and str(job.state) != "done":
        print(f"semel: {job.kind} of {job.queue}: {one_line(job.reason)}", file=sys.stderr)
    return ExitCode.INTERRUPTED if followed.interrupted and str(job.state) == "cancelled" else exit_code(job)


def exit_code(job: Job) -> ExitCode:
    """The exit code for a job that has ended."""
    match str(job.state):
        case "done":
            return ExitCode.OK
        case "stopped" | "cancelled":
            return ExitCode.STOPPED
        case _:
            return ExitCode.FAILED


def summary(job: Job) -> str:
    """The result of a job in one line."""
    counts = job.counts
    parts = [
        f"{value:,} {name}"
        for name, value in (
            ("matched", counts.matched),
            ("sent", counts.sent),
            ("deleted", counts.deleted),
            ("skipped", counts.skipped),
            ("failed", counts.failed),
            ("returned to the dead-letter queue", counts.returned),
        )
        if value
    ]
    seconds = job.ended - job.started if job.ended and job.started else 0.0
    took = f" in {output.duration(seconds)}" if seconds >= 1 else ""
    return f"{job.kind} of {one_line(job.queue)}: {job.state}{took}: {', '.join(parts) or 'no messages'}"


def bar(job: Job, room: int, *, unicode: bool = True) -> str:
    """`[████████░░░░] 412/812  1,240/s  3 s left`"""
    counts = job.counts
    done = max(counts.deleted, counts.sent) + counts.failed + counts.skipped
    total = job.total or counts.matched
    state = "" if str(job.state) == "running" else f"  {job.state}"
    rate = f"  {job.rate:,.0f}/s" if job.rate else ""
    left = f"  {output.duration(job.eta)} left" if job.eta is not None else ""
    failed = f"  {counts.failed:,} failed" if counts.failed else ""
    returned = f"  {counts.returned:,} returned" if counts.returned else ""
    text = (
        f" {done:,}/{total:,}{rate}{left}{failed}{returned}{state}" if total else f" {counts.scanned:,} scanned{state}"
    )
    cells = min(30, room - len(text) - 3)
    if cells < 5 or not total:
        return text.strip()[: max(0, room - 1)]
    full = min(cells, cells * done // total)
    return f"[{('█' if unicode else '#') * full}{('░' if unicode else '.') * (cells - full)}]{text}"


class _Screen(StatusLine):
    _newest: Line | None = None  # the last line of the job that was shown

    def news(self, job: Job) -> None:
        """Writes the lines of the job, each one once."""
        lines = list(job.messages)
        shown = max((place for place, line in enumerate(lines) if line == self._newest), default=-1)
        for line in lines[shown + 1 :]:
            self.write(line.text)
        if lines:
            self._newest = lines[-1]

    def draw_bar(self, job: Job) -> None:
        room = shutil.get_terminal_size().columns if self.moves else 100
        self.draw(bar(job, room, unicode=self.unicode))


@contextlib.contextmanager
def _interrupts(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed. A second Ctrl-C raises KeyboardInterrupt."""
    pressed = 0

    def on_signal(_number: int, _frame: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    try:
        before = (
            {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)} if wanted else {}
        )
    except ValueError:  # not the main thread
        before = {}
    try:
        yield lambda: pressed > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _keys(screen: _Screen, wanted: bool) -> Iterator[Callable[[], str]]:
    """Yields a function that returns the key that was pressed, or ""; only on a terminal that shows the bar."""
    try:
        import termios
        import tty

        usable = wanted and screen.moves and sys.stdin.isatty()
        handle = sys.stdin.fileno() if usable else -1
        before = termios.tcgetattr(handle) if usable else None
    except (ImportError, OSError, ValueError):
        before = None
    if before is None:
        yield lambda: ""
        return
    tty.setcbreak(handle)
    screen.write("p pauses, c cancels")
    try:
        yield (
            lambda: os.read(handle, 1).decode(errors="ignore").lower() if select.select([handle], [], [], 0)[0] else ""
        )
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)

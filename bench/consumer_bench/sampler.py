"""Samples of where this process uses CPU, taken inside a worker. Standard library only; Linux.

Each thread gets a timer on its own CPU clock. On the timer's signal, faulthandler writes the thread's stack, from C and
without the interpreter lock. So a thread is sampled only while it uses CPU, in Python code, in SQLite or in the kernel,
and never while it waits. (py-spy samples from outside the process. It either stops all threads for each sample, which
halves the throughput, or reads stacks so late that most threads already wait again.) The drawback: a stack that changes
while it is read crashes the process, about once in several thousand samples. The caller then tries again.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import threading
import time
from pathlib import Path

CPU_BETWEEN_SAMPLES = 1_000_000  # nanoseconds; in practice at least the kernel's tick
EVERY = 0.1  # seconds between two searches for new threads
GO, THREADS = "go", "threads"
NAME = "bench-sampler"  # name of the sampler's own thread
SIGEV_THREAD_ID = 4


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_byte * 44),
    )


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


def start(folder: Path) -> None:
    """Start sampling when a file `go` appears in the folder. Each thread role has a file for its stacks; the file
    `threads` has the role of each thread. Call this from the main thread."""
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_run, args=(folder,), name=NAME, daemon=True).start()


def role(name: str) -> str:
    """The role of a thread, from its name: `semel-work` for `semel-work-orders`; other names without their numbers."""
    semel = re.match(r"semel-[a-z]+", name)
    return semel[0] if semel else re.sub(r"[^A-Za-z]+", "-", name).strip("-") or "thread"


def _run(folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    while not (folder / GO).exists():
        time.sleep(EVERY)
    signals: dict[str, int] = {}
    known: set[int] = set()
    with (folder / THREADS).open("w", buffering=1) as roles:
        while True:
            for thread in threading.enumerate():
                if thread.native_id is None or thread.native_id in known:
                    continue
                known.add(thread.native_id)
                kind = role(thread.name)
                if kind not in signals:  # a signal and a file per role: a stack does not name its thread
                    signals[kind] = signal.SIGRTMIN + len(signals)
                    file = os.open(folder / f"{kind}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                    # CPython 3.11 restores errno only if the signal is chained to the previous handler (here: ignore).
                    # Otherwise a lock that was just refused would look as if it had been acquired.
                    faulthandler.register(signals[kind], file, all_threads=False, chain=True)
                roles.write(f"{thread.native_id} {kind}\n")
                _start_timer(libc, thread.native_id, signals[kind])
            time.sleep(EVERY)


def _start_timer(libc: ctypes.CDLL, thread: int, number: int) -> None:
    clock = ~thread << 3 | 6  # the thread's CPU clock, computed as in clock_getcpuclockid(3); invalid ids are refused
    event = _Sigevent(signal=number, notify=SIGEV_THREAD_ID, thread=thread)
    timer = ctypes.c_void_p()
    if libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)):
        return  # the thread has ended
    interval = _Itimerspec(every_ns=CPU_BETWEEN_SAMPLES, first_ns=CPU_BETWEEN_SAMPLES)
    libc.timer_settime(timer, 0, ctypes.byref(interval), None)

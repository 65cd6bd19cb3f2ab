"""Kills a Spark driver at a named point in the life of a batch, from whichever process gets there first.

SEMEL_SPARK_KILL="point=after-seal;group=4711;once=/path" sends SIGKILL to the process group 4711 when the point is
first reached, and creates the file at `once`, so that no process kills again. With "when=/path", it kills only after
that file exists. With "linger=7", the process that sent the signal then sleeps for seven seconds, if it survives; with
"until=/path", only until that file exists.

The rule: the variable alone does nothing. A process must call `register`; a test's driver and its executors do so in a
`sitecustomize` on their PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from semel.spark import crash_points

VARIABLE: Final = "SEMEL_SPARK_KILL"


@dataclass(frozen=True, slots=True)
class Killer:
    point: str
    group: int
    once: str
    when: str = "/"
    linger: float = 0.0
    until: str | None = None

    @classmethod
    def parse(cls, text: str) -> Killer:
        parts = dict(part.split("=", 1) for part in text.split(";"))
        if parts.get("point") not in crash_points.POINTS:
            raise ValueError(f"{VARIABLE}={text}: the points are {', '.join(crash_points.POINTS)}")
        when, linger, until = parts.get("when", "/"), float(parts.get("linger", 0)), parts.get("until")
        return cls(parts["point"], int(parts["group"]), parts["once"], when, linger, until)

    def __call__(self, point: str) -> None:
        if point != self.point or not os.path.exists(self.when):
            return
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        ends = time.monotonic() + self.linger  # a process outside the group goes on after that, as a zombie does
        while (left := ends - time.monotonic()) > 0 and not (self.until is not None and os.path.exists(self.until)):
            time.sleep(min(left, 0.05))


def register() -> None:
    """Kill at the point that the environment names, if it names one."""
    text = os.environ.get(VARIABLE)
    if text is not None:
        crash_points.on_point = Killer.parse(text)

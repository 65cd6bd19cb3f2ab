"""Named points in the life of a batch at which a test can have the driver killed, from whichever process gets there.

SEMEL_SPARK_KILL="point=after-seal;group=4711;once=/path" sends SIGKILL to the process group 4711 when the point is
first reached; the file is what makes it once. With "when=/path", only after that file is there. Without the variable,
a point costs one look into a dictionary.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

VARIABLE: Final = "SEMEL_SPARK_KILL"
POINTS: Final = (
    "before-seal",
    "after-seal",
    "after-delete",
    "before-commit",
    "during-commit",
    "after-commit",
)


def reached(point: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted is not None:
        _kill(point, dict(part.split("=", 1) for part in wanted.split(";")))


def _kill(point: str, wanted: dict[str, str]) -> None:
    if wanted["point"] != point or not os.path.exists(wanted.get("when", "/")):
        return
    try:
        os.close(os.open(wanted["once"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    with suppress(ProcessLookupError):
        os.killpg(int(wanted["group"]), signal.SIGKILL)
    time.sleep(float(wanted.get("linger", "0")))  # a process outside the group goes on, as a zombie does

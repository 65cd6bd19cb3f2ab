"""The app of the soak, as a user would write it: `semel run soak.app:app`.

`FLAWS` are bugs that can be put in on purpose: a check that does not find them proves nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from semel import App, Transaction
from soak.effects import INSERT, file_writer

QUEUE: Final = "orders"
VARIABLE: Final = "SOAK_APP"
FLAWS: Final = ("memory", "files", "threads", "doubled", "lost")
_EVERY: Final = 20  # most flaws concern one message in this many


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The app's settings, from its environment. `effects` is a folder, for ledgers without transactions."""

    ledger: str
    endpoint: str
    retention: float
    effects: str = ""
    flaw: str = ""
    handler_seconds: float = 0.0
    options: dict[str, Any] | None = None  # more settings of the App

    @classmethod
    def from_environment(cls) -> AppSettings:
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


_kept: list[object] = []


def _leak(flaw: str, number: int) -> None:
    if flaw == "memory":
        _kept.append(b"%032768d" % number)
    elif flaw == "files" and number % _EVERY == 0:
        _kept.append(os.open(os.devnull, os.O_RDONLY))
    elif flaw == "threads" and number % _EVERY == 0:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def _times(flaw: str, number: int) -> int:
    """How many times the effect of this message happens."""
    return {"doubled": 2, "lost": 0}.get(flaw, 1) if number % _EVERY == 0 else 1


def build(settings: AppSettings) -> App:
    app = App(
        settings.ledger,
        endpoint_url=settings.endpoint,
        region="us-east-1",
        retention=settings.retention,
        **(settings.options or {}),
    )
    flaw = settings.flaw
    insert = INSERT.format("?" if settings.ledger.startswith("sqlite:") else "%s")
    if settings.effects:
        write = file_writer(Path(settings.effects))

        @app.handler(QUEUE, key="$.n")
        def work(order: dict[str, Any]) -> None:
            _leak(flaw, order["n"])
            time.sleep(settings.handler_seconds)
            for _ in range(_times(flaw, order["n"])):
                write(order["n"])

    else:

        @app.handler(QUEUE, key="$.n")
        def book(order: dict[str, Any], tx: Transaction) -> None:
            _leak(flaw, order["n"])
            for _ in range(_times(flaw, order["n"])):
                tx.execute(insert, (order["n"], time.monotonic()))

    return app


def __getattr__(name: str) -> App:
    """`app` is made when `semel run` accesses it, not when other names are imported from this module."""
    if name == "app":
        globals()["app"] = made = build(AppSettings.from_environment())
        return made
    raise AttributeError(name)

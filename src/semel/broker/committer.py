"""The thread that waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from semel.broker.engine import Engine


class Committer:
    """A thread that does nothing but wait for the disk, so that the event loop need not."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop
        self._work: SimpleQueue[Callable[[BaseException | None], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="semel-commit", daemon=True)
        self._thread.start()

    def commit(self, done: Callable[[BaseException | None], None]) -> None:
        self._work.put(done)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (done := self._work.get()) is not None:
            failure: BaseException | None = None
            try:
                self._engine.commit()
            except Exception as error:  # noqa: BLE001 - it is handed to the loop, which deals with it
                failure = error
            self._loop.call_soon_threadsafe(done, failure)

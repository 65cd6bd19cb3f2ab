"""Reading on a thread, for an event loop. A read that hangs must not keep the terminal from closing, as a pool would:
whoever leaves does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def on_thread(read: Callable[[], T]) -> T:
    """What `read` returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if answer.done():
            return  # nobody waits any more
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)  # type: ignore[arg-type]  # it is what was read

    def run() -> None:
        found, error = None, None
        try:
            found = read()
        except Exception as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the terminal was left
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=run, name="semel-top-read", daemon=True).start()
    return await answer

"""A broker as a process of its own: the ready line, the signals, the exit."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from semel.broker.embedded import event_loop
from semel.broker.startup import Options, start
from semel.errors import StartError
from semel.signals import STOP_SIGNALS, received

# What runs beside the broker while it serves, given its URL.
Beside = Callable[[str], AbstractContextManager[object]]


def serve(options: Options, beside: Beside | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Raises StartError if it can't start. `beside` is entered once it listens."""
    logging.basicConfig(level=logging.WARNING, format="semel: %(levelname)s: %(message)s", stream=sys.stderr)
    # The thread that waits for the disk must get the interpreter back soon after the disk is done.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_main(options, beside))
    return 0


async def _main(options: Options, beside: Beside | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: int) -> None:
        received.add(number)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, ask_to_stop, number)
    running = await start(options)
    # What is loaded by now stays for good; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        # One write: whoever waits for the first line may stop reading after it.
        data = "in memory only" if options.data is None else f"in {options.data.absolute()}"
        print(f"semel: SQS listening on {running.url}\nsemel: queues are kept {data}", flush=True)
        with nullcontext() if beside is None else beside(running.url):
            await stop.wait()
    except OSError as error:
        # Python would try once more to write the line at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StartError(f"standard output takes no line: {error.strerror}") from None
    finally:
        await running.stop()

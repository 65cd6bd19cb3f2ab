"""A broker as a process of its own: the ready line and the ready file, the signals, the exit."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from semel.broker.embedded_broker import event_loop
from semel.broker.startup import Options, raise_file_limit, start
from semel.errors import StartError
from semel.signals import STOP_SIGNALS, received

# What runs beside the broker while it serves, given its URL.
Beside = Callable[[str], AbstractContextManager[object]]


def serve(options: Options, beside: Beside | None = None, ready_file: Path | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Raises StartError if it can't start. `beside` is entered once it listens;
    `ready_file` exists as long as it does."""
    logging.basicConfig(level=logging.WARNING, format="semel: %(levelname)s: %(message)s", stream=sys.stderr)
    # The thread that waits for the disk must get the interpreter back soon after the disk is done.
    sys.setswitchinterval(0.0005)
    raise_file_limit(options.limits)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_main(options, beside, ready_file))
    return 0


async def _main(options: Options, beside: Beside | None, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: int) -> None:
        received.add(number)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, ask_to_stop, number)
    running = await start(options)
    # What is loaded by now stays for good; the garbage collector need not scan it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        with nullcontext() if ready_file is None else _announced(ready_file, running.url, options):
            # One write: whoever waits for the first line may stop reading after it.
            data = "in memory only" if options.data is None else f"in {options.data.absolute()}"
            print(f"semel: SQS listening on {running.url}\nsemel: queues are kept {data}", flush=True)
            with nullcontext() if beside is None else beside(running.url):
                await stop.wait()
    except OSError as error:
        # Python would try to write the line again when it exits, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StartError(f"cannot write to standard output: {error.strerror}") from None
    finally:
        await running.stop()


@contextmanager
def _announced(path: Path, url: str, options: Options) -> Iterator[None]:
    """Writes the ready file atomically, and removes it at the end. One that a killed broker left behind is replaced."""
    content = json.dumps({"url": url, "pid": os.getpid(), "region": options.region, "account": options.account}) + "\n"
    unfinished = path.parent / f".{path.name}.{os.getpid()}"
    try:
        unfinished.write_text(content)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise StartError(
            f"--ready-file {path}: cannot be written: {error.strerror}; "
            "choose a file in a folder that exists and that this user may write to"
        ) from None
    try:
        yield
    finally:
        # Unless another broker has replaced it.
        with suppress(OSError):
            if path.read_text() == content:
                path.unlink()

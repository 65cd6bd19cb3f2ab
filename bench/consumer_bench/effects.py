"""How often each message was handled, and the proof that it was once.

One byte for each message, in a file of each process, mapped into memory: it costs the handler next to nothing and is
there after the process has ended. Standard library only.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def counts(folder: str, messages: int) -> mmap.mmap:
    """This process's counts, by the number of the message. Add to them in a single statement."""
    with (Path(folder) / str(os.getpid())).open("w+b") as file:
        file.truncate(messages)
        return mmap.mmap(file.fileno(), messages)


def fault(folder: Path, messages: int, deleted: int, left: int) -> str:
    """What is wrong, if anything, once the worker has stopped: each deleted message was to be handled exactly once, and
    each message that is left not at all."""
    handled = [sum(each) for each in zip(*(path.read_bytes() for path in folder.iterdir()), strict=True)]
    if repeated := sum(count > 1 for count in handled):
        return f"{repeated:,} messages were handled more than once"
    if sum(handled) != deleted:
        return f"{sum(handled):,} messages were handled and {deleted:,} deleted"
    if deleted + left != messages:
        return f"of {messages:,} messages, {deleted:,} were deleted and {left:,} are left"
    return ""

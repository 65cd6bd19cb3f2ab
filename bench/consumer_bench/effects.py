"""How often each message was handled, and the check that it was exactly once.

Each process has a memory-mapped file with one byte for each message: it costs the handler next to nothing and survives
the process. Standard library only.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def counts(folder: str, messages: int) -> mmap.mmap:
    """This process's counts, indexed by message number. Increment a count in a single statement."""
    with (Path(folder) / str(os.getpid())).open("w+b") as file:
        file.truncate(messages)
        return mmap.mmap(file.fileno(), messages)


def fault(folder: Path, messages: int, deleted: int, left: int) -> str:
    """What is wrong after the worker has stopped; empty if nothing is. Each deleted message must have been handled
    exactly once, and each remaining message not at all."""
    handled = [sum(each) for each in zip(*(path.read_bytes() for path in folder.iterdir()), strict=True)]
    if repeated := sum(count > 1 for count in handled):
        return f"{repeated:,} messages were handled more than once"
    if sum(handled) != deleted:
        return f"{sum(handled):,} messages were handled and {deleted:,} deleted"
    if deleted + left != messages:
        return f"of {messages:,} messages, {deleted:,} were deleted and {left:,} are left"
    return ""

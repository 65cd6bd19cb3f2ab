"""What commands print: tables, JSON, durations, sizes. No text of a message can control the terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from semel import durations
from semel.text import count as count
from semel.text import indented_json, is_json
from semel.text import moment as moment
from semel.text import one_line as one_line
from semel.text import printable as printable

_UNLIMITED: Final = 1_000_000  # columns: a pipe gets whole lines
_LEAST: Final = 24  # columns that the last cell keeps at least; optional columns are left out first


def body(text: str) -> str:
    """The body of a message for a terminal; JSON is indented."""
    return printable(indented_json(text) if is_json(text) else text)


def duration(seconds: float | None) -> str:
    return "?" if seconds is None else durations.text(int(max(0.0, seconds)))


def size(count: int) -> str:
    if count < 1_024:
        return f"{count} B"
    return f"{count / 1_024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), optional: Sequence[str] = ()
) -> str:
    """Columns as wide as they need to be. On a narrow terminal the `optional` columns are left out in their
    order, and then the last column is cut."""
    lines = [list(heads), *([one_line(cell) for cell in row] for row in rows)]
    widths = {head: max(len(line[place]) for line in lines) for place, head in enumerate(heads)}
    room, shown = width(), list(heads)
    for head in optional:
        last = min(widths[heads[-1]], _LEAST)
        if sum(widths[name] + 2 for name in shown[:-1]) + last > room:
            shown.remove(head)
    places = [heads.index(head) for head in shown]
    texts = []
    for line in lines:
        cells = [
            line[place].rjust(widths[heads[place]])
            if heads[place] in right
            else line[place].ljust(widths[heads[place]])
            for place in places
        ]
        text = "  ".join(cells).rstrip()
        texts.append(text if len(text) <= room else f"{text[: room - 1]}…")
    return "\n".join(texts)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one a line."""
    widest = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{widest}}  {one_line(value)}".rstrip() for name, value in rows)


# JSON.


def as_json(value: Any) -> Any:
    """Any value that a command prints, with the field names of the API."""
    from dataclasses import fields, is_dataclass

    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    names = [field.name for field in fields(value)] if is_dataclass(value) else getattr(value, "_fields", None)
    if names is None:
        return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
    from semel.dlq import messages

    if isinstance(value, messages.DeadLetterMessage):
        return messages.as_json(value)
    depth = [] if getattr(value, "depth", None) is None or "depth" in names else ["depth"]
    return {name: as_json(getattr(value, name)) for name in (*names, *depth)}


def print_json(value: Any, output: str) -> None:
    """Prints JSON: indented for `--output json`, a line for each entry of a list for `jsonl`."""
    content = as_json(value)
    entries = content if output == "jsonl" and isinstance(content, list) else [content]
    for entry in entries:
        # On a terminal, non-ASCII text is escaped, so that no message can control it; elsewhere it is written as it is.
        text = json.dumps(entry, indent=2 if output == "json" else None, ensure_ascii=sys.stdout.isatty())
        print(text, flush=output == "jsonl")


def show(args: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Prints a value or a list of values, as text or as JSON."""
    if args.output == "table":
        print(text())
    else:
        print_json(value, args.output)


def notes(*lines: str) -> None:
    """Prints notes on standard error."""
    for line in lines:
        if line:
            print(f"note: {one_line(line)}", file=sys.stderr)

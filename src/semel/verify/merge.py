"""The events of several files, in the order of their times.

The rules: an event without a time follows the one before it in its file. Without any times, files follow each other in
the order in which they were given. Files whose lines are nearly in order are streamed, and only files that overlap in
time are open at once. If lines are further out of order, all events must be in memory: `sorted_events`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

from semel.verify.history import HistoryEvent

Timed = tuple[float, HistoryEvent]
Source = Callable[[], Iterator[HistoryEvent]]  # reads one file, from its beginning
WINDOW: Final = 20_000  # events of a file within which they may be out of order
_PEEK: Final = 1_000  # events that show when a file begins
_time: Final = itemgetter(0)


class OutOfOrder(Exception):
    """An event is earlier than one that was already yielded."""


def in_order(sources: Sequence[Source]) -> Iterator[HistoryEvent]:
    """All events, in the order of their times. Raises OutOfOrder if they cannot be sorted while streaming."""
    latest = -math.inf
    for time, event in _in_window(_timed(sources[0]())) if len(sources) == 1 else _merged(sources):
        if time < latest:
            raise OutOfOrder
        latest = time
        yield event


def sorted_events(sources: Iterable[Source]) -> Iterator[HistoryEvent]:
    """The same, with all events in memory."""
    timed = [pair for source in sources for pair in _timed(source())]
    timed.sort(key=_time)
    return (event for _, event in timed)


def _timed(events: Iterable[HistoryEvent]) -> Iterator[Timed]:
    latest = -math.inf
    for event in events:
        if event.time is not None:
            latest = event.time
        yield latest, event


def _in_window(events: Iterator[Timed]) -> Iterator[Timed]:
    held: list[Timed] = []
    while chunk := list(islice(events, WINDOW)):
        held += chunk
        held.sort(key=_time)
        yield from held[:-WINDOW]
        held = held[-WINDOW:]
    yield from held


def _merged(sources: Sequence[Source]) -> Iterator[Timed]:
    begins = [(_begin(source), number) for number, source in enumerate(sources)]
    closed = sorted((begin, number) for begin, number in begins if begin is not None)[::-1]
    open_files: list[tuple[float, int, HistoryEvent, Iterator[Timed]]] = []

    def push(number: int, events: Iterator[Timed]) -> None:
        for time, event in islice(events, 1):
            heapq.heappush(open_files, (time, number, event, events))

    while open_files or closed:
        while closed and (not open_files or closed[-1] < open_files[0][:2]):
            number = closed.pop()[1]
            push(number, _in_window(_timed(sources[number]())))
        if not open_files:
            return
        time, number, event, events = heapq.heappop(open_files)
        yield time, event
        push(number, events)


def _begin(source: Source) -> float | None:
    """The earliest time at the beginning of a file; None if it has no events."""
    return min((time for time, _ in islice(_timed(source()), _PEEK)), default=None)

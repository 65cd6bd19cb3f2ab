"""Searches in dead-letter queues: however many letters there are, a page never waits for all of them.

A search goes through its queue in the background, page by page, and can be shown at any time: what it found so far, and
how far it is. Later it is taken up again at the end of the queue, or done anew when letters have left. Memory is
bounded: the groups, and the first letters that match, are kept; the rest is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from semel.dashboard.views.messages import dead_letter_row_of
from semel.dashboard.views.model import DeadLetterRow, ErrorGroupRow
from semel.dlq import fingerprints
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage, ShownMessages
from semel.dlq.service import SHOWN_IDS
from semel.errors import SemelError

MOST_ROWS: Final = 2_000
MOST_GROUPS: Final = 1_000
MOST_SEARCHES: Final = 32
FRESH: Final = 5.0  # seconds before anything is looked at again
STALE: Final = 30.0  # after which a search is done anew while somebody looks
_SHARE: Final = 5.0  # a search that took a second rests for five
log = logging.getLogger("semel.dashboard")


class Page(NamedTuple):
    """Letters with their places, where there are places; and what it cost to see them so far, in a sentence."""

    messages: list[tuple[int | None, DeadLetterMessage]]
    cost: str = ""


Read = Callable[[str, Filter, int], Iterator[Page]]  # queue, filter, after which place


@dataclass(slots=True)
class _Group:
    shape: str
    sample: str
    sample_id: str
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    sources: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """What a search has found so far. `end`: the place that it came to; `at`: the time by which letters were judged."""

    looked_at: int = 0
    matched: int = 0
    rows: list[DeadLetterRow] = field(default_factory=list)
    groups: dict[str, _Group] = field(default_factory=dict)
    complete: bool = False
    end: int = 0
    at: float | None = None
    error: str | None = None
    cost: str = ""

    def add(self, place: int | None, message: DeadLetterMessage) -> None:
        self.matched += 1
        if len(self.rows) < MOST_ROWS:
            self.rows.append(dead_letter_row_of(message, place))
        mark = fingerprints.of(message)
        group = self.groups.get(mark)
        if group is None:
            if len(self.groups) >= MOST_GROUPS:
                mark = "others"
            error = fingerprints.error_of(message)
            fresh = _Group(fingerprints.shape(error)[:500], error[:1_000], message.id, first=message.sent)
            group = self.groups.setdefault(mark, fresh)
        group.count += 1
        group.first = min(group.first, message.sent)
        group.last = max(group.last, message.sent)
        if message.source and len(group.sources) < 20:
            group.sources[message.source] = None

    def shown(self) -> ShownMessages:
        """What a page shows of it, for an action that is to touch nothing else."""
        end, rows, matched = self.end, list(self.rows), self.matched  # in this order: a search may be going on
        if len(rows) < matched or (end and matched > SHOWN_IDS):
            return ShownMessages(matched, None, end, self.at)
        return ShownMessages(len(rows), tuple(row.id for row in rows))

    def shown_groups(self) -> tuple[ErrorGroupRow, ...]:
        """The largest first."""
        found = [
            ErrorGroupRow(
                fingerprint=mark,
                shape=group.shape,
                sample=group.sample,
                sample_id=group.sample_id,
                count=group.count,
                first=group.first,
                last=group.last,
                where=f"fingerprint = {mark}",
                sources=tuple(group.sources),
            )
            for mark, group in list(self.groups.items())
        ]
        return tuple(sorted(found, key=lambda group: (-group.count, group.fingerprint)))


class _Search:
    def __init__(self, queue: str, where: Filter) -> None:
        self.queue, self.where = queue, where
        self.found = Found()
        self.running = False
        self.ended: float | None = None
        self.took = 0.0
        self.moved = threading.Condition()


class Searches:
    """`read` goes through a queue; `now` is the time by which letters are judged. Thread-safe."""

    def __init__(
        self, read: Read, *, now: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._now, self._monotonic = read, now, monotonic
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Search] = OrderedDict()
        self._closed = False

    def look(self, queue: str, where: Filter, *, total: int, wait: float = 0.2, rest: float | None = None) -> Found:
        """What is known now; waits a little if that is nothing yet. `total`: how many letters there are in all.

        `rest`: where each search costs, it is done anew after so many seconds, and never for less."""
        key = (queue, str(where))
        with self._lock:
            search = self._known.get(key)
            if search is None:
                search = self._known[key] = _Search(queue, where)
                while len(self._known) > MOST_SEARCHES:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            start = self._start(search, total, rest)
            if start is not None and not self._closed:
                search.running = True
                thread = threading.Thread(target=self._run, args=(search, start), name="semel-search", daemon=True)
                thread.start()
        with search.moved:
            search.moved.wait_for(lambda: search.found.complete or not search.running, timeout=wait)
        return search.found

    def peeked(self, queue: str, where: Filter) -> Found | None:
        """What an earlier search found, without starting one."""
        with self._lock:
            search = self._known.get((queue, str(where)))
        return search.found if search else None

    def forget(self, queue: str) -> None:
        """Its letters were changed: the next look begins anew."""
        with self._lock:
            for search in self._known.values():
                if search.queue == queue:
                    search.ended = None if search.running else float("-inf")

    def close(self) -> None:
        self._closed = True

    def _start(self, search: _Search, total: int, rest: float | None) -> int | None:
        """The place to begin at, 0 for all of it; None if there is no need to."""
        if search.running:
            return None
        if search.ended is None:
            return 0
        age = self._monotonic() - search.ended
        if rest is not None:
            return 0 if age >= rest else None
        if age < max(FRESH, _SHARE * search.took):
            return None
        judged = search.found.at
        if search.found.error or age >= STALE or total < search.found.looked_at:
            return 0
        if judged is not None and self._now() - judged >= STALE:  # ages have grown since
            return 0
        return search.found.end if total > search.found.looked_at else None

    def _run(self, search: _Search, start: int) -> None:
        began = self._monotonic()
        # What was found before is shown until there is something new to show in its place.
        found = search.found if start else Found()
        if not search.found.looked_at:
            search.found = found
        try:
            self._go_through(search, found, start)
            found.error = None
        except SemelError as error:
            found.error = str(error)
        except Exception as error:
            log.exception("a search in %s failed", search.queue)
            found.error = f"{type(error).__name__}: {error}"
        found.complete = True
        with search.moved:
            search.found = found
            search.ended = self._monotonic()
            search.took = search.ended - began
            search.running = False
            search.moved.notify_all()

    def _go_through(self, search: _Search, found: Found, start: int) -> None:
        # All of it is judged by one time, also what is added later: so it can be said what was shown.
        now = found.at = self._now() if found.at is None else found.at
        pages = self._read(search.queue, search.where, start)
        while True:
            # One page of one search at a time: those who only want to see something come between.
            with self._turn:
                page = next(pages, None)
                if page is None or self._closed:
                    return
                for place, message in page.messages:
                    if search.where.matches(message, now):
                        found.add(place, message)
                    if place is not None:
                        found.end = max(found.end, place)
                found.looked_at += len(page.messages)
                found.cost = page.cost or found.cost
            with search.moved:
                search.moved.notify_all()

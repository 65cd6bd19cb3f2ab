"""Background searches in dead-letter queues: a page shows what was found so far, and never waits for the rest.

A fixed number of threads reads the queues, one page of each search in turn, so a large queue does not hold up the
others. A search that nobody asks for any more is evicted and stops. A finished search continues at the end of the
queue if messages were added, and is repeated if messages have left or have become older. Memory is bounded: the first
messages that match are kept, the others are counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from semel.dlq.access import ScanPage
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage, ErrorGroup, Grouping, ReceiveCost, ShownMessages
from semel.dlq.service import SHOWN_IDS
from semel.errors import SemelError

MAX_MESSAGES: Final = 1_000
MAX_SEARCHES: Final = 32
THREADS: Final = 2
FRESH: Final = 5.0  # seconds for which a result is shown as it is
STALE: Final = 30.0  # seconds after which a search is repeated
_SHARE: Final = 5.0  # a search that took a second is not repeated within five
log = logging.getLogger("semel.dashboard")
_FREE: Final = ReceiveCost()

# queue, filter, the place to start after, the time at which the filter is evaluated
Scan = Callable[[str, Filter, int | None, float], Generator[ScanPage, None, None]]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was found so far. `finished`: the search is over; `complete`: all of the queue was scanned."""

    messages: tuple[DeadLetterMessage, ...] = ()  # the first that match, without attributes and with cut bodies
    groups: tuple[ErrorGroup, ...] = ()
    matched: int = 0
    scanned: int = 0
    finished: bool = False
    complete: bool = False
    end: int | None = None  # the place that the search has reached
    at: float | None = None  # the time at which the filter was evaluated
    cost: ReceiveCost = _FREE
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def shown(self) -> ShownMessages:
        """What a page shows of it, for a delete that must not touch anything else."""
        if len(self.messages) < self.matched or (self.end and self.matched > SHOWN_IDS):
            return ShownMessages(self.matched, None, self.end, self.at)
        return ShownMessages(self.matched, tuple(message.id for message in self.messages))


class _Progress:
    """A result that grows. `base`: messages that an earlier run had scanned."""

    def __init__(self) -> None:
        self.messages: list[DeadLetterMessage] = []
        self.grouping = Grouping()
        self.base = 0
        self.last = ScanPage([], 0, None, None, False, ReceiveCost(), ())
        self.at: float | None = None
        self.error: str | None = None
        self.finished = False

    @property
    def scanned(self) -> int:
        return self.base + self.last.scanned

    def add(self, page: ScanPage) -> None:
        self.grouping.add(page.messages)
        space = MAX_MESSAGES - len(self.messages)
        self.messages += [_in_short(message) for message in page.messages[:space]]
        self.last = page

    def result(self) -> SearchResult:
        last = self.last
        return SearchResult(
            tuple(self.messages),
            self.grouping.groups,
            self.grouping.matched,
            self.scanned,
            self.finished,
            self.finished and last.complete,
            last.end,
            self.at,
            last.cost,
            last.notes,
            self.error,
        )


def _in_short(message: DeadLetterMessage) -> DeadLetterMessage:
    return replace(message.shortened(), attributes={}, carried={}, error=message.error[:1_000])


class _Search:
    def __init__(self, queue: str, where: Filter) -> None:
        self.queue, self.where = queue, where
        self.shown = _Progress()
        self.reading = self.shown
        self.pages: Generator[ScanPage, None, None] | None = None
        self.start: int | None = None
        self.running = False
        self.cancelled = False
        self.outdated = False  # messages were changed since it began
        self.began = 0.0
        self.ended: float | None = None
        self.changed = threading.Condition()


class Searches:
    """Thread-safe. `scan` reads a queue; `now` is the time at which filters are evaluated."""

    def __init__(
        self, scan: Scan, *, now: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._scan, self._now, self._monotonic = scan, now, monotonic
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="semel-search")
        self._lock = threading.Lock()
        self._searches: OrderedDict[tuple[str, str], _Search] = OrderedDict()
        self._closed = False

    def get(
        self,
        queue: str,
        where: Filter,
        *,
        total: int,
        wait: float = 0.2,
        valid: float | None = None,
        fresh: bool = False,
    ) -> SearchResult:
        """The result so far, after `wait` seconds at most. `total`: how many messages the queue has.

        `valid`: how many seconds a result is valid, for searches that cost receives. `fresh`: a finished search is
        repeated whatever its age."""
        key = (queue, str(where))
        with self._lock:
            search = self._searches.get(key)
            if search is None:
                search = self._searches[key] = _Search(queue, where)
                while len(self._searches) > MAX_SEARCHES:
                    self._searches.popitem(last=False)[1].cancelled = True
            self._searches.move_to_end(key)
            if not search.running and not self._closed:
                self._start_if_due(search, total, valid, fresh)
        with search.changed:
            search.changed.wait_for(lambda: not search.running, timeout=wait)
            return (search.reading if fresh else search.shown).result()

    def cached(self, queue: str, where: Filter) -> SearchResult | None:
        """The result of an earlier search; none is started."""
        with self._lock:
            search = self._searches.get((queue, str(where)))
        if search is None:
            return None
        with search.changed:
            return search.shown.result()

    def forget(self, queue: str) -> None:
        """Messages of the queue were changed: the next request starts a new search."""
        with self._lock:
            for search in self._searches.values():
                if search.queue == queue:
                    search.outdated = True

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False)

    def _start_if_due(self, search: _Search, total: int, valid: float | None, fresh: bool) -> None:
        """Starts at the beginning of the queue, or where the last run ended if messages were only added since."""
        shown = search.shown
        search.start = None
        if search.ended is not None and not search.outdated and not fresh:
            age = self._monotonic() - search.ended
            if age < (valid if valid is not None else max(FRESH, _SHARE * (search.ended - search.began))):
                return
            same_time = shown.at is None or self._now() - shown.at < STALE  # ages grow
            if valid is None and age < STALE and same_time and not shown.error and total >= shown.scanned:
                if total == shown.scanned:
                    return
                search.start = shown.last.end
        search.running, search.outdated, search.pages = True, False, None
        search.began = self._monotonic()
        with search.changed:
            if search.start is None:
                search.reading = _Progress()
            else:
                shown.base, shown.finished = shown.scanned, False
                shown.last = replace(shown.last, scanned=0)
            if not shown.scanned:  # else the old result stays until the new one is finished
                search.shown = search.reading
        if not self._submit(search):
            search.running = False

    def _submit(self, search: _Search) -> bool:
        try:
            self._pool.submit(self._step, search)
        except RuntimeError:  # closed
            return False
        return True

    def _step(self, search: _Search) -> None:
        """Reads one page, and then queues up again behind the other searches."""
        error: str | None = None
        try:
            if search.pages is None:
                if search.reading.at is None:
                    search.reading.at = self._now()
                search.pages = self._scan(search.queue, search.where, search.start, search.reading.at)
            page = None if search.cancelled or self._closed else next(search.pages, None)
            if page is not None:
                with search.changed:
                    search.reading.add(page)
                if self._submit(search):
                    return
            search.pages.close()
        except SemelError as failure:
            error = str(failure)
        except Exception as failure:
            log.exception("the search in %s failed", search.queue)
            error = f"{type(failure).__name__}: {failure}"
        with search.changed:
            search.reading.error, search.reading.finished = error, True
            search.shown = search.reading
            search.ended = self._monotonic()
            search.running = False
            search.changed.notify_all()

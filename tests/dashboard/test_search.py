"""Background searches: shown while they run, continued, repeated, stopped, and limited in threads and memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator

from dlq.dead_letters import NOW, message
from semel.dashboard.views.search import FRESH, MAX_MESSAGES, MAX_SEARCHES, STALE, THREADS, Searches, SearchResult
from semel.dlq.access import ScanPage
from semel.dlq.filter import parser as filters
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import MAX_GROUPS, DeadLetterMessage
from semel.errors import SemelError
from waiting import until

EVERYTHING = filters.parse("")


class Queue:
    """Messages that are scanned page by page, each page when a test allows it."""

    def __init__(self, count: int = 0, page: int = 100) -> None:
        self.messages: list[DeadLetterMessage] = []
        self.page = page
        self.may_go: threading.Semaphore | None = None
        self.scans: list[int] = []
        self.pages = Counter[str]()
        self.closed = 0
        self.now = 0.0
        self.add(count)

    def add(self, count: int, error: str = "Timeout: no answer") -> None:
        start = self.messages[-1].place or 0 if self.messages else 0
        self.messages += [
            message(id=f"m{place}", error=error, reason="", sent=NOW - place, place=place)
            for place in range(start + 1, start + count + 1)
        ]

    def scan(self, name: str, where: Filter, after: int | None, at: float) -> Generator[ScanPage, None, None]:
        self.scans.append(after or 0)
        left = [dead_letter for dead_letter in self.messages if (dead_letter.place or 0) > (after or 0)]
        end, scanned = after, 0
        try:
            for start in range(0, len(left), self.page):
                if self.may_go is not None:
                    assert self.may_go.acquire(timeout=60)
                self.pages[name] += 1
                page = left[start : start + self.page]
                end, scanned = page[-1].place, scanned + len(page)
                yield ScanPage(
                    [dead_letter for dead_letter in page if where.matches(dead_letter, at)], scanned, end, end, at=at
                )
            yield ScanPage([], scanned, None, end, complete=True, at=at)
        finally:
            self.closed += 1

    def searches(self) -> Searches:
        return Searches(self.scan, now=lambda: NOW, monotonic=lambda: self.now)


def finished(searches: Searches, queue: Queue, where: Filter = EVERYTHING) -> SearchResult:
    result = searches.get("dlq", where, total=len(queue.messages), wait=60)
    assert result.finished
    return result


def test_a_result_is_shown_before_the_search_has_ended() -> None:
    queue = Queue(300)
    queue.may_go = threading.Semaphore(1)
    searches = queue.searches()
    first = until(lambda: (now := searches.get("dlq", EVERYTHING, total=300, wait=0)).scanned and now, "a page")
    assert (first.scanned, first.matched, first.finished, first.complete) == (100, 100, False, False)
    queue.may_go.release(5)
    last = finished(searches, queue)
    assert (last.matched, last.complete) == (300, True)
    assert queue.scans == [0]  # however often it was asked for


def test_groups_count_all_messages_and_have_the_filter_that_selects_them() -> None:
    queue = Queue(50)
    queue.add(7, "KeyError: 'total'")
    large, small = finished(queue.searches(), queue).groups
    assert (large.count, small.count) == (50, 7)
    assert small.sample == "KeyError: 'total'"
    assert small.where is not None
    chosen = finished(queue.searches(), queue, filters.parse(small.where))
    assert (chosen.matched, chosen.scanned) == (7, 57)


def test_messages_that_were_added_are_scanned_without_the_others() -> None:
    queue = Queue(200)
    searches = queue.searches()
    finished(searches, queue)
    queue.add(3)
    assert finished(searches, queue).matched == 200  # not again so soon
    queue.now += FRESH + 1
    added = finished(searches, queue)
    assert (added.matched, added.scanned, added.end) == (203, 203, 203)
    assert queue.scans == [0, 200]


def test_when_messages_have_left_the_search_is_repeated_and_the_old_result_is_shown_until_then() -> None:
    queue = Queue(200)
    searches = queue.searches()
    finished(searches, queue)
    queue.messages = queue.messages[:50]
    queue.now += FRESH + 1
    queue.may_go = threading.Semaphore(0)
    assert searches.get("dlq", EVERYTHING, total=50, wait=0).matched == 200
    queue.may_go.release(10)
    assert finished(searches, queue).matched == 50


def test_a_request_for_a_fresh_result_repeats_the_search() -> None:
    queue = Queue(20)
    searches = queue.searches()
    finished(searches, queue)
    queue.messages = queue.messages[:5]
    assert searches.get("dlq", EVERYTHING, total=20, wait=60, fresh=True).matched == 5


def test_after_an_action_the_search_is_repeated_also_if_it_was_running() -> None:
    queue = Queue(20)
    searches = queue.searches()
    queue.may_go = threading.Semaphore(0)
    searches.get("dlq", EVERYTHING, total=20, wait=0)
    until(lambda: queue.scans, "the start")
    searches.forget("dlq")
    queue.messages = queue.messages[:5]
    queue.may_go.release(10)
    finished(searches, queue)
    assert finished(searches, queue).matched == 5
    assert queue.scans == [0, 0]


def test_an_old_search_is_repeated_because_ages_grow() -> None:
    queue = Queue(5)
    searches = queue.searches()
    finished(searches, queue)
    queue.now += STALE + 1
    finished(searches, queue)
    assert queue.scans == [0, 0]


def test_where_a_search_costs_receives_its_result_is_kept_for_its_time() -> None:
    queue = Queue(5)
    searches = queue.searches()
    for age in (0, 50, 61):
        queue.now = age
        searches.get("dlq", EVERYTHING, total=99, wait=60, valid=60)
    assert queue.scans == [0, 0]


def test_memory_is_bounded_in_messages_and_in_groups() -> None:
    queue = Queue(page=1_000)
    characters = "abcdefghijklmnopqrstuvwxyz"
    words = [f"{first}{second}" for first in characters for second in characters]
    for number in range(MAX_MESSAGES + 500):
        queue.add(1, f"Error in {words[number % 676]} of {words[number // 676]}")
    result = finished(queue.searches(), queue)
    assert result.matched == MAX_MESSAGES + 500
    assert len(result.messages) == MAX_MESSAGES
    assert len(result.groups) == MAX_GROUPS + 1
    assert sum(group.count for group in result.groups) == result.matched
    others = result.groups[-1]
    assert (others.where, others.count) == (None, 500)  # no filter selects them, so none is offered


def test_a_page_keeps_neither_bodies_nor_attributes() -> None:
    queue = Queue(1)
    queue.messages = [message(id="m1", body="x" * 100_000, error="e" * 9_000, place=1)]
    (kept,) = finished(queue.searches(), queue).messages
    assert (len(kept.body), kept.cut, kept.body_bytes) == (200, True, queue.messages[0].body_bytes)
    assert len(kept.error) == 1_000
    assert not kept.attributes


def test_an_error_is_shown_and_the_search_repeated_later() -> None:
    queue, broken = Queue(5), [True]

    def scan(name: str, where: Filter, after: int | None, at: float) -> Generator[ScanPage, None, None]:
        if broken[0]:
            raise SemelError("the broker does not answer")
        yield from queue.scan(name, where, after, at)

    searches = Searches(scan, now=lambda: NOW, monotonic=lambda: queue.now)
    assert finished(searches, queue).error == "the broker does not answer"
    broken[0] = False
    queue.now += FRESH + 1
    again = finished(searches, queue)
    assert (again.error, again.matched) == (None, 5)


# Threads.


def running() -> int:
    return sum(thread.name.startswith("semel-search") for thread in threading.enumerate())


def test_many_searches_share_a_few_threads() -> None:
    queue = Queue(10)
    queue.may_go = threading.Semaphore(0)
    searches = queue.searches()
    before = running()
    for number in range(MAX_SEARCHES):
        searches.get(f"dlq-{number}", EVERYTHING, total=10, wait=0)
    assert running() - before <= THREADS
    queue.may_go.release(10 * MAX_SEARCHES)
    for number in range(MAX_SEARCHES):
        assert searches.get(f"dlq-{number}", EVERYTHING, total=10, wait=60).matched == 10
    searches.close()


def test_a_large_queue_does_not_hold_up_a_small_one() -> None:
    small, enough = Queue(3), threading.Event()

    def scan(name: str, where: Filter, after: int | None, at: float) -> Generator[ScanPage, None, None]:
        while name != "small" and not enough.is_set():
            yield ScanPage([])
        yield from small.scan(name, where, after, at)

    searches = Searches(scan, now=lambda: NOW)
    for number in range(THREADS * 2):
        searches.get(f"large-{number}", EVERYTHING, total=10, wait=0)
    result = searches.get("small", EVERYTHING, total=3, wait=60)
    enough.set()
    assert (result.finished, result.matched) == (True, 3)
    searches.close()


def test_a_search_that_is_evicted_stops_and_releases_what_it_holds() -> None:
    queue = Queue(1_000, page=10)
    queue.may_go = threading.Semaphore(1)
    searches = queue.searches()
    until(lambda: searches.get("dlq", EVERYTHING, total=1_000, wait=0).scanned, "the first page")
    for number in range(MAX_SEARCHES):
        searches.get(f"other-{number}", filters.parse("id = none"), total=0, wait=0)
    queue.may_go.release(10_000)
    until(lambda: queue.closed == MAX_SEARCHES + 1, "the end of all searches")
    assert searches.cached("dlq", EVERYTHING) is None
    assert queue.pages["dlq"] <= 2  # of 100
    searches.close()


def test_a_closed_search_stops() -> None:
    queue = Queue(1_000, page=10)
    queue.may_go = threading.Semaphore(1)
    searches = queue.searches()
    until(lambda: searches.get("dlq", EVERYTHING, total=1_000, wait=0).scanned, "the first page")
    searches.close()
    queue.may_go.release(1)
    until(lambda: queue.closed, "the end of the scan")
    assert queue.pages["dlq"] <= 2  # of 100

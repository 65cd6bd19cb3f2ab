"""Searches over many letters: shown at once, finished later, taken up again, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from dashboard.serving import until
from dlq.dead_letters import NOW, message
from semel.dashboard.views.search import FRESH, MOST_GROUPS, MOST_ROWS, STALE, Found, Page, Searches
from semel.dlq.filter import parser as filters
from semel.dlq.filter.parser import Filter
from semel.dlq.messages import DeadLetterMessage

EVERYTHING = filters.parse("")


class Queue:
    """Letters that are read page by page, each page when a test lets it."""

    def __init__(self, count: int = 0, page: int = 100) -> None:
        self.messages: list[tuple[int, DeadLetterMessage]] = []
        self.page = page
        self.gate: threading.Semaphore | None = None
        self.reads: list[int] = []
        self.now = 0.0
        self.add(count)

    def add(self, count: int, error: str = "Timeout: no answer") -> None:
        start = self.messages[-1][0] if self.messages else 0
        for place in range(start + 1, start + count + 1):
            self.messages.append((place, message(id=f"m{place}", error=error, reason="", sent=NOW - place)))

    def read(self, _queue: str, _where: Filter, after: int) -> Iterator[Page]:
        self.reads.append(after)
        chosen = [pair for pair in self.messages if pair[0] > after]
        for start in range(0, max(1, len(chosen)), self.page):
            if self.gate is not None:
                self.gate.acquire(timeout=60)
            yield Page(list(chosen[start : start + self.page]))

    def searches(self) -> Searches:
        return Searches(self.read, now=lambda: NOW, monotonic=lambda: self.now)


def whole(searches: Searches, queue: Queue, where: Filter = EVERYTHING) -> Found:
    def looked() -> Found | None:
        found = searches.look("dlq", where, total=len(queue.messages), wait=5)
        return found if found.complete else None

    found = until(looked, "the end of the search")
    assert isinstance(found, Found)
    return found


def test_a_look_shows_what_was_found_so_far_and_does_not_wait_for_the_rest() -> None:
    queue = Queue(300)
    queue.gate = threading.Semaphore(1)
    searches = queue.searches()
    first = until(lambda: (now := searches.look("dlq", EVERYTHING, total=300, wait=0)).looked_at and now, "a page")
    assert (first.looked_at, first.matched, first.complete) == (100, 100, False)
    queue.gate.release(5)
    assert whole(searches, queue).matched == 300
    assert queue.reads == [0]  # however often somebody looked


def test_groups_count_all_letters_and_know_the_filter_that_selects_them() -> None:
    queue = Queue(50)
    queue.add(7, "KeyError: 'total'")
    found = whole(queue.searches(), queue)
    large, small = found.shown_groups()
    assert (large.count, small.count) == (50, 7)
    assert small.sample == "KeyError: 'total'"
    assert small.first <= small.last
    chosen = whole(queue.searches(), queue, filters.parse(small.where))
    assert (chosen.matched, chosen.looked_at) == (7, 57)


def test_what_came_since_is_added_without_reading_all_again() -> None:
    queue = Queue(200)
    searches = queue.searches()
    whole(searches, queue)
    queue.add(3)
    assert whole(searches, queue).matched == 200  # looked at a moment ago: not again
    queue.now += FRESH + 1
    until(lambda: whole(searches, queue).matched == 203, "the new ones")
    assert queue.reads == [0, 200]


def test_when_letters_have_left_it_is_done_anew_and_the_old_stays_until_then() -> None:
    queue = Queue(200)
    searches = queue.searches()
    whole(searches, queue)
    queue.messages = queue.messages[:50]
    queue.now += FRESH + 1
    queue.gate = threading.Semaphore(0)
    assert searches.look("dlq", EVERYTHING, total=50, wait=0).matched == 200
    queue.gate.release(10)
    until(lambda: whole(searches, queue).matched == 50, "the new search")


def test_after_an_action_the_next_look_begins_anew() -> None:
    queue = Queue(20)
    searches = queue.searches()
    whole(searches, queue)
    queue.messages = queue.messages[:5]
    searches.forget("dlq")
    until(lambda: whole(searches, queue).matched == 5, "the new search")


def test_an_old_search_is_done_anew_because_ages_grow() -> None:
    queue = Queue(5)
    searches = queue.searches()
    whole(searches, queue)
    queue.now += STALE + 1
    whole(searches, queue)
    until(lambda: queue.reads == [0, 0], "the second reading")


def test_memory_is_bounded_in_letters_and_in_groups() -> None:
    found = Found()
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "abcdefghijklmnopqrstuvwxyz"]
    for number in range(MOST_ROWS + 500):
        error = f"Error in {words[number % 676]} of {words[number // 676]}"
        found.add(number, message(id=f"m{number}", error=error, reason=""))
    assert found.matched == MOST_ROWS + 500
    assert len(found.rows) == MOST_ROWS
    assert len(found.groups) == MOST_GROUPS + 1
    assert sum(group.count for group in found.shown_groups()) == found.matched


def test_what_fails_is_told_and_tried_again_later() -> None:
    from semel.errors import SemelError

    queue, broken = Queue(5), [True]

    def read(name: str, where: Filter, after: int) -> Iterator[Page]:
        if broken[0]:
            raise SemelError("the broker does not answer")
        yield from queue.read(name, where, after)

    searches = Searches(read, now=lambda: NOW, monotonic=lambda: queue.now)
    assert whole(searches, queue).error == "the broker does not answer"
    broken[0] = False
    queue.now += FRESH + 1
    until(lambda: whole(searches, queue).error is None, "the second try")
    assert whole(searches, queue).matched == 5

"""Admission and inboxes: what threads of a queue wait for. Nothing is lost, and no thread sleeps if there is work."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from semel.consumer.admission import Admission
from semel.consumer.stage import Inbox


def test_no_more_slots_are_taken_than_there_are() -> None:
    slots = Admission(12, 1 << 20)
    assert slots.take(10, 0) == 10
    assert slots.take(10, 0) == 2
    assert slots.take(10, 0) == 0
    slots.give(3)
    assert slots.take(10, 0) == 3
    assert (slots.free, slots.in_use) == (0, 12)


def test_no_slot_is_given_out_while_too_many_bytes_are_in_flight() -> None:
    slots = Admission(12, 100)
    assert slots.take(1, 0) == 1
    slots.receive_ended(1, 1, 100)
    assert slots.take(1, 0) == 0
    slots.give(1, 50)
    assert slots.take(1, 0) == 1


def test_what_receives_under_way_are_expected_to_bring_counts_as_bytes() -> None:
    slots = Admission(40, 100)
    assert slots.take(2, 0) == 2
    slots.receive_ended(2, 1, 10)
    assert slots.take(10, 0) == 10  # some 100 bytes
    assert slots.take(10, 0) == 0
    slots.receive_ended(10)
    assert slots.take(10, 0) == 10
    assert (slots.free, slots.bytes) == (29, 10)


def test_a_single_free_slot_is_not_kept_waiting_for_company() -> None:
    slots = Admission(10, 1 << 20)
    assert slots.take(9, 0) == 9
    assert slots.take(10, 60) == 1


def test_whoever_waits_for_a_slot_is_woken_when_one_comes_free() -> None:
    slots, got = Admission(1, 1 << 20), list[int]()
    assert slots.take(1, 0) == 1
    waiting = threading.Thread(target=lambda: got.append(slots.take(1, 60)))
    waiting.start()
    slots.give(1)
    waiting.join(60)
    assert got == [1]


def test_slots_can_become_more_and_fewer_while_they_are_taken() -> None:
    slots = Admission(4, 1 << 20)
    assert slots.take(10, 0) == 4
    slots.resize(2, 0)
    assert (slots.free, slots.in_use, slots.take(10, 0)) == (0, 4, 0)
    slots.give(2)
    assert (slots.free, slots.take(10, 0)) == (0, 0)
    slots.resize(4, 1)
    assert slots.take(10, 0) == 3
    slots.give(5)
    assert (slots.free, slots.in_use) == (5, 0)


def test_whoever_waits_for_company_takes_nothing_if_there_are_too_few_meanwhile() -> None:
    class Shrinking(Admission):
        def _await(self, least: int, timeout: float) -> None:
            if least > 1:  # it waits for company, and lets others in meanwhile
                self._free, self.count = self._free - 8, self.count - 8

    slots = Shrinking(10, 1 << 20)
    assert slots.take(9, 0) == 9
    assert slots.take(10, 60) == 0
    slots.give(9)
    assert (slots.free, slots.in_use) == (2, 0)


def test_an_inbox_gives_what_it_has_in_order_and_nothing_when_closed() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(range(5))
    assert inbox.take(2, 0) == [0, 1]
    inbox.close()
    assert inbox.take(10, None) == [2, 3, 4]
    assert inbox.take(10, None) == []


@pytest.mark.parametrize("most", [1, 3])
def test_every_item_is_taken_once_by_somebody_whatever_the_order_of_waking(most: int) -> None:
    """Many threads take a few at a time and come late to what they were woken for: no wake-up may get lost."""
    inbox: Inbox[int] = Inbox()
    counts: Counter[int] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while items := inbox.take(most, None):
            with lock:
                counts.update(items)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for start in range(0, 6_000, 3):
        inbox.put(range(start, start + 3))
    while len(inbox):  # all of it without the help of `close`, which wakes everybody
        time.sleep(0.001)
    inbox.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert counts == dict.fromkeys(range(6_000), 1)


def test_a_slow_taker_does_not_keep_the_others_asleep() -> None:
    inbox: Inbox[int] = Inbox()
    all_at_work = threading.Barrier(5, timeout=60)
    done: list[int] = []

    def work() -> None:
        while items := inbox.take(1, None):
            all_at_work.wait()  # only passes if five of them work at the same time
            done.extend(items)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    inbox.put(range(5))  # one put, one wake-up: the rest is up to those who take
    inbox.put(range(5, 10))
    inbox.close()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == list(range(10))

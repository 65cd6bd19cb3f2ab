"""The order of effects within FIFO groups."""

from __future__ import annotations

from typing import Any

from semel.verify import FindingKind, HistoryEvent, check
from verify.events import event, findings_of, history, shown


def grouped(text: str, **options: Any) -> list[tuple[str, str]]:
    return findings_of(check(history(text, group="g"), **options))


def test_effects_in_the_order_of_the_sends_are_in_order() -> None:
    assert grouped("send:a send:b send:c effect:a effect:b effect:c") == []


def test_an_effect_before_that_of_a_message_ahead_of_it_is_reordered() -> None:
    (finding,) = check(history("send:a send:b effect:b effect:a", group="g")).findings
    assert (finding.kind, finding.key) == (FindingKind.REORDERED, "b")
    assert shown(finding) == ["send:a", "send:b", "effect:b", "effect:a"]
    assert finding.text == "b took effect before a, ahead of it in group g"


def test_an_effect_at_the_very_beginning_is_compared_too() -> None:
    assert grouped("effect:b send:a send:b effect:a") == [("reordered", "b")]


def test_one_that_comes_much_too_early_is_one_finding_and_so_is_one_that_comes_much_too_late() -> None:
    assert grouped("send:a send:b send:c send:d effect:d effect:a effect:b effect:c") == [("reordered", "d")]
    assert grouped("send:a send:b send:c send:d effect:b effect:c effect:d effect:a") == [("reordered", "b")]


def test_groups_and_messages_without_a_group_do_not_wait_for_each_other() -> None:
    def of(group: str, *texts: str) -> list[HistoryEvent]:
        return [each for text in texts for each in history(text, group=group)]

    assert check([*of("g", "send:a"), *of("h", "send:b"), *of("h", "effect:b"), *of("g", "effect:a")]).ok
    assert check(history("send:a send:b effect:b effect:a")).ok


def test_the_same_group_in_two_queues_is_two_groups() -> None:
    first, second = history("send:a effect:a", queue="x", group="g"), history("send:b effect:b", queue="y", group="g")
    assert check([first[0], *second, first[1]]).ok


def test_an_event_without_its_group_is_of_the_group_of_its_key() -> None:
    assert findings_of(check([*history("send:a send:b", group="g"), *history("effect:b effect:a")])) == [
        ("reordered", "b")
    ]


def test_sequence_numbers_win_over_the_order_in_which_sends_were_logged() -> None:
    sends = [event("send", "b", group="g", sequence=2), event("send", "a", group="g", sequence=1)]
    assert check([*sends, *history("effect:a effect:b")]).ok
    assert findings_of(check([*sends, *history("effect:b effect:a")])) == [("reordered", "b")]


def test_sequence_numbers_show_the_order_without_any_send() -> None:
    first, second = event("effect", "a", group="g", sequence=1), event("effect", "b", group="g", sequence=2)
    assert check([first, second]).ok
    assert findings_of(check([second, first])) == [("reordered", "b")]


def test_equal_sequence_numbers_have_no_order() -> None:
    first, second = event("effect", "a", group="g", sequence=1), event("effect", "b", group="g", sequence=1)
    assert check([first, second]).ok
    assert check([second, first]).ok


def test_those_behind_a_dead_letter_go_on_and_its_redrive_is_out_of_order_by_definition() -> None:
    assert grouped("send:a send:b dead_letter:a effect:b send:a effect:a") == []
    assert grouped("send:a send:b refuse:a effect:b") == []
    assert grouped("send:a send:b dead_letter:b send:b effect:b effect:a") == []


def test_overtaking_a_message_that_becomes_a_dead_letter_later_is_found() -> None:
    assert grouped("send:a send:b effect:b dead_letter:a") == [("reordered", "b")]


def test_overtaking_a_message_that_still_stands_in_the_queue_is_found() -> None:
    assert grouped("send:a send:b effect:b present:a") == [("reordered", "b")]


def test_a_message_that_is_lost_is_reported_as_lost_and_not_as_overtaken() -> None:
    assert grouped("send:a send:b effect:b") == [("lost", "a")]


def test_a_repeated_effect_does_not_break_the_order() -> None:
    assert grouped("send:a send:b effect:a effect:b effect:a", effects="at-least-once") == []


def test_a_group_without_sends_and_sequence_numbers_is_not_judged() -> None:
    verdict = check(history("effect:b effect:a", group="g", queue="orders.fifo"))
    assert verdict.ok
    assert ("reordered", "its groups have neither sends nor sequence numbers") in [
        (entry.check.value, entry.reason) for entry in verdict.unchecked
    ]

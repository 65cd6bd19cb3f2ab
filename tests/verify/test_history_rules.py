"""What `check` finds in a history, and what it accepts."""

from __future__ import annotations

import pytest

from semel.verify import EventKind, FindingKind, Verdict, check
from verify.events import event, findings_in, findings_of, history, shown

GOOD = "send:a deliver:a effect:a record:a delete:a send:b deliver:b effect:b record:b delete:b"


def test_a_history_in_which_each_message_has_its_effect_is_ok() -> None:
    verdict = check(history(GOOD))
    assert verdict.ok
    assert verdict.findings == ()
    assert (verdict.counts.sends, verdict.counts.effects, verdict.counts.deletes, verdict.counts.keys) == (2, 2, 2, 2)


# Lost.


def test_a_message_that_was_sent_and_is_nowhere_is_lost() -> None:
    verdict = check(history("send:a effect:a send:b deliver:b delete:b"))
    lost, early = verdict.findings
    assert (lost.kind, lost.key, shown(lost)) == (FindingKind.LOST, "b", ["send:b", "delete:b"])
    assert (early.kind, early.key, shown(early)) == (FindingKind.DELETED_EARLY, "b", ["delete:b"])


@pytest.mark.parametrize("end", ["effect", "dead_letter", "refuse", "present"])
def test_what_is_done_dead_lettered_refused_or_present_is_not_lost(end: str) -> None:
    assert findings_in(f"send:a effect:a send:b {end}:b") == []


def test_a_message_that_is_redriven_and_then_vanishes_is_lost() -> None:
    assert findings_in("send:a/m1 dead_letter:a/m1 send:a/m2 send:b effect:b") == [("lost", "a")]


def test_a_message_that_is_redriven_and_dead_lettered_again_is_not_lost() -> None:
    assert findings_in("send:a/m1 dead_letter:a/m1 send:a/m2 dead_letter:a/m2 send:b effect:b") == []


def test_a_dead_letter_that_was_logged_before_its_send_excuses_it_by_its_message() -> None:
    assert findings_in("effect:b send:b dead_letter:a/m1 send:a/m1") == []


def test_a_key_that_was_sent_twice_and_done_once_is_not_lost() -> None:
    assert findings_in("send:a/m1 send:a/m2 effect:a/m1 delete:a/m1 delete:a/m2") == []


def test_a_message_in_a_dead_letter_queue_under_another_id_is_not_lost() -> None:
    events = [
        *history("send:a/m1 send:b/m2 effect:b/m2", queue="orders"),
        *history("present:a/m9", queue="orders-dlq"),
    ]
    assert check(events).ok


def test_a_message_sent_shortly_before_the_end_may_still_be_on_its_way() -> None:
    events = [event("send", "a", time=10.0), event("effect", "a", time=11.0), event("send", "b", time=99.0)]
    assert findings_of(check(events)) == [("lost", "b")]
    verdict = check(events, grace=5.0)
    assert verdict.ok
    assert verdict.counts.pending == 1
    early = [*events, event("send", "c", time=50.0)]
    assert findings_of(check(early, grace=5.0)) == [("lost", "c")]
    deleted = [*events, event("delete", "b", time=99.5)]
    assert ("lost", "b") in findings_of(check(deleted, grace=5.0))


# Doubled.


def test_two_effects_of_a_key_are_one_finding_with_both_as_evidence() -> None:
    (doubled,) = check(history("send:a effect:a delete:a send:b effect:b effect:b")).findings
    assert (doubled.kind, doubled.key, shown(doubled)) == (FindingKind.DOUBLED, "b", ["effect:b", "effect:b"])


def test_where_at_least_once_is_promised_a_second_effect_is_a_repeat_and_no_finding() -> None:
    verdict = check(history("send:a effect:a effect:a effect:a"), effects="at-least-once")
    assert verdict.ok
    assert [(repeat.key, len(repeat.evidence)) for repeat in verdict.repeats] == [("a", 3)]
    assert verdict.counts.repeated_effects == 2


def test_the_same_key_in_two_queues_is_two_keys() -> None:
    first, second = history("send:a effect:a", queue="orders"), history("send:a effect:a", queue="invoices")
    assert check([*first, *second]).ok
    assert findings_of(check([*first, *second[:1], *history("send:b effect:b", queue="invoices")])) == [("lost", "a")]


def test_an_effect_that_names_no_queue_belongs_to_the_queue_of_its_key() -> None:
    events = [*history("send:a send:b", queue="orders"), *history("effect:a effect:b")]
    assert check(events).ok
    assert check(reversed(events)).ok
    assert findings_of(check([*events, *history("effect:b")])) == [("doubled", "b")]


def test_a_key_of_two_queues_is_one_if_its_effects_name_no_queue() -> None:
    others = [*history("send:b effect:b", queue="orders"), *history("send:b effect:b", queue="invoices")]
    sends = [*others, *history("send:a", queue="orders"), *history("send:a", queue="invoices")]
    assert check([*sends, *history("effect:a delete:a")]).ok
    assert findings_of(check([*sends, *history("effect:a effect:a")])) == [("doubled", "a")]
    in_both = [*history("effect:a", queue="orders"), *history("effect:a", queue="invoices")]
    assert check([*sends, *in_both]).ok
    assert findings_of(check([*sends, *in_both, *history("deliver:a")])) == [("doubled", "a")]
    early = [*history("delete:a", queue="invoices"), *history("effect:a")]
    assert findings_of(check([*sends, *early])) == [("deleted-early", "a")]


@pytest.mark.parametrize("end", ["present", "refuse", "dead_letter", "effect"])
def test_what_is_said_of_a_message_before_its_key_is_known_counts_for_the_key(end: str) -> None:
    done = "send:b/m2 effect:b/m2"
    assert findings_in(f"{done} {end}:/m1 send:a/m1") == []
    assert findings_in(f"{done} send:a {end}:/m1 deliver:a/m1") == []
    assert findings_in(f"{done} send:/m1 send:a/m9 deliver:a/m1") == [("lost", "a")]


def test_what_is_joined_keeps_its_order() -> None:
    done = "send:b/m2 effect:b/m2"
    # The send that was logged without a key is the later one: the dead letter before it excuses nothing.
    assert findings_in(f"{done} send:a/m0 dead_letter:a/m0 send:/m1 deliver:a/m1") == [("lost", "a")]
    assert findings_in(f"{done} send:a/m1 effect:a/m1 effect:/m9 deliver:a/m9") == [("doubled", "a")]
    assert findings_in(f"{done} send:a/m1 delete:/m9 effect:a/m1 deliver:a/m9") == [("deleted-early", "a")]
    assert findings_in(f"{done} delete:/m1 effect:/m1 send:a/m0 deliver:a/m1") == [("deleted-early", "a")]
    assert findings_in(f"{done} send:a/m1 record:a@1 record:/m9@2 effect:a deliver:a/m9") == []
    assert findings_in("send:a/m1 record:a@1 record:/m9@2 deliver:a/m9") == [("doubled", "a")]


def test_a_record_that_was_found_and_the_one_that_was_made_are_one() -> None:
    assert findings_in("send:a record:a record:a@1 record:a") == []
    assert findings_in("send:a record:a record:a@1 record:a@2") == [("doubled", "a")]


def test_a_record_stands_for_the_effect_where_none_are_logged() -> None:
    assert findings_in("send:a record:a@1 delete:a") == []
    assert findings_in("send:a record:a@1 record:a@1 delete:a") == []  # the same one, logged twice
    assert findings_in("send:a record:a@1 record:a@2 delete:a") == [("doubled", "a")]
    assert findings_in("record:b@1 send:b send:a") == [("lost", "a")]


def test_a_record_does_not_stand_for_an_effect_where_effects_are_logged() -> None:
    assert findings_in("send:a effect:a record:a send:b record:b delete:b") == [("lost", "b")]


# Deleted early.


def test_a_delete_before_the_effect_is_found_though_the_effect_follows() -> None:
    (early,) = check(history("send:a delete:a effect:a")).findings
    assert (early.kind, early.key, shown(early)) == (FindingKind.DELETED_EARLY, "a", ["delete:a", "effect:a"])


@pytest.mark.parametrize("reason", ["effect", "record", "dead_letter", "refuse"])
def test_a_delete_after_an_effect_a_record_a_dead_letter_or_a_refusal_is_in_time(reason: str) -> None:
    verdict = check(history(f"send:b effect:b send:a {reason}:a delete:a"))
    assert verdict.found.get(FindingKind.DELETED_EARLY, 0) == 0


def test_a_duplicate_of_a_key_that_is_done_may_be_deleted() -> None:
    assert findings_in("send:a/m1 effect:a/m1 delete:a/m1 send:a/m2 delete:a/m2") == []


def test_an_effect_is_not_enough_where_a_delete_needs_a_record() -> None:
    events = "send:a effect:a delete:a record:a send:b effect:b record:b delete:b"
    assert findings_in(events) == []
    assert findings_in(events, delete_after="record") == [("deleted-early", "a")]


def test_a_redrive_that_deletes_from_the_dead_letter_queue_is_not_early() -> None:
    events = [
        *history("send:a/m1 dead_letter:a/m1 send:a/m2", queue="orders"),
        *history("delete:a/m1", queue="orders-dlq"),
        *history("effect:a/m2 delete:a/m2", queue="orders"),
    ]
    assert check(events, logged=EventKind).ok


# Stale.


def test_an_effect_or_a_record_by_an_older_fence_is_stale() -> None:
    assert findings_in("send:a effect:a@2 effect:a@1", effects="at-least-once") == [("stale", "a")]
    (stale,) = check(history("send:a claim:a@1 claim:a@2 effect:a@2 record:a@1")).findings
    assert (stale.kind, [event.fence for event in stale.evidence]) == (FindingKind.STALE, [2, 1])


def test_growing_fences_are_in_order() -> None:
    assert findings_in("send:a claim:a@1 claim:a@2 effect:a@2 record:a@2 delete:a@1") == []


def test_two_workers_with_the_same_fence_are_two_holders() -> None:
    claims = [event("claim", "a", fence=1, worker="w1"), event("claim", "a", fence=1, worker="w2")]
    done = history("send:a effect:a@1")
    assert findings_of(check([*claims, *done])) == [("stale", "a")]
    assert check([claims[0], claims[0], *done]).ok  # a worker that asks again


# Unknown.


def test_an_effect_without_a_send_is_unknown() -> None:
    assert findings_in("send:a effect:a effect:b") == [("unknown", "b")]


def test_an_effect_under_its_own_key_is_known_by_its_message() -> None:
    assert findings_in("send:/m1 effect:line-1/m1 effect:line-2/m1") == []


# Keys and messages.


@pytest.mark.parametrize(
    "text",
    [
        "send:a/m1 deliver:/m1 effect:a delete:/m1",
        "send:/m1 deliver:/m1 effect:a/m1 delete:/m1",
        "send:/m1 delete:/m1 record:a/m1 effect:a",
        "effect:a send:/m1 record:a/m1 delete:/m1",
    ],
)
def test_an_event_without_a_key_belongs_to_the_key_that_another_event_gives_its_message(text: str) -> None:
    verdict = check(history(text))
    assert verdict.counts.keys == 1
    assert verdict.found.keys() <= {FindingKind.DELETED_EARLY}
    assert verdict.ok == (text.index("delete") > text.index("effect"))


def test_a_message_without_any_key_is_its_own_key() -> None:
    assert findings_in("send:/m1 effect:/m1 send:/m2") == [("lost", "m2")]


def test_an_event_that_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="names neither"):
        check(history("send:"))


# What the history does not show.


def unchecked(verdict: Verdict) -> dict[str, str]:
    return {entry.check.value: entry.reason for entry in verdict.unchecked}


def test_without_sends_nothing_is_lost_or_unknown() -> None:
    verdict = check(history("effect:a delete:a effect:b effect:b"))
    assert findings_of(verdict) == [("doubled", "b")]
    assert unchecked(verdict).keys() == {"lost", "unknown", "stale", "reordered"}
    assert unchecked(verdict)["lost"] == "no send events"


def test_without_effects_and_records_nothing_is_lost_doubled_or_deleted_early() -> None:
    verdict = check(history("send:a deliver:a delete:a"))
    assert verdict.ok
    assert unchecked(verdict).keys() == {"lost", "doubled", "deleted-early", "stale", "reordered", "unknown"}


def test_without_deletes_none_is_early() -> None:
    assert unchecked(check(history("send:a effect:a")))["deleted-early"] == "no delete events"


def test_what_is_said_to_be_logged_is_missed() -> None:
    assert findings_in("send:a deliver:a delete:a", logged=EventKind) == [("lost", "a"), ("deleted-early", "a")]


def test_a_queue_without_sends_is_not_judged_by_the_sends_of_another() -> None:
    events = [*history("send:a effect:a", queue="orders"), *history("effect:b", queue="invoices")]
    verdict = check(events)
    assert verdict.ok
    (entry,) = [entry for entry in verdict.unchecked if entry.check is FindingKind.UNKNOWN]
    assert (entry.queue, entry.reason) == ("invoices", "no send events")


def test_what_names_no_queue_is_judged_by_the_events_of_all_queues() -> None:
    events = [*history("send:a"), *history("effect:a", queue="orders"), *history("send:b")]
    assert findings_of(check(events)) == [("lost", "b")]
    events = [*history("send:a", queue="orders"), *history("effect:c")]
    assert findings_of(check(events)) == [("lost", "a"), ("unknown", "c")]


def test_a_verdict_says_that_queues_are_taken_to_be_empty_if_nothing_says_what_is_in_them() -> None:
    assert "taken to be empty" in check(history("send:a effect:a send:b")).notes[0]
    assert check(history("send:a effect:a send:b send:c present:c")).notes == ()


# The verdict.


def test_findings_are_kept_up_to_a_limit_and_all_are_counted() -> None:
    sends = [event("send", f"k{number}") for number in range(50)]
    verdict = check([*sends, *history("effect:k1")], limit=10)
    assert len(verdict.findings) == 10
    assert verdict.found == {FindingKind.LOST: 49}
    twice = check(
        [event("effect", f"k{number}") for number in (*range(50), *range(50))], effects="at-least-once", limit=10
    )
    assert (len(twice.repeats), twice.repeated) == (10, 50)


def test_duplicate_deliveries_are_counted() -> None:
    counts = check(history("send:a deliver:a deliver:a deliver:a effect:a")).counts
    assert (counts.deliveries, counts.duplicate_deliveries) == (3, 2)


def test_a_verdict_as_json_has_findings_with_their_evidence() -> None:
    content = check(history("send:a effect:a effect:a")).to_json()
    assert content["ok"] is False
    assert content["found"] == {"doubled": 1}
    assert content["findings"] == [
        {
            "kind": "doubled",
            "key": "a",
            "text": "a has 2 effects",
            "evidence": [{"kind": "effect", "key": "a"}, {"kind": "effect", "key": "a"}],
        }
    ]
    assert {"check": "deleted-early", "reason": "no delete events"} in content["unchecked"]


def test_an_empty_history_is_ok_and_nothing_was_checked() -> None:
    verdict = check([])
    assert verdict.ok
    assert verdict.counts.events == 0

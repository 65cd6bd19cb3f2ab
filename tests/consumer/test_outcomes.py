"""The outcomes of a message: done, retried, rejected, skipped; and the contents of its dead-letter message."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from driven import LEASE, Calls, Place, dead_letter_details, logged, new_place, place_of, shop, take
from semel import App, Context, Exponential, Fixed, Message, Reject, Retry, Skip
from semel.broker import running
from semel.ledger.contract import Status
from semel.messages.visibility import LONGEST
from semel.sqs import Client
from semel.telemetry.attempt_log import AttemptLog
from semel.testing.driver import Driver

HOUR = 3_600


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


class TestDone:
    def test_a_message_whose_handler_returns_is_recorded_and_deleted(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        assert worker.drain() == 1
        assert calls.attempts == [("7", 1)]
        assert place.known("7").status is Status.DONE
        assert place.is_empty()
        assert worker.consumer("orders").in_flight.admission.in_use == 0

    def test_its_result_is_kept_where_that_was_asked_for(self, place: Place) -> None:
        place.send({"id": 7})
        place.send({"id": 8})
        place.worker(shop(Calls()), keep_result=True).drain()
        assert place.known("7").result == b'{"shipped":{"id":7}}'

    def test_by_default_no_result_is_kept(self, place: Place) -> None:
        place.send({"id": 7})
        place.worker(shop(Calls())).drain()
        assert place.known("7").result == b""

    def test_a_skipped_message_is_done(self, place: Place) -> None:
        place.send({"id": 7})
        place.worker(shop(Calls(Skip("a test order")))).drain()
        assert place.known("7").status is Status.DONE
        assert place.is_empty()
        assert place.is_empty("dead")

    def test_the_ledger_remembers_for_as_long_as_the_handler_says(self, place: Place) -> None:
        place.send({"id": 7})
        place.worker(shop(Calls(), retention="2d")).drain()
        assert place.known("7").expires == pytest.approx(place.clock.now() + 2 * 86_400, abs=60)

    def test_a_message_that_comes_back_is_deleted_and_not_handled(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        place.broker.faults.set("lost-delete", 1.0)
        worker.drain()
        place.clock.advance(LEASE + 1)
        place.broker.faults.clear()
        worker.drain()
        assert calls.attempts == [("7", 1)]
        assert worker.consumer("orders").metrics.duplicates_deleted.count == 1
        assert place.is_empty()

    def test_a_message_that_is_delivered_again_to_its_own_worker_keeps_running_under_its_newest_handle(
        self, place: Place
    ) -> None:
        calls = Calls()
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        place.broker.faults.set("duplicate", 1.0)
        take(worker)
        place.broker.faults.clear()
        consumer = take(worker)
        (running,) = consumer.in_flight.deliveries.values()
        newest = running.receipt
        worker.worker.work(consumer)
        assert calls.attempts == [("7", 1)]
        assert running.received.receipt != newest
        assert place.is_empty()  # the newest handle deleted it
        assert consumer.in_flight.admission.in_use == 0

    def test_the_current_context_is_that_of_the_running_handler(self, place: Place) -> None:
        app, keys = App(), list[str]()

        @app.handler("orders")
        def ship(order: Message) -> None:
            keys.append(app.current.key)
            assert app.current.message is order
            assert app.current.queue == "orders"

        sent = place.send("anything")
        place.worker(app).drain()
        assert keys == [sent]


class TestRetry:
    def test_a_failed_message_stays_where_it_is_and_is_hidden_for_its_back_off(self, place: Place) -> None:
        calls = Calls(ValueError("no stock"))
        sent = place.send({"id": 7})
        worker = place.worker(shop(calls, retry=Fixed(20)))
        worker.drain()
        (message,) = place.messages()
        assert message["MessageId"] == sent
        assert place.hidden_for() == 20
        assert place.known("7").status is Status.FREE  # given back: nobody has to wait for the lease
        assert worker.consumer("orders").in_flight.admission.in_use == 0
        place.clock.advance(20)
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 2)]
        assert place.is_empty()

    def test_waits_grow_with_the_attempts_up_to_their_cap(self, place: Place) -> None:
        calls = Calls(*[ValueError()] * 4)
        place.send({"id": 7})
        worker, waits = place.worker(shop(calls, retry=Exponential(base=4, cap=20, jitter="none"))), []
        for _ in range(4):
            worker.drain()
            waits.append(place.hidden_for())
            place.clock.advance(waits[-1])
        assert waits == [4, 8, 16, 20]

    def test_jitter_takes_from_the_whole_wait(self, place: Place) -> None:
        place.send({"id": 7})
        place.worker(shop(Calls(ValueError()), retry=Exponential(base=100, cap=900)), chance=0.25).drain()
        assert place.hidden_for() == 25

    def test_a_handler_may_say_when_it_wants_to_be_called_again(self, place: Place) -> None:
        calls = Calls(Retry("closed on Sundays", after=7))
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        worker.drain()
        assert place.hidden_for() == 7
        place.clock.advance(7)
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 2)]

    def test_a_handler_that_wants_to_end_the_process_is_one_that_failed(self, place: Place) -> None:
        calls = Calls(SystemExit(1))
        place.send({"id": 7})
        worker = place.worker(shop(calls, retry=Fixed(1)))
        worker.drain()
        place.clock.advance(1)
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 2)]

    def test_no_wait_reaches_past_the_twelve_hours_of_a_receive(self, place: Place) -> None:
        calls = Calls(Retry(after=13 * HOUR))
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        worker.drain()
        assert LONGEST - 10 <= place.hidden_for() < LONGEST
        place.clock.advance(LONGEST)
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 2)]

    def test_what_was_spent_working_counts_towards_the_twelve_hours(self, place: Place) -> None:
        app = App(lease=43_000)

        @app.handler("orders", key="$.id")
        def ship(order: dict[str, Any]) -> None:
            place.clock.advance(41_000)
            raise Retry(after=5_000)

        place.send({"id": 7})
        worker = place.worker(app)
        take(worker)
        worker.worker.work(worker.consumer("orders"))
        assert 2_000 < place.hidden_for() <= LONGEST - 41_000

    def test_bounced_deliveries_do_not_count_as_attempts(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 7})
        place.broker.faults.set("duplicate", 1.0)
        dead = place.worker(shop(Calls()))
        take(dead)  # claims it, and is never seen again
        dead.kill()
        other = place.worker(shop(calls))
        for _ in range(3):
            take(other).returner.inbox.take(10, 0)  # the bounce does not reach SQS, which goes on showing the message
        place.broker.faults.clear()
        place.clock.advance(LEASE + 1)
        other.drain()
        assert other.consumer("orders").metrics.claimed_elsewhere.count == 3
        assert calls.attempts == [("7", 2)]  # the dead worker's attempt and this one


class TestDeadLetters:
    def test_a_rejected_message_is_moved_with_all_that_is_known_about_it(self, place: Place) -> None:
        calls = Calls(Reject("no such country"))
        sent = place.send({"id": 7, "country": "XX"}, attributes={"tenant": "acme", "photo": b"\x00\x01"})
        worker = place.worker(shop(calls))
        worker.drain()
        assert place.is_empty()
        (dead,) = place.messages("dead")
        assert dead["Body"] == '{"id": 7, "country": "XX"}'
        about = dead_letter_details(dead)
        assert about["reason"] == "rejected"
        assert about["error"] == "no such country"
        assert about["attempts"] == "1"
        assert about["key"] == "7"
        assert about["message-id"] == sent
        assert about["queue"] == "orders"
        assert about["tenant"] == "acme"
        assert "photo" in dead["MessageAttributes"]
        assert place.known("7").status is Status.REJECTED
        assert worker.consumer("orders").in_flight.admission.in_use == 0

    def test_a_message_that_is_out_of_attempts_says_what_its_last_error_was(self, place: Place) -> None:
        calls = Calls(*[ValueError("no stock")] * 9)
        place.send({"id": 7})
        worker = place.worker(shop(calls, max_attempts=3, retry=Fixed(1)))
        for _ in range(5):
            worker.drain()
            place.clock.advance(1)
        assert len(calls.attempts) == 3
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "out of attempts"
        assert dead_letter_details(dead)["error"] == "ValueError: no stock"
        assert dead_letter_details(dead)["attempts"] == "3"

    def test_a_message_that_kills_its_workers_is_given_up_on_too(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 7})
        worker = place.worker(shop(calls, max_attempts=2))
        for _ in range(2):
            worker.crash_at("before_work")
            worker.drain()
            place.clock.advance(LEASE + 1)
        worker.drain()
        assert calls.attempts == []
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "out of attempts"

    def test_a_failure_at_the_last_receive_that_sqs_allows_is_explained_before_sqs_moves_it_without_a_word(
        self, place: Place
    ) -> None:
        place.queue("parcels", dlq="dead-parcels", receives=2)
        calls = Calls(ValueError("broken"), ValueError("broken"))
        place.send({"id": 7}, "parcels")
        worker = place.worker(shop(calls, "parcels", max_attempts=5, retry=Fixed(1)))
        worker.drain()
        place.clock.advance(1)
        worker.drain()
        (dead,) = place.messages("dead-parcels")
        assert dead_letter_details(dead)["reason"] == "out of receives"
        assert dead_letter_details(dead)["key"] == "7"

    def test_an_undecodable_message_becomes_a_dead_letter_and_its_neighbours_are_handled(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 1})
        place.send("neither JSON nor anything")
        place.send({"id": 2})
        place.worker(shop(calls)).drain()
        assert sorted(calls.keys) == ["1", "2"]
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "undecodable"
        assert dead["Body"] == "neither JSON nor anything"
        assert place.is_empty()

    def test_an_undecodable_message_under_a_key_that_is_done_is_no_duplicate_and_is_not_just_deleted(
        self, place: Place
    ) -> None:
        app, done = App(), list[int]()

        @app.handler("orders", key="$.id")
        def ship(order: dict[str, int]) -> None:
            done.append(order["id"])

        place.send({"id": 7})
        worker = place.worker(app)
        worker.drain()
        place.send({"id": 7, "cents": "a lot"})
        worker.drain()
        assert done == [7]
        assert place.is_empty()
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["key"] == "7"

    def test_a_message_has_all_its_ten_attributes_again_after_a_redrive(self, place: Place) -> None:
        app, own, handled_attributes = App(), {f"a{n}": f"value {n}" for n in range(10)}, list[dict[str, Any]]()

        @app.handler("orders", key="attribute:a3")
        def ship(order: Message, ctx: Context) -> None:
            assert ctx.key == "value 3"
            handled_attributes.append(
                {name: attribute.value for name, attribute in order.attributes.items() if name in own}
            )
            if len(handled_attributes) == 1:
                raise Reject("not today")

        place.send({"id": 7}, attributes=own)
        worker = place.worker(app)
        worker.drain()
        (dead,) = place.messages("dead")
        assert len(dead["MessageAttributes"]) <= 10
        place.redrive("dead")
        worker.drain()
        assert handled_attributes == [own, own]

    def test_a_crash_after_the_copy_was_made_loses_nothing_and_its_second_copy_bears_the_same_key(
        self, place: Place
    ) -> None:
        calls = Calls(Reject("no"), Reject("no"))
        place.send({"id": 7})
        worker = place.worker(shop(calls), crash_at="after_dead_letter")
        worker.drain()
        assert worker.crashed_at == "after_dead_letter"
        assert len(place.messages()) == 1
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert place.is_empty()
        assert [dead_letter_details(dead)["key"] for dead in place.messages("dead")] == ["7", "7"]
        place.redrive("dead")  # both of them come back, and one runs
        worker.drain()
        place.clock.advance(LEASE + 2)
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 2), ("7", 1)]
        assert place.is_empty()

    def test_the_same_delivery_of_a_rejected_message_is_deleted_and_no_second_dead_letter_is_written(
        self, place: Place
    ) -> None:
        calls = Calls(Reject("no"))
        place.send({"id": 7})
        worker = place.worker(shop(calls))
        place.broker.faults.set("lost-delete", 1.0)
        worker.drain()
        place.broker.faults.clear()
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert calls.attempts == [("7", 1)]
        assert place.is_empty()
        assert len(place.messages("dead")) == 1

    def test_a_redriven_dead_letter_that_is_rejected_again_becomes_one_again(self, place: Place) -> None:
        calls = Calls(Reject("no"), Reject("no, really"))
        first = place.send({"id": 7})
        worker = place.worker(shop(calls, key=None))
        worker.drain()
        place.redrive("dead")
        worker.drain()
        assert calls.attempts == [(first, 1), (first, 1)]
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["error"] == "no, really"
        assert dead_letter_details(dead)["key"] == first
        assert dead_letter_details(dead)["message-id"] != first

    def test_a_corrected_message_runs_after_its_first_version_was_rejected(self, place: Place) -> None:
        calls = Calls(Reject("no such country"))
        place.send({"id": 7, "country": "XX"})
        worker = place.worker(shop(calls))
        worker.drain()
        place.send({"id": 7, "country": "FR"})
        worker.drain()
        assert calls.attempts == [("7", 1), ("7", 1)]
        assert place.known("7").status is Status.DONE

    def test_without_a_dead_letter_queue_it_is_said_at_the_start(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.queue("parcels")
        with caplog.at_level(logging.WARNING):
            app = shop(Calls(), "parcels")
            app.announce([place.worker(app).consumer("parcels").setup], place.ledger, place.client)
        assert "parcels has no dead-letter queue" in caplog.text

    def test_a_key_rule_that_was_changed_is_warned_of_at_the_start(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.queue("parcels")
        for rule in ("$.id", "$.id", "$.parcel.id"):
            app = App(place.ledger)
            app.handler("parcels", key=rule)(lambda _body: None)
            app.announce([place.worker(app).consumer("parcels").setup], place.ledger, place.client)
        (warning,) = [text for record in caplog.records if (text := record.getMessage()).startswith("the key of")]
        assert warning.startswith("the key of parcels is now $.parcel.id and was $.id: messages that were completed")
        assert "will run again" in warning

    def test_without_a_dead_letter_queue_a_rejected_message_stays_and_waits(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.queue("parcels")
        calls = Calls(Reject("no such country"))
        place.send({"id": 7}, "parcels")
        worker = place.worker(shop(calls, "parcels", retry=Exponential(base=1, cap=600)))
        worker.drain()
        assert len(place.messages("parcels")) == 1
        assert place.hidden_for("parcels") == 600
        assert place.known("7", "parcels").status is Status.FREE
        assert "no such country" in caplog.text
        assert worker.consumer("parcels").in_flight.admission.in_use == 0

    def test_a_dead_letter_queue_that_is_gone_keeps_the_message_in_its_own(self, place: Place) -> None:
        place.send({"id": 7})
        worker = place.worker(shop(Calls(Reject("no"))))
        consumer = take(worker)
        place.client.queue("dead").drop()
        worker.worker.work(consumer)
        assert len(place.messages()) == 1
        assert place.known("7").status is Status.FREE

    def test_dead_letters_can_go_to_a_queue_that_the_handler_names(self, place: Place) -> None:
        place.queue("graveyard")
        place.send({"id": 7})
        place.worker(shop(Calls(Reject("no")), dead_letter="graveyard")).drain()
        assert len(place.messages("graveyard")) == 1
        assert place.is_empty("dead")


class TestConflicts:
    def test_by_default_a_second_sending_with_another_body_is_a_duplicate_that_is_counted(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = Calls()
        place.send({"id": 7, "sent_at": 1})
        worker = place.worker(shop(calls))
        worker.drain()
        for n in range(2, 30):
            place.send({"id": 7, "sent_at": n})
        worker.drain()
        assert calls.attempts == [("7", 1)]
        assert place.is_empty()
        assert place.is_empty("dead")
        metrics = worker.consumer("orders").metrics
        assert (metrics.different_payloads.count, metrics.duplicates_deleted.count, metrics.conflicts.count) == (
            28,
            28,
            0,
        )
        assert len(logged(caplog, "another payload")) == 1, "the log of the process is not flooded"
        place.clock.advance(61)
        place.send({"id": 7, "sent_at": 99})
        worker.drain()
        first, second = logged(caplog, "another payload")
        assert "'7'" in first
        assert "repeated 27 more times" in second, "none is left out"

    def test_the_attempt_log_says_of_a_duplicate_that_its_body_differs(self, place: Place, tmp_path: Path) -> None:
        with closing(AttemptLog.open(str(tmp_path))) as log:
            worker = place.worker(shop(Calls()), log=log)
            for sent_at in (1, 2):
                place.send({"id": 7, "sent_at": sent_at})
                worker.drain()
        events = [json.loads(line) for file in tmp_path.glob("**/*.jsonl") for line in file.read_text().splitlines()]
        (duplicate,) = (event for event in events if event["step"] == "duplicate")
        assert "first seen with" in duplicate["error"]

    def test_one_with_another_body_waits_while_the_first_is_worked_on_and_runs_if_that_fails(
        self, place: Place
    ) -> None:
        calls = Calls(RuntimeError("later"))
        place.send({"id": 7, "sent_at": 1})
        first = place.worker(shop(calls, retry=Fixed(3_600)))
        consumer = take(first)
        place.send({"id": 7, "sent_at": 2})
        second = place.worker(shop(calls))
        second.drain()
        assert second.consumer("orders").metrics.claimed_elsewhere.count == 1
        assert second.consumer("orders").metrics.different_payloads.count == 0, "it comes again, and is counted then"
        first.worker.work(consumer)
        place.clock.advance(LEASE + 3)
        second.drain()
        assert calls.attempts == [("7", 1), ("7", 2)]
        assert second.consumer("orders").metrics.different_payloads.count == 1
        assert place.is_empty("dead")

    def test_another_payload_under_a_key_that_is_done_becomes_a_dead_letter_and_changes_nothing(
        self, place: Place
    ) -> None:
        calls = Calls()
        place.send({"id": 7, "cents": 100})
        worker = place.worker(shop(calls, payload=True))
        worker.drain()
        done = place.known("7")
        sent = place.send({"id": 7, "cents": 999})
        worker.drain()
        assert calls.attempts == [("7", 1)]
        assert place.known("7") == done
        assert place.is_empty()
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "conflict"
        assert "another payload" in dead_letter_details(dead)["error"]
        assert dead_letter_details(dead)["message-id"] == sent
        assert worker.consumer("orders").metrics.conflicts.count == 1

    def test_another_payload_under_a_key_at_work_does_too(self, place: Place) -> None:
        calls, other = Calls(), Calls()
        place.send({"id": 7, "cents": 100})
        first = place.worker(shop(calls, payload=True))
        consumer = take(first)
        place.send({"id": 7, "cents": 999})
        place.worker(shop(other, payload=True)).drain()
        assert other.attempts == []
        assert len(place.messages("dead")) == 1
        first.worker.work(consumer)
        assert calls.attempts == [("7", 1)]
        assert place.is_empty()

    def test_the_same_conflict_delivered_again_is_deleted_and_not_dead_lettered_twice(self, place: Place) -> None:
        place.send({"id": 7, "cents": 100})
        worker = place.worker(shop(Calls(), payload=True))
        worker.drain()
        place.send({"id": 7, "cents": 999})
        place.broker.faults.set("lost-delete", 1.0)
        worker.drain()
        place.broker.faults.clear()
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert place.is_empty()
        assert len(place.messages("dead")) == 1

    def test_what_may_differ_is_the_handlers_choice(self, place: Place) -> None:
        calls = Calls()
        place.send({"id": 7, "cents": 100, "at": 1})
        worker = place.worker(shop(calls, payload="$.cents"))
        worker.drain()
        place.send({"id": 7, "cents": 100, "at": 2})
        worker.drain()
        assert calls.attempts == [("7", 1)]
        assert place.is_empty()
        assert place.is_empty("dead")


class TestMissingKeys:
    def test_a_message_without_its_key_is_rejected(self, place: Place) -> None:
        calls = Calls()
        sent = place.send({"total": 3})
        place.worker(shop(calls)).drain()
        assert calls.attempts == []
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "no key"
        assert dead_letter_details(dead)["message-id"] == sent
        assert place.is_empty()

    def test_or_runs_under_its_message_id(self, place: Place) -> None:
        calls = Calls()
        sent = place.send({"total": 3})
        place.worker(shop(calls, missing_key="message-id")).drain()
        assert calls.attempts == [(sent, 1)]
        assert place.is_empty()

    def test_or_is_skipped(self, place: Place) -> None:
        calls = Calls()
        sent = place.send({"total": 3})
        place.worker(shop(calls, missing_key="skip")).drain()
        assert calls.attempts == []
        assert place.is_empty()
        assert place.is_empty("dead")
        assert place.known(sent).status is Status.DONE

    def test_a_key_function_that_raises_is_a_missing_key_and_no_crash(self, place: Place) -> None:
        place.send({"total": 3})
        place.worker(shop(Calls(), key=lambda order: order["id"])).drain()
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["reason"] == "no key"


def test_without_a_rule_two_sendings_are_two_messages_and_the_producers_key_makes_them_one(place: Place) -> None:
    calls = Calls()
    ids = [place.send({"n": 1}), place.send({"n": 1})]
    named = {"idempotency-key": "order-9"}
    place.send({"n": 2}, attributes=named)
    worker = place.worker(shop(calls, key=None))
    worker.drain()
    place.send({"n": 2}, attributes=named)
    worker.drain()
    assert sorted(calls.keys) == sorted([*ids, "order-9"])
    assert place.is_empty()


def test_two_queues_may_use_the_same_key(place: Place) -> None:
    place.queue("parcels", dlq="dead")
    calls = Calls()
    app = shop(calls)
    app.handlers |= shop(calls, "parcels").handlers
    place.send({"id": 7})
    place.send({"id": 7}, "parcels")
    assert place.worker(app).drain() == 2
    assert calls.keys == ["7", "7"]


@pytest.mark.parametrize("other", [{"region": "eu-west-1"}, {"account": "111111111111"}])
def test_queues_of_one_name_in_two_regions_or_accounts_do_not_share_their_keys(
    place: Place, other: dict[str, Any]
) -> None:
    with running(clock="manual", **other) as broker, place_of(broker) as elsewhere:
        elsewhere.queue("orders", dlq="dead")
        calls = Calls()
        for each in (place, elsewhere):
            each.send({"id": 7})
            each.worker(shop(calls), ledger=place.ledger).drain()
        assert calls.keys == ["7", "7"], "the same key is another order elsewhere"


def test_a_queue_has_the_same_keys_however_it_is_named(place: Place) -> None:
    calls = Calls()
    queue = place.client.queue("orders")
    for name in ("orders", queue.url, queue.arn, "https://sqs.us-east-1.amazonaws.com/000000000000/orders"):
        place.send({"id": 7})
        Driver(shop(calls, name), place.broker, place.client, place.ledger, now=place.clock.now).drain()
        assert place.is_empty()
    assert calls.keys == ["7"]


def test_queues_of_one_name_in_two_regions_have_keys_of_their_own(place: Place) -> None:
    calls = Calls()
    with closing(Client(place.broker.url, "eu-west-1", access_key="test", secret_key="test")) as elsewhere:
        elsewhere.create_queue("orders")
        for client in (place.client, elsewhere):
            client.queue("orders").send('{"id": 7}')
            Driver(shop(calls), place.broker, client, place.ledger, now=place.clock.now).drain()
    assert calls.keys == ["7", "7"]


def test_a_key_rule_is_remembered_for_each_region(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with running(clock="manual", region="eu-west-1") as broker, place_of(broker) as elsewhere:
        elsewhere.queue("orders", dlq="dead")
        for each, key in ((place, "$.id"), (elsewhere, "$.number")):
            app = shop(Calls(), key=key)
            worker = each.worker(app, ledger=place.ledger)
            app.announce([consumer.setup for consumer in worker.worker.consumers], place.ledger, each.client)
    assert logged(caplog, "the key of orders is now") == []

"""Batch handlers: one call for many messages, with an outcome for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from driven import LEASE, Place, dead_letter_details, new_place, take
from semel import App, Batch, Context, Fixed, Reject, SemelError, Skip, Transaction
from semel.ledger.contract import LedgerUnavailable, Status
from semel.telemetry.attempt_log import AttemptLog


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("clicks", dlq="dead")
        yield place


def send(place: Place, *ids: int) -> None:
    for n in ids:
        place.send({"id": n}, "clicks")


def status(place: Place, n: int) -> Status:
    return place.known(str(n), "clicks").status


def values(batch: Batch[dict[str, int]]) -> list[int]:
    return [item.value["id"] for item in batch]


class TestOutcomes:
    def test_all_messages_of_a_call_are_done_when_it_returns(self, place: Place) -> None:
        app, calls = App(), list[list[int]]()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]]) -> None:
            calls.append(values(batch))
            assert len(batch) == 10
            assert batch.values == [item.value for item in batch]
            assert [item.key for item in batch] == [str(n) for n in values(batch)]
            assert {item.attempt for item in batch} == {item.fence for item in batch} == {1}
            assert batch[0].message.message_id
            assert batch[0].context.queue == "clicks"

        send(place, *range(10))
        worker = place.worker(app)
        assert worker.drain() == 10
        assert [sorted(call) for call in calls] == [list(range(10))]
        assert place.is_empty("clicks")
        assert worker.consumer("clicks").in_flight.admission.in_use == 0

    def test_a_call_gets_no_more_than_its_size(self, place: Place) -> None:
        app, sizes = App(), list[int]()

        @app.batch_handler("clicks", key="$.id", size=4)
        def store(batch: Batch[dict[str, int]]) -> None:
            sizes.append(len(batch))

        send(place, *range(10))
        place.worker(app).drain()
        assert sum(sizes) == 10
        assert max(sizes) == 4

    def test_an_async_batch_handler_is_awaited(self, place: Place) -> None:
        app, calls = App(), list[list[int]]()

        @app.batch_handler("clicks", key="$.id")
        async def store(batch: Batch[dict[str, int]]) -> None:
            calls.append(values(batch))

        send(place, 1)
        assert place.worker(app).drain() == 1
        assert calls == [[1]]

    def test_each_item_can_have_an_outcome_of_its_own(self, place: Place) -> None:
        app, attempts = App(), list[tuple[int, int]]()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]]) -> None:
            for item in batch:
                attempts.append((item.value["id"], item.attempt))
                match item.value["id"], item.attempt:
                    case 2, 1:
                        item.retry("busy", after=7)
                    case 3, _:
                        item.reject("bot traffic")
                    case 4, _:
                        item.skip()

        send(place, 1, 2, 3, 4)
        worker = place.worker(app)
        worker.drain()
        assert [status(place, n) for n in (1, 2, 3, 4)] == [Status.DONE, Status.FREE, Status.REJECTED, Status.DONE]
        assert place.hidden_for("clicks") == 7
        (dead,) = place.messages("dead")
        assert (dead_letter_details(dead)["reason"], dead_letter_details(dead)["error"]) == ("rejected", "bot traffic")
        place.clock.advance(7)
        worker.drain()
        assert sorted(attempts) == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
        assert place.is_empty("clicks")

    def test_messages_of_a_failed_call_go_alone_the_next_time_so_that_a_bad_one_fails_alone(self, place: Place) -> None:
        app, calls = App(), list[list[int]]()

        @app.batch_handler("clicks", key="$.id", retry=Fixed(1), max_attempts=2)
        def store(batch: Batch[dict[str, int]]) -> None:
            calls.append(sorted(values(batch)))
            if 2 in values(batch):
                raise ValueError("two")

        send(place, 1, 2, 3)
        worker = place.worker(app)
        worker.drain()
        place.clock.advance(1)
        worker.drain()
        assert calls[0] == [1, 2, 3]
        assert sorted(calls[1:]) == [[1], [2], [3]]
        (dead,) = place.messages("dead")
        assert dead_letter_details(dead)["key"] == "2"
        assert place.is_empty("clicks")

    def test_what_cannot_be_read_does_not_reach_the_call(self, place: Place) -> None:
        app, calls = App(), list[list[int]]()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]]) -> None:
            calls.append(sorted(values(batch)))

        send(place, 1, 2)
        place.send("not JSON", "clicks")
        place.send({"no": 1}, "clicks")
        place.worker(app).drain()
        assert calls == [[1, 2]]
        assert sorted(dead_letter_details(dead)["reason"] for dead in place.messages("dead")) == [
            "no key",
            "undecodable",
        ]

    def test_a_call_that_raises_an_outcome_means_it_for_all(self, place: Place) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]]) -> None:
            raise Reject("closed") if 1 in values(batch) else Skip

        send(place, 1, 2)
        place.worker(app).drain()
        assert [status(place, n) for n in (1, 2)] == [Status.REJECTED] * 2
        assert len(place.messages("dead")) == 2

    def test_an_item_that_another_took_over_during_the_call_is_not_recorded_and_the_others_are(
        self, place: Place
    ) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]]) -> None:
            place.take_over("2", "clicks")
            place.clock.advance(LEASE / 3)
            worker.worker.beat()
            lost = [item.value["id"] for item in batch if item.context.lost.is_set()]
            assert lost == [2]

        send(place, 1, 2, 3)
        worker = place.worker(app)
        worker.drain()
        assert [status(place, n) for n in (1, 2, 3)] == [Status.DONE, Status.CLAIMED, Status.DONE]
        assert len(place.messages("clicks")) == 1


class Table:
    """The effects, in the ledger's own database."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with place.ledger.transaction() as tx:
            tx.execute("CREATE TABLE effects (id integer)")

    def all(self) -> list[int]:
        with self._place.ledger.transaction() as tx:
            return [n for (n,) in tx.execute("SELECT id FROM effects ORDER BY id")]


@pytest.fixture
def table(place: Place) -> Table:
    return Table(place)


def insert(tx: Transaction, batch: Batch[dict[str, int]]) -> None:
    tx.executemany("INSERT INTO effects VALUES (?)", [(n,) for n in values(batch)])


class TestTransactions:
    def test_one_commit_has_all_effects_and_all_records(self, place: Place, table: Table) -> None:
        app, calls = App(), list[int]()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            calls.append(len(batch))
            insert(tx, batch)

        send(place, *range(10))
        assert place.worker(app).drain() == 10
        assert calls == [10]
        assert table.all() == list(range(10))
        assert place.is_empty("clicks")

    @pytest.mark.parametrize("point", ["before_work", "before_commit", "after_record", "before_delete"])
    def test_a_death_at_any_point_leaves_each_effect_once(self, place: Place, table: Table, point: str) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            insert(tx, batch)

        send(place, *range(7))
        worker = place.worker(app, crash_at=point)
        worker.drain()
        assert worker.crashed_at == point
        assert table.all() in ([], list(range(7)))  # all or none
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert table.all() == list(range(7))
        assert place.is_empty("clicks")

    @pytest.mark.parametrize("bad", [{0}, {6}, {3}, {1, 2, 5}])
    def test_bad_ones_are_found_by_halves_and_the_others_are_committed_in_the_same_go(
        self, place: Place, table: Table, bad: set[int]
    ) -> None:
        app, calls = App(), list[set[int]]()

        @app.batch_handler("clicks", key="$.id", max_attempts=1)
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            insert(tx, batch)
            calls.append(set(values(batch)))
            if bad & set(values(batch)):
                raise ValueError("a bad one")

        send(place, *range(7))
        place.worker(app).drain()
        assert table.all() == sorted(set(range(7)) - bad)
        assert {int(dead_letter_details(dead)["key"]) for dead in place.messages("dead")} == bad
        assert place.is_empty("clicks")
        assert len(calls) <= 1 + 2 * len(bad) * 3

    def test_a_rejected_item_leaves_with_the_commit_and_the_others_count(self, place: Place, table: Table) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            for item in batch:
                if item.value["id"] == 2:
                    item.reject("bot traffic")
                else:
                    tx.execute("INSERT INTO effects VALUES (?)", (item.value["id"],))

        sent = {n: place.send({"id": n}, "clicks", attributes={"n": str(n)}) for n in (1, 2, 3)}
        place.worker(app).drain()
        assert table.all() == [1, 3]
        assert status(place, 2) is Status.REJECTED
        (dead,) = place.messages("dead")
        about = dead_letter_details(dead)
        assert about["key"] == "2"
        assert about["message-id"] == sent[2]
        assert (about["reason"], about["error"], about["n"]) == ("rejected", "bot traffic", "2")
        assert place.is_empty("clicks")

    def test_nothing_stays_of_what_was_written_for_an_item_that_is_then_rejected(
        self, place: Place, table: Table, tmp_path: Path
    ) -> None:
        app, calls, bots = App(), list[list[int]](), {2, 4}

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            calls.append(sorted(values(batch)))
            insert(tx, batch)
            for item in batch:
                if item.value["id"] in bots:
                    item.reject("bot traffic")

        send(place, *range(1, 6))
        with closing(AttemptLog.open(str(tmp_path))) as log:
            worker = place.worker(app, log=log)
            worker.drain()
        assert table.all() == [1, 3, 5]
        assert calls == [[1, 2, 3, 4, 5], [1, 3, 5]], "undone, and called again without them"
        metrics = worker.consumer("clicks").metrics
        assert (metrics.completed.count, metrics.rejected.count) == (3, 2)
        events = [json.loads(line) for file in tmp_path.glob("**/*.jsonl") for line in file.read_text().splitlines()]
        assert sorted(event["key"] for event in events if event["step"] == "recorded") == ["1", "3", "5"]
        assert sorted(event["key"] for event in events if event["step"] == "rejected") == ["2", "4"]
        bots.clear()
        place.redrive("dead", "clicks")
        worker.drain()
        assert table.all() == [1, 2, 3, 4, 5], "each once, after the redrive too"

    def test_nothing_stays_of_what_was_written_for_an_item_that_is_then_put_off(
        self, place: Place, table: Table
    ) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id", retry=Fixed(5))
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            insert(tx, batch)
            for item in batch:
                if item.value["id"] == 2 and item.attempt == 1:
                    item.retry("not yet")

        send(place, 1, 2, 3)
        worker = place.worker(app)
        worker.drain()
        assert table.all() == [1, 3]
        place.clock.advance(5)
        worker.drain()
        assert table.all() == [1, 2, 3]
        assert worker.consumer("clicks").metrics.retried.count == 1

    def test_skipped_items_are_counted(self, place: Place, table: Table) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            batch[0].skip()

        send(place, 1, 2)
        worker = place.worker(app)
        assert worker.drain() == 2
        assert worker.consumer("clicks").metrics.skipped.count == 1

    @pytest.mark.parametrize("dlq", ["dead.fifo", None])
    def test_what_is_behind_a_rejected_item_of_its_fifo_group_is_done_after_it(
        self, place: Place, table: Table, dlq: str | None
    ) -> None:
        place.queue("moves.fifo", dlq=dlq)
        app, calls = App(), list[list[int]]()

        @app.batch_handler("moves.fifo", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            calls.append(values(batch))
            insert(tx, batch)
            for item in batch:
                if item.value["id"] == 2:
                    item.reject("no such square")

        for n, group in ((1, "a"), (2, "a"), (3, "a"), (11, "b"), (12, "b")):
            place.send({"id": n}, "moves.fifo", group=group)
        worker = place.worker(app)
        worker.drain()
        done_behind = [3] if dlq else []  # without a dead-letter queue the rejected one is still there, and first
        assert table.all() == [1, *done_behind, 11, 12]
        assert calls[0] == [1, 2, 3, 11, 12]
        assert calls[1] == [1, 11, 12]
        assert len(place.messages("moves.fifo")) == (0 if dlq else 2)

    def test_a_rejected_item_of_a_transaction_runs_again_after_a_redrive(self, place: Place, table: Table) -> None:
        app, keys, photos = App(), list[str](), list[object]()

        @app.batch_handler("clicks")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            for item in batch:
                keys.append(item.key)
                photos.append(item.message.attributes["photo"].value)
                if len(keys) == 1:
                    item.reject("not today")

        first = place.send({"id": 2}, "clicks", attributes={"photo": b"\x00\x01"})
        worker = place.worker(app)
        worker.drain()
        place.redrive("dead", "clicks")
        worker.drain()
        assert keys == [first, first]
        assert photos == [b"\x00\x01"] * 2  # though an outbox carries texts only
        assert place.is_empty("clicks")

    def test_the_dead_letter_of_a_transaction_that_fails_is_not_sent(self, place: Place, table: Table) -> None:
        app, calls = App(), list[int]()

        @app.batch_handler("clicks", key="$.id", retry=Fixed(1))
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            calls.append(len(batch))
            batch[0].reject("bot traffic")
            if len(calls) == 1:
                raise ValueError("no")

        send(place, 1)
        worker = place.worker(app)
        worker.drain()
        assert place.is_empty("dead")
        place.clock.advance(1)
        worker.drain()
        assert len(place.messages("dead")) == 1

    def test_an_item_for_later_is_left_out_of_the_commit(self, place: Place, table: Table) -> None:
        app = App()

        @app.batch_handler("clicks", key="$.id", retry=Fixed(5))
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            for item in batch:
                try:
                    with tx.savepoint():
                        tx.execute("INSERT INTO effects VALUES (?)", (item.value["id"],))
                        if item.value["id"] == 2 and item.attempt == 1:
                            raise ValueError("not yet")
                except ValueError as error:
                    item.retry(str(error))

        send(place, 1, 2, 3)
        worker = place.worker(app)
        worker.drain()
        assert table.all() == [1, 3]
        assert status(place, 2) is Status.FREE
        place.clock.advance(5)
        worker.drain()
        assert table.all() == [1, 2, 3]
        assert place.is_empty("clicks")

    def test_without_a_dead_letter_queue_a_rejected_item_waits_and_the_others_are_committed(
        self, place: Place, table: Table
    ) -> None:
        place.queue("plain")
        app = App()

        @app.batch_handler("plain", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            insert(tx, batch)
            for item in batch:
                if item.value["id"] == 2:
                    item.reject("bot traffic")

        for n in (1, 2, 3):
            place.send({"id": n}, "plain")
        place.worker(app).drain()
        assert table.all() == [1, 3]
        assert len(place.messages("plain")) == 1

    def test_one_overtaken_claim_undoes_the_call_and_the_rest_is_committed_without_it(
        self, place: Place, table: Table
    ) -> None:
        app, other = App(), App()

        @app.batch_handler("clicks", key="$.id")
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            insert(tx, batch)

        @other.handler("clicks", key="$.id")
        def take_one(click: dict[str, int], tx: Transaction) -> None:
            tx.execute("INSERT INTO effects VALUES (?)", (100 + click["id"],))

        send(place, 1, 2, 3)
        worker = place.worker(app)
        consumer = take(worker, "clicks")
        second = next(delivery for delivery in consumer.in_flight.deliveries.values() if delivery.key == "2")
        place.ledger.forget([second.ledger_key])
        place.client.queue("clicks").change_visibility([(second.receipt, 0)])
        place.worker(other).drain()
        assert table.all() == [102]
        worker.worker.work(consumer)
        assert table.all() == [1, 3, 102]
        place.clock.advance(LEASE + 1)
        worker.drain()
        assert table.all() == [1, 3, 102]
        assert place.is_empty("clicks")

    def test_a_ledger_that_went_down_is_no_reason_to_look_for_a_bad_one(self, place: Place, table: Table) -> None:
        app, calls = App(), list[int]()

        @app.batch_handler("clicks", key="$.id", retry=Fixed(1))
        def store(batch: Batch[dict[str, int]], tx: Transaction) -> None:
            calls.append(len(batch))
            insert(tx, batch)
            if len(calls) == 1:
                raise LedgerUnavailable("gone")

        send(place, 1, 2, 3, 4)
        worker = place.worker(app)
        worker.drain()
        place.clock.advance(1)
        worker.drain()
        assert calls == [4, 4]
        assert table.all() == [1, 2, 3, 4]


def test_a_batch_handler_that_asks_for_what_each_item_has_is_refused() -> None:
    app = App()

    def store(batch: Batch[dict[str, int]], ctx: Context) -> None: ...

    with pytest.raises(SemelError, match="in each item"):
        app.batch_handler("clicks")(store)


def test_what_was_decoded_is_what_the_annotation_says(place: Place) -> None:
    app, batch_values = App(), list[Any]()

    @app.batch_handler("clicks")
    def store(batch: Batch[str]) -> None:
        batch_values.extend(batch.values)

    place.send("just text", "clicks")
    place.worker(app).drain()
    assert batch_values == ["just text"]

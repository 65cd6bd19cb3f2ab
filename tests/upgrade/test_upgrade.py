"""Data that earlier versions have written is readable: a data folder of the broker, and a ledger in each store.

`make.py` has written it. The clock of every test is set to one minute after that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.asking import ask, entry, finish, win
from semel.broker import EmbeddedBroker, running
from semel.consumer import key_rules
from semel.ledger.contract import Claim, Conflict, Done, Held, Ledger, Outgoing, Status, Won
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.sqs import Attribute, Client, Queue
from upgrade.make import ALL_BYTES, BODY, FORMATS, POLICY
from upgrade.saved import DATA, MADE, VERSIONS, dynamodb_ledger, postgres_ledger, redis_ledger, set_clock, unpack

NOW: Final = MADE + 60
HOUR: Final = 3_600


def made(version: str) -> dict[str, Any]:
    """What was known to those who had written the data."""
    known: dict[str, Any] = json.loads((DATA / version / "made.json").read_text())
    return known


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("format_", FORMATS)
def test_there_is_data_of_every_format_that_is_written_now(format_: str) -> None:
    known = {name: made(name)["formats"].get(format_) for name in VERSIONS}
    assert FORMATS[format_] in known.values(), (
        f"the format of {format_} is {FORMATS[format_]} now, and the data in tests/upgrade/data has {known}: keep "
        "reading the old data, and add a folder next to it with PYTHONPATH=tests .venv/bin/python -m upgrade.make NAME"
    )


class TestBroker:
    @pytest.fixture
    def broker(self, version: str, tmp_path: Path) -> Iterator[EmbeddedBroker]:
        data = unpack(DATA / version / "broker.tar.gz", tmp_path / "data")
        with running(data=data, clock="manual") as broker:
            set_clock(broker, NOW)
            yield broker

    @pytest.fixture
    def client(self, broker: EmbeddedBroker) -> Iterator[Client]:
        with Client(broker.url) as client:
            yield client

    def test_queues_have_their_attributes_tags_and_policy(self, client: Client) -> None:
        assert sorted(queue.name for queue in client.queues()) == ["orders", "orders-dlq", "payments.fifo"]
        queue = client.queue("orders")
        attributes = queue.attributes()
        assert (attributes["VisibilityTimeout"], attributes["MessageRetentionPeriod"]) == ("45", "1209600")
        assert attributes["CreatedTimestamp"] == str(int(MADE))
        assert json.loads(attributes["Policy"]) == POLICY
        assert json.loads(attributes["RedrivePolicy"]) == {
            "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dlq",
            "maxReceiveCount": 2,
        }
        assert queue.call("ListQueueTags", {})["Tags"] == {"team": "shop"}
        assert client.queue("payments.fifo").attributes()["FifoQueue"] == "true"

    def test_each_message_is_received_when_it_is_its_turn_as_it_was_sent(
        self, broker: EmbeddedBroker, client: Client
    ) -> None:
        queue = client.queue("orders")
        once, visible = queue.receive(wait=0)
        assert (once.body, once.receive_count, once.first_received_at) == ("received once", 2, MADE)
        assert (visible.body, visible.receive_count, visible.sent_at) == (BODY, 1, MADE)
        assert visible.attributes == {
            "tenant": Attribute("String", "a"),
            "price": Attribute("Number", "1.50"),
            "raw": Attribute("Binary", ALL_BYTES),
            "kind": Attribute("String.x", "y"),
        }
        assert visible.trace == "Root=1-5759e988-bd862e3fe1be46a994272793"
        assert queue.delete([once.receipt, visible.receipt]) == [None, None]

        set_clock(broker, MADE + 899)
        assert received(queue) == []
        set_clock(broker, MADE + 901)
        assert received(queue) == [("delayed", 1)]
        set_clock(broker, MADE + HOUR + 1)
        assert received(queue) == [("delayed", 2), ("in flight", 2)]
        set_clock(broker, MADE + 12 * HOUR + 1)
        assert received(queue) == [("in flight for long", 2)]

    def test_a_message_that_was_in_flight_is_deleted_with_its_receipt(
        self, broker: EmbeddedBroker, client: Client, version: str
    ) -> None:
        queue = client.queue("orders")
        assert len(broker.peek("orders", "in_flight")) == 2
        assert queue.delete([made(version)["broker"]["receipt"]]) == [None]
        assert [message["Body"] for message in broker.peek("orders", "in_flight")] == ["in flight for long"]

    def test_a_dead_letter_keeps_what_it_brought_and_receives_are_counted_on(
        self, broker: EmbeddedBroker, client: Client
    ) -> None:
        dead_letters = client.queue("orders-dlq")
        (dead,) = dead_letters.receive(wait=0)
        assert (dead.body, dead.receive_count) == ("dead letter", 3)
        assert dead.attributes == {"n": Attribute("Number", "5")}
        assert dead.source_queue == "arn:aws:sqs:us-east-1:000000000000:orders"
        dead_letters.delete([dead.receipt])

        queue = client.queue("orders")
        assert ("received once", 2) in received(queue)
        broker.clock.advance(46)
        assert "received once" not in {body for body, _ in received(queue)}
        assert received(dead_letters) == [("received once", 3)]

    def test_groups_keep_their_order_and_duplicates_are_recognised_for_five_minutes(
        self, broker: EmbeddedBroker, client: Client, version: str
    ) -> None:
        queue, known = client.queue("payments.fifo"), made(version)["broker"]
        assert queue.send("a0", group="a", dedup="d-a0").message_id == known["a0"]  # though it is deleted
        again = queue.send("b3", group="b", dedup="d-b3")
        assert (again.message_id, again.sequence) == (known["b3"], known["sequence"])
        new = queue.send("a4", group="a", dedup="d-a4")
        assert int(new.sequence or 0) > int(known["sequence"])

        bodies: list[str] = []
        while messages := queue.receive(wait=0):
            bodies += [message.body for message in messages]
            assert not any(queue.delete([message.receipt for message in messages]))
        assert [body for body in bodies if body[0] == "a"] == ["a1", "a2", "a3", "a4"]
        assert [body for body in bodies if body[0] == "b"] == ["b1", "b2", "b3"]

        set_clock(broker, MADE + 301)
        assert queue.send("b3", group="b", dedup="d-b3").message_id != known["b3"]


def received(queue: Queue) -> list[tuple[str, int]]:
    return sorted((message.body, message.receive_count) for message in queue.receive(wait=0))


@contextmanager
def sqlite_ledger(saved: Path, folder: Path) -> Iterator[tuple[str, Ledger]]:
    with SqliteLedger(str(unpack(saved, folder) / "ledger.db")) as ledger:
        yield "", ledger


Opened = AbstractContextManager[tuple[str, Ledger]]
STORES: Final[dict[str, Callable[[pytest.FixtureRequest, Path], Opened]]] = {
    "sqlite": lambda request, data: sqlite_ledger(data / "sqlite.tar.gz", request.getfixturevalue("tmp_path")),
    "postgres": lambda request, data: postgres_ledger(
        request.getfixturevalue("postgres_server"), data / "postgres.sql"
    ),
    "redis": lambda request, data: redis_ledger(request.getfixturevalue("redis_server"), data / "redis.json"),
    "dynamodb": lambda request, data: dynamodb_ledger(
        request.getfixturevalue("dynamodb_server"), data / "dynamodb.json"
    ),
}


class TestLedgers:
    @pytest.fixture(params=STORES)
    def store(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    @pytest.fixture
    def ledger(self, request: pytest.FixtureRequest, store: str, version: str) -> Iterator[Ledger]:
        with STORES[store](request, DATA / version) as (_, ledger):
            ledger.clock = lambda: NOW
            yield ledger

    @pytest.fixture
    def fences(self, store: str, version: str) -> dict[str, int]:
        fences: dict[str, int] = made(version)["fences"][store]
        return fences

    def test_what_is_recorded_stays_recorded_with_its_result(self, ledger: Ledger) -> None:
        assert ask(ledger, "done", payload="digest") == Done("done", Status.DONE, ALL_BYTES)
        assert ask(ledger, "done", payload="another") == Conflict("done", recorded=True)
        rejected = Done("rejected", Status.REJECTED, b"no such customer")
        assert ask(ledger, "rejected", source="orders/m1") == rejected
        assert entry(ledger, "done").expires == MADE + ledger.retention
        ledger.clock = lambda: MADE + ledger.retention - 1
        assert isinstance(ask(ledger, "done"), Done)
        ledger.clock = lambda: MADE + ledger.retention + 1
        assert isinstance(ask(ledger, "done"), Won)

    def test_a_dead_letter_that_is_sent_back_runs_again(self, ledger: Ledger, fences: dict[str, int]) -> None:
        won = win(ledger, "rejected", source="orders/m2")
        assert (won.attempt, won.claim.fence > fences["rejected"]) == (1, True)

    def test_a_key_with_a_lease_is_held_and_only_its_holder_can_record_it(
        self, ledger: Ledger, fences: dict[str, int]
    ) -> None:
        held = ask(ledger, "held")
        assert isinstance(held, Held)
        assert HOUR - 61 <= held.remaining <= HOUR - 59
        assert not finish(ledger, Claim("held", fences["held"] + 1))
        assert ledger.extend([Claim("held", fences["held"])], HOUR) == [True]
        assert finish(ledger, Claim("held", fences["held"]), result=b"late")
        assert ask(ledger, "held") == Done("held", Status.DONE, b"late")

    def test_a_lease_that_is_over_is_taken_over_with_its_steps_and_the_former_holder_is_fenced_off(
        self, ledger: Ledger, fences: dict[str, int]
    ) -> None:
        won = win(ledger, "left")
        assert (won.taken_over, won.attempt, won.steps) == (True, 2, {"charge": b"tx-1", "mail": b""})
        assert won.claim.fence > fences["left"]
        assert not finish(ledger, Claim("left", fences["left"]))
        assert finish(ledger, won.claim)

    def test_a_key_that_was_released_is_won_with_the_next_fence_and_its_steps(
        self, ledger: Ledger, fences: dict[str, int]
    ) -> None:
        won = win(ledger, "released")
        assert (won.taken_over, won.attempt, won.steps) == (False, 3, {"charge": ALL_BYTES})
        assert won.claim.fence > fences["released"]

    def test_the_key_rule_of_a_queue_is_known(self, ledger: Ledger) -> None:
        scope = "us-east-1:000000000000:orders"
        assert key_rules.update({scope: "$.number"}, ledger, "a") == {scope: "$.id"}

    @pytest.mark.parametrize("store", ["sqlite", "postgres", "dynamodb"], indirect=True)
    def test_the_outbox_is_handed_out_in_order_with_what_sqs_has_refused(self, ledger: Ledger) -> None:
        assert [(it.queue, it.attempts, it.error) for it in ledger.outbox_status().examples] == [
            ("nowhere", 1, "there is no such queue")
        ]
        outgoing: dict[str, Outgoing] = {}
        while messages := ledger.take_outgoing():
            outgoing |= {it.body: it for it in messages}
            ledger.sent_outgoing([it.id for it in messages])
        assert [body for body in outgoing if "order" in body] == ['{"order":1}', '{"order":2}']
        assert outgoing.keys() == {"refused", '{"order":1}', '{"order":2}', "later"}
        first = outgoing['{"order":1}']
        assert (first.queue, first.key, first.group) == ("receipts.fifo", "k1", "g")
        assert first.attributes == {"tenant": "ä"}
        assert outgoing["later"].delay == 60
        with ledger.transaction() as tx:
            tx.send("receipts", "new")
        (new,) = ledger.take_outgoing()
        assert new.id not in {it.id for it in outgoing.values()}

"""What is checked before an app receives its first message: the ledger is shared by all workers, and keeps keys for as
long as SQS can deliver."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from semel import App, Client
from semel.broker import EmbeddedBroker, running
from semel.consumer import processes
from semel.consumer.app_loader import RunOptions
from semel.consumer.explain import explain, text
from semel.consumer.preflight import warnings
from semel.consumer.queue_setup import Tools
from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.sqs import Queue

DAY = 86_400
WAYS_OUT = ("SEMEL_LEDGER", "--ledger", "App(ledger=…)", "postgresql://", "redis://", "dynamodb://")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEMEL_LEDGER", raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    with running() as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
def orders(client: Client) -> Queue:
    """Keeps messages for 4 days; its dead-letter queue for 10."""
    dead_letter_queue = client.create_queue("orders-dlq", {"MessageRetentionPeriod": str(10 * DAY)})
    policy = json.dumps({"deadLetterTargetArn": dead_letter_queue.arn, "maxReceiveCount": 5})
    return client.create_queue("orders", {"MessageRetentionPeriod": str(4 * DAY), "RedrivePolicy": policy})


def elsewhere(broker: EmbeddedBroker) -> str:
    """The same broker at an address that is not loopback, as SQS has it."""
    return broker.url.replace("127.0.0.1", "0.0.0.0")


def shop(ledger: str | None = None, **options: Any) -> App:
    app = App(ledger, **options)

    @app.handler("orders")
    def handle(order: dict) -> None: ...  # type: ignore[type-arg]

    return app


def warned(app: App, ledger: Ledger | None = None, **options: Any) -> list[str]:
    with ExitStack() as stack:
        opened = ledger or app.ledger(stack)
        setups = app.queue_setups(app.client(), opened, Tools(), **options)
        return warnings(setups, opened, app.client().endpoint)


# The ledger is seen by all workers.


def test_without_a_configured_ledger_an_app_does_not_start_unless_sqs_is_on_this_machine(
    broker: EmbeddedBroker, orders: Queue, tmp_path: Path
) -> None:
    with pytest.raises(SemelError) as raised:
        shop(endpoint_url=elsewhere(broker)).run(exit_when_empty=True)
    assert "no ledger is configured" in str(raised.value)
    assert all(way in str(raised.value) for way in (*WAYS_OUT, "sqlite:///"))
    assert list(tmp_path.iterdir()) == [], "no file was made that would be found by the next start"
    assert shop(endpoint_url=broker.url).run(exit_when_empty=True).clean
    assert (tmp_path / "semel-ledger.db").exists()


@pytest.mark.parametrize("chosen", ["app", "environment", "command line"])
def test_a_sqlite_file_that_was_chosen_is_accepted_with_a_warning_that_names_it(
    broker: EmbeddedBroker, orders: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    if chosen == "environment":
        monkeypatch.setenv("SEMEL_LEDGER", "sqlite:///mine.db")
    app = shop("sqlite:///mine.db" if chosen == "app" else None, endpoint_url=elsewhere(broker))
    if chosen == "command line":
        app.use_ledger("sqlite:///mine.db")
    (warning,) = warned(app)
    assert f"the SQLite file {tmp_path}/mine.db" in warning
    assert "other hosts or in other containers do not see this ledger" in warning
    assert "each message may then run once per host" in warning
    assert all(way in warning for way in WAYS_OUT)


def test_a_ledger_in_memory_is_warned_of_too(broker: EmbeddedBroker, orders: Queue) -> None:
    (warning,) = warned(shop("sqlite://", endpoint_url=elsewhere(broker)))
    assert "the ledger is in the memory of this process" in warning


def test_on_this_machine_a_sqlite_file_needs_no_warning(broker: EmbeddedBroker, orders: Queue) -> None:
    assert warned(shop(endpoint_url=broker.url)) == []
    assert warned(shop("sqlite:///mine.db", endpoint_url=broker.url)) == []


def test_a_ledger_that_all_hosts_reach_needs_no_warning(
    broker: EmbeddedBroker, orders: Queue, redis_server: Any
) -> None:
    assert warned(shop(redis_server.url, endpoint_url=elsewhere(broker))) == []


def test_a_warning_is_one_line_of_the_log_at_the_start(
    broker: EmbeddedBroker, orders: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    shop("sqlite:///mine.db", endpoint_url=elsewhere(broker)).run(exit_when_empty=True)
    # By this thread: apps of other tests may have threads that have not ended yet, and log what they find.
    at_the_start = [record for record in caplog.records if record.thread == threading.get_ident()]
    warned_of = [(record.name, record.getMessage()) for record in at_the_start if record.levelno == logging.WARNING]
    assert len(warned_of) == 1, warned_of
    ((logger, message),) = warned_of
    assert logger.startswith("semel.")
    assert "the ledger is the SQLite file" in message
    assert "\n" not in message


SHOP = """
from semel import App
app = App("sqlite:///mine.db", retention="5d")

@app.handler("orders")
def handle(order: dict) -> None: ...
"""


def test_explain_shows_the_warnings_as_text_and_as_json(
    broker: EmbeddedBroker, orders: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preflight_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    explained = explain(RunOptions("preflight_shop:app", endpoint_url=elsewhere(broker)))
    assert len(explained["warnings"]) == 2
    shown = " ".join(text(explained).split())
    assert all(f"WARNING: {warning}" in shown for warning in explained["warnings"])


def test_several_processes_do_not_start_with_a_ledger_in_memory(
    broker: EmbeddedBroker, orders: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = RunOptions(
        "memory_shop:app", endpoint_url=broker.url, ledger="sqlite://", processes=2, exit_when_empty=True
    )
    with pytest.raises(SemelError, match="a ledger in memory belongs to one process"):
        processes.run(options)


# The ledger keeps keys for as long as SQS can deliver.


def test_a_ledger_that_forgets_before_both_queues_do_is_warned_of(broker: EmbeddedBroker, orders: Queue) -> None:
    app = shop(endpoint_url=broker.url)
    (warning,) = warned(app, retention="13d")
    assert "the ledger keeps keys for 13d" in warning
    assert "the queue orders keeps messages for 4d and its dead-letter queue orders-dlq 10d" in warning
    assert "retention='14d'" in warning
    assert "SEMEL_RETENTION=14d" in warning
    assert warned(app, retention="14d") == []
    assert warned(app) == [], "28 days are enough for any queue"


def test_without_a_dead_letter_queue_the_retention_of_the_queue_counts(broker: EmbeddedBroker, client: Client) -> None:
    client.create_queue("orders", {"MessageRetentionPeriod": str(4 * DAY)})
    no_dlq, short = warned(shop(endpoint_url=broker.url), retention="90h")
    assert "the queue orders has no dead-letter queue" in no_dlq
    assert "keeps keys for 90h, but the queue orders keeps messages for 4d:" in short
    assert len(warned(shop(endpoint_url=broker.url), retention="4d")) == 1


def test_the_ledgers_own_retention_counts_where_no_handler_sets_one(
    broker: EmbeddedBroker, orders: Queue, tmp_path: Path
) -> None:
    with Ledger.connect(f"sqlite:///{tmp_path}/short.db", retention=1.0 * DAY) as ledger:
        (warning,) = warned(shop(endpoint_url=broker.url), ledger)
        assert "the ledger keeps keys for 1d" in warning
        assert warned(shop(endpoint_url=broker.url, retention="14d"), ledger) == []


def test_a_dead_letter_queue_that_cannot_be_looked_at_is_taken_to_keep_messages_for_14_days(
    broker: EmbeddedBroker, orders: Queue, client: Client
) -> None:
    client.queue("orders-dlq").call("DeleteQueue", {})
    (warning,) = warned(shop(endpoint_url=broker.url), retention="17d")
    assert "its dead-letter queue orders-dlq 14d" in warning
    assert warned(shop(endpoint_url=broker.url), retention="18d") == []


# Options.


def test_an_option_of_a_run_that_does_not_exist_is_an_error(broker: EmbeddedBroker, orders: Queue) -> None:
    with pytest.raises(SemelError, match="a run has no option 'concurency'; the options are concurrency, "):
        shop(endpoint_url=broker.url).run(exit_when_empty=True, concurency=4)

"""Writes, with the current code, the data that later versions must be able to read: tests/upgrade/data/VERSION.

    PYTHONPATH=tests .venv/bin/python -m upgrade.make [NAME]

The rule: an existing folder is never rewritten, and what test_upgrade.py expects of it does not change. Data that is
added here for later versions is expected only in the folders that have it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from semel.broker import EmbeddedBroker, running
from semel.broker.engine.schema import SCHEMA_VERSION as BROKER
from semel.consumer import key_rules
from semel.ledger.contract import Claim, ClaimRequest, Completion, Ledger, Status, Won
from semel.ledger.dynamodb.table import SCHEMA as DYNAMODB
from semel.ledger.postgres.statements import MIGRATIONS
from semel.ledger.redis.server_checks import SCHEMA as REDIS
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.ledger.sqlite.schema import VERSION as SQLITE
from semel.spark.segments.segment_log import FORMAT as SEGMENTS
from semel.sqs import Attribute, Client, Entry, Queue
from semel.version import __version__
from upgrade.saved import (
    DATA,
    MADE,
    dump_dynamodb,
    dump_postgres,
    dump_redis,
    dynamodb_ledger,
    pack,
    postgres_ledger,
    redis_ledger,
    set_clock,
)

FORMATS: Final = {
    "broker": BROKER,
    "sqlite": SQLITE,
    "postgres": len(MIGRATIONS),
    "redis": REDIS,
    "dynamodb": DYNAMODB,
    "segments": SEGMENTS,
}
DAY: Final = 86_400
LONGEST: Final = {"MessageRetentionPeriod": 14 * DAY}
POLICY: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"AWS": "111122223333"},
            "Action": "sqs:SendMessage",
            "Resource": "arn:aws:sqs:us-east-1:000000000000:orders",
        }
    ],
}
BODY: Final = 'visible "ä" \n'
ALL_BYTES: Final = bytes(range(256))

PIPELINE: Final = """\
name = "orders"
checkpoint = "checkpoint"
[source]
queues = ["orders"]
key = "$.id"
dedup = "segments"
endpoint_url = "{url}"
visibility = 30
max_seconds_per_batch = 5
[schema]
ddl = "id STRING NOT NULL, amount DECIMAL(10, 2)"
[rejects]
table = "rejects"
[sink]
type = "parquet"
path = "rows"
"""
FOLDER: Final = "FOLDER"  # placeholder for the folder of the pipeline, whose path is in its checkpoint


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    made: dict[str, Any] = {"formats": FORMATS, "broker": make_broker(folder), "fences": {}}
    for name, write in LEDGERS.items():
        made["fences"][name] = write(folder)
    make_pipeline(folder)
    (folder / "made.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


# The broker.


def make_broker(folder: Path) -> dict[str, str]:
    """Returns the receipts and ids that a client would have at this moment."""
    with tempfile.TemporaryDirectory() as data:
        with running(data=data, clock="manual") as broker, Client(broker.url) as client:
            set_clock(broker, MADE)
            known = {**_standard_queue(client), **_fifo_queue(client)}
        pack(Path(data), folder / "broker.tar.gz")
    return known


def _standard_queue(client: Client) -> dict[str, str]:
    dead = client.create_queue("orders-dlq", LONGEST)
    redrive = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 2})
    attributes = {**LONGEST, "RedrivePolicy": redrive, "Policy": json.dumps(POLICY), "VisibilityTimeout": 45}
    queue = client.create_queue("orders", attributes, {"team": "shop"})

    queue.send("dead letter", attributes={"n": 5})
    for _ in range(2):
        _received(queue, "dead letter", visibility=0)
    assert queue.receive(wait=0) == []  # it is in the dead-letter queue now

    queue.send("in flight")
    receipt = _received(queue, "in flight", visibility=3_600)
    queue.send("in flight for long")
    _received(queue, "in flight for long", visibility=12 * 3_600)
    queue.send("received once")
    _received(queue, "received once", visibility=0)
    queue.send("delayed", delay=900)
    queue.send(
        BODY,
        attributes={
            "tenant": "a",
            "price": Attribute("Number", "1.50"),
            "raw": ALL_BYTES,
            "kind": Attribute("String.x", "y"),
        },
        trace="Root=1-5759e988-bd862e3fe1be46a994272793",
    )
    return {"receipt": receipt}


def _received(queue: Queue, body: str, *, visibility: int) -> str:
    (message,) = queue.receive(wait=0, visibility=visibility)
    assert message.body == body
    return message.receipt


def _fifo_queue(client: Client) -> dict[str, str]:
    queue = client.create_queue("payments.fifo", LONGEST)
    queue.send("a0", group="a", dedup="d-a0")
    (message,) = queue.receive(wait=0)
    queue.delete([message.receipt])
    for number in (1, 2, 3):
        for group in ("a", "b"):
            sent = queue.send(f"{group}{number}", group=group, dedup=f"d-{group}{number}")
    assert sent.sequence is not None
    return {"a0": message.message_id, "b3": sent.message_id, "sequence": sent.sequence}


# The ledgers all have the same content.


def fill(ledger: Ledger) -> dict[str, int]:
    """Returns the newest fence of each key."""
    ledger.clock = lambda: MADE
    claims = {
        "done": _won(ledger, "done", payload="digest"),
        "rejected": _won(ledger, "rejected", source="orders/m1"),
        "held": _won(ledger, "held", lease=3_600),
        "left": _won(ledger, "left", lease=5),
    }
    for attempt in (1, 2):
        claims["released"] = _won(ledger, "released", attempt)
        assert ledger.save_step(claims["released"], "charge", ALL_BYTES)
        assert ledger.release([claims["released"]]) == [True]
    assert ledger.save_step(claims["held"], "charge", b"1")
    assert ledger.save_step(claims["left"], "charge", b"tx-1")
    assert ledger.save_step(claims["left"], "mail", b"")
    completions = [
        Completion(claims["done"], Status.DONE, ALL_BYTES),
        Completion(claims["rejected"], Status.REJECTED, b"no such customer"),
    ]
    assert ledger.record(completions) == [True, True]
    assert key_rules.update({"us-east-1:000000000000:orders": "$.id"}, ledger, "rules") == {}
    if ledger.transactional:
        _fill_outbox(ledger)
    return {key: claim.fence for key, claim in claims.items()}


def _won(
    ledger: Ledger, key: str, attempt: int = 1, *, lease: float = 30, payload: str = "", source: str = ""
) -> Claim:
    (won,) = ledger.claim([ClaimRequest(key, payload, source)], claimant=f"{key} {attempt}", lease=lease)
    assert isinstance(won, Won), won
    return won.claim


def _fill_outbox(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        tx.send("nowhere", "refused")
    (refused,) = ledger.take_outgoing()
    ledger.refused_outgoing([refused.id], error="there is no such queue", wait=30)
    for number in (1, 2):
        with ledger.transaction() as tx:
            tx.send("receipts.fifo", {"order": number}, key=f"k{number}", group="g", attributes={"tenant": "ä"})
    with ledger.transaction() as tx:
        tx.send("receipts", "later", delay=60)


def make_sqlite(folder: Path) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as data:
        with SqliteLedger(str(Path(data) / "ledger.db")) as ledger:
            fences = fill(ledger)
        pack(Path(data), folder / "sqlite.tar.gz")
    return fences


def make_postgres(folder: Path) -> dict[str, int]:
    from servers import postgres

    with postgres.running() as server, postgres_ledger(server, None) as (database, ledger):
        fences = fill(ledger)
        dump_postgres(server, database, folder / "postgres.sql")
    return fences


def make_redis(folder: Path) -> dict[str, int]:
    from servers import redis

    with redis.running() as server, redis_ledger(server, None) as (prefix, ledger):
        fences = fill(ledger)
        dump_redis(server, prefix, folder / "redis.json")
    return fences


def make_dynamodb(folder: Path) -> dict[str, int]:
    from servers import dynamodb

    with dynamodb.running() as server, dynamodb_ledger(server, None) as (table, ledger):
        fences = fill(ledger)
        dump_dynamodb(server, table, folder / "dynamodb.json")
    return fences


LEDGERS: Final[dict[str, Callable[[Path], dict[str, int]]]] = {
    "sqlite": make_sqlite,
    "postgres": make_postgres,
    "redis": make_redis,
    "dynamodb": make_dynamodb,
}


# The pipeline.


def make_pipeline(folder: Path) -> None:
    """One batch is in the table, with a row that was rejected. The second is sealed, and in no queue and no table."""
    from semel.spark import crash_points
    from semel.spark.pipeline.config_file import load
    from semel.spark.pipeline.runner import run

    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
    with tempfile.TemporaryDirectory() as name, running() as broker, Client(broker.url) as client:
        place = Path(name).resolve()
        (place / "orders.toml").write_text(PIPELINE.format(url=broker.url))
        queue = client.create_queue("orders")
        queue.send_many([Entry(order(0)), Entry(order(1)), Entry("no order")])
        report = run(load(place / "orders.toml"), exit_when_empty=True, show="none")
        assert report.clean, report.error
        queue.send_many([Entry(order(2)), Entry(order(3))])
        with dying(crash_points):
            report = run(load(place / "orders.toml"), exit_when_empty=True, show="none")
        assert report.error is not None
        assert _waiting(queue) == 0
        _remove_traces(place, broker)
        pack(place, folder / "pipeline.tar.gz")


def order(number: int) -> str:
    return json.dumps({"id": f"o{number}", "amount": f"{number}.50"})


@contextmanager
def dying(crash_points: Any) -> Iterator[None]:
    """The driver dies before the sink commits."""

    def reached(point: str) -> None:
        if point == "before-commit":
            raise RuntimeError("the driver dies")

    former, crash_points.reached = crash_points.reached, reached
    try:
        yield
    finally:
        crash_points.reached = former


def _waiting(queue: Queue) -> int:
    counts = queue.attributes()
    return sum(int(counts[f"ApproximateNumberOfMessages{part}"]) for part in ("", "NotVisible"))


def _remove_traces(place: Path, broker: EmbeddedBroker) -> None:
    """Remove traces of the machine on which the data is made: the folder, the broker's address and the host name."""
    (place / "checkpoint" / "lock").unlink()
    for path in (path for path in place.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix in (".json", ".toml"):
            data = data.replace(str(place).encode(), FOLDER.encode()).replace(broker.url.encode(), b"URL")
            data = data.replace(socket.gethostname().encode(), b"host")
            path.write_bytes(data)
        for trace in (str(place), broker.url, socket.gethostname()):
            assert trace.encode() not in data, f"{path} has {trace} in it"


def main(arguments: list[str]) -> int:
    folder = DATA / (arguments[0] if arguments else __version__)
    if folder.exists():
        sys.exit(f"{folder} is there, and stays as it was written. Another name: python -m upgrade.make NAME")
    make(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:8,} {path.relative_to(DATA)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

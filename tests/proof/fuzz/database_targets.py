"""Targets for SQLite's files, with flipped bits or cut short.

SQLite has no checksums, so it finds only damage to its own structure. A changed byte within a value can be found only
by the reader of the value: clients check a body against its stored MD5, but nothing protects a key of the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from hashlib import md5
from random import Random
from typing import Any, Final

import orjson

from fuzz import scratch
from fuzz.broker_harness import CALLER, url
from fuzz.complaints import no_error_logged
from fuzz.damage import damaged
from semel.broker.engine import Engine, Received
from semel.broker.engine.schema import DATABASE_NAME, open_database
from semel.broker.faults import Faults
from semel.broker.startup import Options, open_engine
from semel.errors import SemelError, StartError
from semel.ledger.contract import Claim, ClaimRequest, Completion, Status, Won
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.sqs.errors import ServiceError

NOW: Final = 1_790_000_000.0
KEYS: Final = tuple(f"us-east-1:000000000000:orders/key-{number}" for number in range(12))
BODIES: Final = tuple(f"body {number} " + "x" * 50 * number for number in range(12))

_new_folder = cache(scratch.folder)


@cache
def _ledger() -> bytes:
    """The file of a ledger with keys that are done, rejected, claimed and released."""
    path = _new_folder("ledger") / "new.db"
    with closing(SqliteLedger(str(path), clock=lambda: NOW, synchronous="OFF")) as ledger:
        requests = [ClaimRequest(key, "digest", "orders/m") for key in KEYS]
        claims = [won.claim for won in ledger.claim(requests, claimant="w", lease=30.0) if isinstance(won, Won)]
        ledger.record([Completion(claim, Status.DONE, b"result") for claim in claims[:5]])
        ledger.record([Completion(claims[5], Status.REJECTED, b"no")])
        ledger.save_step(claims[6], "paid", b"yes")
        ledger.release(claims[7:8])
    return path.read_bytes()


def fuzz_ledger_file(data: bytes) -> None:
    """A ledger's file after damage: every operation is carried out, or raises a SemelError that names the file. An
    undamaged file still has all records."""
    path = _new_folder("ledger") / "ledger.db"
    for old in path.parent.glob("ledger.db*"):
        old.unlink()
    content = damaged(_ledger(), data)
    path.write_bytes(content)
    try:
        with closing(SqliteLedger(str(path), clock=lambda: NOW, synchronous="OFF", timeout=0.2)) as ledger:
            _use(ledger, intact=content == _ledger())
    except SemelError as error:
        assert str(path) in str(error), error


def _use(ledger: SqliteLedger, *, intact: bool) -> None:
    operations: tuple[Callable[[], object], ...] = (
        lambda: ledger.get(KEYS),
        lambda: ledger.claim([ClaimRequest(key, "", "orders/m") for key in (*KEYS, "new")], claimant="w2", lease=30.0),
        lambda: ledger.record([Completion(Claim(KEYS[6], 1), Status.DONE, b"")]),
        lambda: ledger.forget(KEYS[:1]),
        lambda: ledger.purge(100),
        ledger.outbox_status,
        ledger.take_outgoing,
    )
    for operation in operations:
        try:
            operation()
        except SemelError as error:
            assert ledger.path in str(error), error
            assert not intact
    if intact:
        entries = ledger.get(KEYS[1:6])
        assert [entry and entry.status for entry in entries] == [Status.DONE] * 4 + [Status.REJECTED]


@cache
def _broker() -> bytes:
    """A broker's database with a Standard and a FIFO queue. Both have messages, and some are in flight."""
    folder = _new_folder("broker-new")
    engine = Engine(open_database(folder), Random(1), cooldowns=False)
    engine.begin()
    tags = {"team": "a"}
    engine.perform("CreateQueue", {"QueueName": "orders", "Attributes": {"DelaySeconds": "0"}, "tags": tags}, CALLER)
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    engine.perform("CreateQueue", {"QueueName": "orders.fifo", "Attributes": fifo}, CALLER)
    for body in BODIES:
        attributes = {"a": {"DataType": "String", "StringValue": "v"}}
        message = {"MessageBody": body, "MessageAttributes": attributes}
        engine.perform("SendMessage", {"QueueUrl": url("orders"), **message}, CALLER)
        engine.perform("SendMessage", {"QueueUrl": url("orders.fifo"), **message, "MessageGroupId": "g"}, CALLER)
    engine.perform("ReceiveMessage", {"QueueUrl": url("orders"), "MaxNumberOfMessages": 3}, CALLER)
    engine.flush()
    engine.commit()
    engine.committed()
    engine.close()
    return (folder / DATABASE_NAME).read_bytes()


def fuzz_broker_file(data: bytes) -> None:
    """A broker's database after damage: it gives a StartError, or the broker starts. Then it serves the bodies that
    were sent, or bodies that do not match their stored checksum, which clients leave out; or a call fails."""
    folder = _new_folder("broker")
    for old in folder.iterdir():
        old.unlink()
    content = damaged(_broker(), data)
    (folder / DATABASE_NAME).write_bytes(content)
    try:
        engine = open_engine(Options(data=folder, cooldowns=False), Faults(0))
    except StartError as error:
        assert str(folder) in str(error)
        assert content != _broker()
        return
    try:
        with no_error_logged():
            served = [body for name in ("orders", "orders.fifo") for body in _served(engine, name)]
    except _CallFailed:
        assert content != _broker()
        return
    finally:
        engine.close()
    assert set(served) <= set(BODIES)
    assert content != _broker() or len(served) == len(BODIES) - 3 + 10


class _CallFailed(Exception):
    pass


def _served(engine: Engine, queue: str) -> list[str]:
    """The bodies that a client accepts from a queue: those that match their checksums."""
    bodies: list[str] = []
    for _ in range(3):
        params = {"QueueUrl": url(queue), "MaxNumberOfMessages": 10, "AttributeNames": ["All"]}
        try:
            engine.begin()
            result = engine.call("ReceiveMessage", params, CALLER)
            engine.flush()
            engine.commit()
            engine.committed()
        except (sqlite3.Error, ServiceError) as error:  # the call fails because of the damage
            raise _CallFailed from error
        if not isinstance(result, Received):
            break
        try:
            messages: list[dict[str, Any]] = orjson.loads(result.json).get("Messages", [])
        except orjson.JSONDecodeError:
            break  # the client refuses the whole answer
        if not all(isinstance(message.get("Body"), str) for message in messages):
            break
        bodies += [message["Body"] for message in messages if _is_taken(message["Body"], message.get("MD5OfBody"))]
    return bodies


def _is_taken(body: str, checksum: str | None) -> bool:
    """Whether `semel.sqs`, like other clients, accepts the body."""
    return checksum is None or md5(body.encode()).hexdigest() == checksum

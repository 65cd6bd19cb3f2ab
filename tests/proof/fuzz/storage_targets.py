"""Targets for the segment log of Spark pipelines, with flipped bits or cut short."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import orjson
import pyarrow as pa

from fuzz.damage import damaged
from semel.errors import SemelError
from semel.spark.segments import codec
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.segments.model import SegmentAck, SegmentId, Totals, folder
from semel.spark.segments.segment_log import (
    COMMITS,
    FORMAT,
    FORMER_COMMITTED,
    FORMER_UNCONFIRMED,
    IDENTITY,
    PLAN,
    SegmentLog,
)

META: Final = Meta("orders", "attempt-1", True, 1_790_000_000.0)
TABLE: Final = pa.table({"message_id": ["m-1", "m-2"], "body": ["one", None], "sent": [1.5, 2.5], "n": [1, -1]})


@cache
def segment() -> bytes:
    return codec.encode(TABLE, META)


def fuzz_segment(data: bytes) -> None:
    """A sealed segment after damage: reading it raises SegmentDamaged, or gives exactly the rows and metadata that were
    sealed. The first byte chooses whether the input is damage to a sealed segment, or all of its bytes."""
    stored = damaged(segment(), data[1:]) if data[:1] < b"\x80" else data[1:]
    try:
        meta, table = codec.decode(stored, "b1/t1")
    except SegmentDamaged:
        return
    assert meta == META
    assert table.equals(TABLE)


class MemoryStore:
    """A store in memory, for the segment log."""

    url = "memory"
    spark_url = "memory"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def put(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.files.setdefault(name, data) is data

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def names(self, folder: str = "") -> list[str]:
        return self.names_with(folder)

    def names_with(self, prefix: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def delete(self, names: Any) -> None:
        for name in names:
            self.files.pop(name, None)


SEGMENT: Final = SegmentId(7, 1, 0)
PLANNED: Final = {"batch": 7, "id": "p", "plan": {"orders": 2}}
FILES: Final = {
    IDENTITY: orjson.dumps({"id": "0123456789ab", "format": FORMAT, "queues": ["orders"], "owner": "orders"}),
    f"{folder(7)}/{PLAN}": orjson.dumps(PLANNED),
    SEGMENT.ack_name("attempt-1"): orjson.dumps(
        {
            "queue": "orders",
            "rows": 2,
            "bytes": 10,
            "received": 2,
            "redelivered": 0,
            "in_ledger": 0,
            "duplicates": 0,
            "backlog": 0,
            "deleted": True,
            "unconfirmed": {"m-1": 5},
            "confirmed": [],
            "refused": [],
            "attempt": "attempt-1",
        }
    ),
    f"{COMMITS}/0000000006.json": orjson.dumps(
        {"through": 6, "totals": {"batches": 6, "rows": 100}, "unconfirmed": {"orders": {"m-1": 1_790_000_000_000}}}
    ),
    # Files of the former format, which can still be read.
    FORMER_UNCONFIRMED: orjson.dumps({"orders": {"m-1": 1_790_000_000_000}}),
    FORMER_COMMITTED: orjson.dumps({"through": 6, "totals": {"batches": 6, "rows": 100}}),
    "returned/0000000006.json": orjson.dumps({"m-2": 1_790_000_000.5}),
}


def fuzz_segment_log(data: bytes) -> None:
    """One file of the segment log is replaced by other bytes: each question about the log is answered with a value of
    the right shape, or with a SemelError that names the file. The first byte chooses the file."""
    names = list(FILES)
    name = names[data[0] % len(names)] if data else names[0]
    log = SegmentLog(MemoryStore({**FILES, SEGMENT.name: segment(), name: data[1:]}))
    for question in _QUESTIONS:
        try:
            question(log)
        except SemelError as error:
            assert "memory" in str(error), error


def _identity(log: SegmentLog) -> None:
    log.check("0123456789ab", ("orders",), "orders")
    assert log.content(7).log


def _plan(log: SegmentLog) -> None:
    log.seal_plan(PLANNED, "orders")


def _ack(log: SegmentLog) -> None:
    ack = log.read_ack(SEGMENT, "attempt-1")
    assert isinstance(ack, SegmentAck)
    Totals().add(ack)
    assert all(isinstance(sent, int) for sent in ack.unconfirmed.values())
    assert isinstance(ack.rows, int)
    assert isinstance(ack.deleted, bool)


def _committed(log: SegmentLog) -> None:
    committed = log.committed()
    assert isinstance(committed.through, int)
    assert all(isinstance(getattr(committed.totals, name), int) for name in Totals.__dataclass_fields__)
    assert all(isinstance(batch, int) for batch in log.begun())


def _unconfirmed(log: SegmentLog) -> None:
    for sent in log.unconfirmed_deletes().values():
        assert all(isinstance(at, int) for at in sent.values())


def _returned(log: SegmentLog) -> None:
    assert all(isinstance(until, float | int) for until in log.returned().values())


_QUESTIONS: Final = (_identity, _plan, _ack, _committed, _unconfirmed, _returned)

"""The source's events can be matched: a delete names the delivery that it belongs to."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa

from semel.spark.source import columns
from semel.spark.source.acknowledger import PendingAck
from semel.spark.source.attempt_events import Tracer
from semel.spark.source.columns import SourceMessage
from semel.sqs.client import Received


def source_message(number: int) -> SourceMessage:
    system = {"ApproximateReceiveCount": str(number), "MessageGroupId": "eu", "SentTimestamp": "5000"}
    message = Received(f"id-{number}", f"receipt-{number}", "body", system=system)
    return SourceMessage(message, 10.0, 40.0, f"key-{number}")


def deletes(*ids: str) -> PendingAck:
    return PendingAck(pa.table({"message_id": list(ids)}), [])


def events(folder: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for file in folder.rglob("attempts-*.jsonl") for line in file.read_bytes().splitlines()]


def test_a_delete_has_the_receive_count_and_key_of_its_delivery(tmp_path: Path) -> None:
    tracer = Tracer(str(tmp_path), "orders", 30)
    tracer.received([source_message(1), source_message(2)])
    tracer.deleted(deletes("id-1", "id-2"), {"id-2": 5000})
    tracer.close()
    steps = [(e["step"], e["message_id"], e["receive_count"], e["key"], e["group"]) for e in events(tmp_path)]
    assert steps == [
        ("received", "id-1", 1, "key-1", "eu"),
        ("received", "id-2", 2, "key-2", "eu"),
        ("deleted", "id-1", 1, "key-1", "eu"),
        ("delete_failed", "id-2", 2, "key-2", "eu"),
    ]


def test_so_has_one_that_another_task_received(tmp_path: Path) -> None:
    tracer = Tracer(str(tmp_path), "orders", 30)
    tracer.received_before(columns.table([source_message(3)], "orders", None))
    tracer.deleted(deletes("id-3", "id-4"), {})
    tracer.close()
    known, unknown = events(tmp_path)
    assert (known["step"], known["receive_count"], known["key"]) == ("deleted", 3, "key-3")
    assert unknown["message_id"] == "id-4"
    assert "receive_count" not in unknown


def test_without_a_log_nothing_is_kept() -> None:
    tracer = Tracer(None, "orders", 30)
    tracer.received([source_message(1)])
    tracer.received_before(columns.table([source_message(3)], "orders", None))
    tracer.deleted(deletes("id-1"), {})
    tracer.close()
    assert tracer._known == {}

"""Reading a segment gives what was sealed, or an error."""

from __future__ import annotations

import pytest

from semel.spark.segments import codec
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.source import columns
from semel.spark.source.columns import SourceMessage
from semel.sqs import Received

META = Meta("orders", "attempt", True, 1_700_000_000.5)


def message(number: int, **system: str) -> SourceMessage:
    known = {"SentTimestamp": "1700000000123", "ApproximateReceiveCount": "2", **system}
    attributes: dict[str, str | bytes | int] = {"n": number, "bin": b"\x00\xff"} if number % 2 else {}
    return SourceMessage(
        Received(f"id-{number}", f"receipt-{number}", "é" * number, known, attributes), 1.5, 2.0, f"k{number}", 7
    )


def sealed(count: int = 5) -> bytes:
    return codec.encode(columns.table([message(n) for n in range(count)], "orders", None), META)


def test_a_segment_gives_back_what_was_sealed() -> None:
    meta, table = codec.decode(sealed(), "here")
    assert meta == META
    assert table.schema.equals(columns.SEALED_COLUMNS)
    row = table.to_pylist()[3]
    assert row["message_id"] == "id-3"
    assert row["body"] == "ééé"
    assert row["key"] == "k3"
    assert row["receive_count"] == 2
    assert row["sent_at"].timestamp() == 1_700_000_000.123
    assert row["first_received_at"] is None
    assert dict(row["attributes"]) == {"n": "3", "bin": "AP8="}
    assert row["receipt"] == "receipt-3"
    assert row["fence"] == 7


def test_an_empty_segment_is_a_segment() -> None:
    meta, table = codec.decode(sealed(0), "here")
    assert meta.last
    assert len(table) == 0


def test_what_nobody_asked_for_is_not_sealed() -> None:
    table = columns.table([message(1)], "orders", ("body",))
    assert table.column("attributes").null_count == 1
    assert table.column("body").to_pylist() == ["é"]
    assert table.column("receipt").to_pylist() == ["receipt-1"]


def test_a_segment_cut_short_anywhere_is_an_error() -> None:
    data = sealed()
    for length in range(len(data)):
        with pytest.raises(SegmentDamaged):
            codec.decode(data[:length], "here")


def test_a_flipped_bit_anywhere_is_an_error() -> None:
    data = sealed()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        with pytest.raises(SegmentDamaged, match="segment s3://log/b1 is damaged"):
            codec.decode(bytes(flipped), "s3://log/b1")


def test_a_body_that_is_no_text_does_not_stop_the_others() -> None:
    half_pair = SourceMessage(Received("id", "receipt", "half \ud800 a pair"), 0.0, 1.0, None)
    assert columns.table([half_pair, message(1)], "orders", None).column("body").to_pylist() == ["half ? a pair", "é"]

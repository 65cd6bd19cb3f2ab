"""A segment: what one task received from a queue, as one checksummed Arrow stream.

    Arrow IPC stream · blake2b-128 of it · its length, 8 bytes · "SEMELSG1"

The rule: a segment is read completely and verified before any of its rows is given out. A truncated file or a flipped
bit is an error; it never leads to fewer or different rows.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from semel.errors import SemelError

MAGIC: Final = b"SEMELSG1"
_DIGEST: Final = 16
_TRAILER: Final = _DIGEST + 8 + len(MAGIC)
_META: Final = b"semel"
# Up to these sizes, handing the work to Arrow's threads takes longer than the work itself.
_FEW_ROWS: Final = 1_000
_FEW_BYTES: Final = 1 << 18


class SegmentDamaged(SemelError):
    """A sealed segment has changed. The batch stops: its messages exist nowhere else. Restore the file from a copy; see
    docs/reference/spark.md."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"segment {where} is damaged: {what}. It holds messages that are no longer in the queue, so nothing of "
            "its batch is given out. Restore this one file from a copy, or see 'A damaged segment' in "
            "docs/reference/spark.md."
        )


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of a segment. `attempt`: the attempt that sealed it. `last`: it is the last segment of its task."""

    queue: str
    attempt: str
    last: bool
    hidden_until: float  # seconds since 1970 by SQS's clock: its receipts are valid until then; 0 if not known


def encode(table: pa.Table, meta: Meta) -> bytes:
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({_META: json.dumps(asdict(meta)).encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=len(table) > _FEW_ROWS)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    return b"".join((body, blake2b(body, digest_size=_DIGEST).digest(), body.size.to_bytes(8, "little"), MAGIC))


def decode(data: bytes, where: str) -> tuple[Meta, pa.Table]:
    """Decodes a sealed segment into its metadata and its messages, an Arrow table. Raises SegmentDamaged, which names
    it as `where`.

    >>> from pathlib import Path
    >>> from semel.spark import decode_segment
    >>> path = Path("checkpoint/segments/b1/t0.seg")
    >>> meta, messages = decode_segment(path.read_bytes(), str(path))  # doctest: +SKIP
    """
    body = _verified(data, where)
    try:
        options = pa.ipc.IpcReadOptions(use_threads=len(data) > _FEW_BYTES)
        with pa.ipc.open_stream(body, options=options) as reader:
            table = reader.read_all()
        fields: dict[str, Any] = json.loads((table.schema.metadata or {})[_META])
        return Meta(**fields), table.replace_schema_metadata(None)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise SegmentDamaged(where, f"it was written by a version that this one cannot read ({error})") from error


def _verified(data: bytes, where: str) -> pa.Buffer:
    if len(data) < _TRAILER or data[-len(MAGIC) :] != MAGIC:
        raise SegmentDamaged(where, f"its end is missing ({len(data)} bytes are there)")
    size = int.from_bytes(data[-len(MAGIC) - 8 : -len(MAGIC)], "little")
    if size != len(data) - _TRAILER:
        raise SegmentDamaged(where, f"{len(data) - _TRAILER} of its {size} bytes are there")
    body = pa.py_buffer(data).slice(0, size)
    if blake2b(body, digest_size=_DIGEST).digest() != data[size : size + _DIGEST]:
        raise SegmentDamaged(where, "its checksum does not fit: bits have changed")
    return body

"""Opens log files wherever they are, unpacks what is compressed, and splits them into texts of whole lines.

The rule: a file that breaks off is not a failure. The lines before that count, and the reason is raised as BrokenLog
after them.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import orjson

from semel.doctor.logs.discovery import Kind, LogFile
from semel.errors import SemelError
from semel.extras import importing
from semel.telemetry.field_mapping import Path, value_at, written

CHUNK: Final = 16 * 1024 * 1024  # smaller ones cost more planning, larger ones more memory management
LONGEST_LINE: Final = 64 * 1024 * 1024  # bytes
_ROWS: Final = 10_000  # of CSV, or of a document, at once


class BrokenLog(SemelError):
    """The rest of a file cannot be read. Copy the file again from its source."""


class Text(NamedTuple):
    """Whole lines, the number of the first, and how many bytes of the file (perhaps compressed) were read for them."""

    text: str
    first_line: int
    bytes: int = 0


def texts(file: LogFile, records: Path | None = None) -> Iterator[Text]:
    """All lines of a file. `records`: the file is one JSON document, with its lines in the list at this path."""
    place = 0
    try:
        with _raw(file) as raw:
            stream = unpacked(raw, file.compression)
            for text in (
                _from_document(stream, records)
                if records is not None
                else _from_csv(stream)
                if file.kind is Kind.CSV
                else split(stream)
            ):
                before, place = place, raw.tell()
                yield text._replace(bytes=place - before)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise BrokenLog(f"{file.address}: {_reason(error)}") from None


@contextmanager
def opened(file: LogFile) -> Iterator[Any]:
    """The file's content, unpacked."""
    with _raw(file) as raw:
        yield unpacked(raw, file.compression)


def unpacked(raw: BinaryIO, compression: str | None) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        return bz2.BZ2File(raw)
    if compression == "zstd":
        return _zstd(raw)
    return raw


def _zstd(raw: BinaryIO) -> Any:
    with importing("reading zstd", extra="doctor"):
        zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

    class Stream(io.RawIOBase):
        """Turns zstd's own error into an OSError."""

        def __init__(self) -> None:
            self._file = zstd.ZstdFile(raw)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            try:
                data = self._file.read1(len(buffer))
            except zstd.ZstdError as error:
                raise OSError(str(error)) from None
            buffer[: len(data)] = data
            return len(data)

    return io.BufferedReader(Stream())


@contextmanager
def _raw(file: LogFile) -> Iterator[BinaryIO]:
    if file.store:
        from semel.doctor.logs import remote_files

        yield remote_files.stream(file)
        return
    with open(file.path, "rb") as raw:
        yield raw


class Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def split(stream: Readable, first_line: int = 1) -> Iterator[Text]:
    """The lines of a stream; the last may lack its line break. An error is raised after the lines before it."""
    rest, failure = b"", None
    while failure is None:
        block, failure = _block(stream)
        if not block:
            break
        end = block.rfind(b"\n") + 1
        if not end and len(rest) + len(block) <= LONGEST_LINE:
            rest += block
            continue
        end = end or len(block)
        whole, rest = b"".join((rest, memoryview(block)[:end])), block[end:]
        yield Text(whole.decode("utf-8", "replace"), first_line)
        first_line += whole.count(b"\n")
    if rest:
        yield Text(rest.decode("utf-8", "replace"), first_line)
    if failure is not None:
        raise failure


def _block(stream: Readable) -> tuple[bytes, Exception | None]:
    """The next bytes, and the error that ended them. One read of that size would lose what came before an error."""
    parts: list[bytes] = []
    missing = CHUNK
    try:
        while missing > 0 and (part := stream.read1(missing)):
            parts.append(part)
            missing -= len(part)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def _from_csv(stream: BinaryIO) -> Iterator[Text]:
    """CSV with a header, each row as a JSON object."""
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="") as text:
        reader = csv.DictReader(text)
        while True:
            first_line = reader.line_num + 1 if reader.fieldnames else 2
            rows = [{str(name): value for name, value in row.items() if name} for row in islice(reader, _ROWS)]
            if not rows:
                return
            yield Text("\n".join(orjson.dumps(row).decode() for row in rows), first_line)


def _from_document(stream: BinaryIO, records: Path) -> Iterator[Text]:
    """One JSON document; each entry of the list at `records` is a line."""
    document = value_at(orjson.loads(stream.read()), records)
    if not isinstance(document, list):
        raise ValueError(f"it has no list of lines at {written(records)}")
    for start in range(0, len(document), _ROWS):
        lines = [orjson.dumps(record).decode() for record in document[start : start + _ROWS]]
        yield Text("\n".join(lines), start + 1)


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__

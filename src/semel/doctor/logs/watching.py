"""Follows a log folder as it grows: Structured Streaming reads all that is new once, with the same code as a batch.

New events are kept as Parquet in a work folder for as long as the window reaches back. Whenever there are some, or some
have become too old, all events of the window are handed on. A file that is half written or malformed ends nothing.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from semel.doctor.errors import DoctorError
from semel.doctor.events import SCHEMA
from semel.doctor.logs import mapped
from semel.doctor.logs.discovery import FETCHED, LINES, PACKED, PARQUET, Days, Found, find, local_path, reason
from semel.doctor.logs.footers import ROWS
from semel.doctor.logs.judging import Counts, Tally, from_rows, within
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.spark_reader import OPTIONS, judged_lines, quality_of
from semel.doctor.logs.tailing import follow
from semel.doctor.model import Quality

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY: Final = 0.2  # seconds between two looks at whether there is something new, or an end
OnEvents = Callable[[DataFrame, Quality], None]


@dataclass(frozen=True, slots=True)
class Part:
    """What came in at once; nothing in it happened later than `at`."""

    path: str
    at: float
    counts: Counts


class Parts:
    """Written by the stream's thread, used and dropped by the one that watches."""

    def __init__(self, folder: Path, window: float, clock: Callable[[], float]) -> None:
        self._folder, self._window, self._clock = folder, window, clock
        self._parts: dict[int, Part] = {}
        self._changed = False
        self._lock = threading.Lock()

    def keep(self, judged: DataFrame, batch: int) -> None:
        now = self._clock()
        path = str(self._folder / f"part-{batch:09d}")
        tally = Tally(within(judged, now - self._window, None))
        tally.events.write.mode("overwrite").parquet(f"file://{path}")
        part = Part(path, now, tally.counts() or Counts())
        with self._lock:
            self._parts[batch] = part
            self._changed = True

    def changed(self) -> list[Part] | None:
        """The parts of the window if they are others than at the last call; those that are too old are removed."""
        oldest = self._clock() - self._window
        with self._lock:
            old = {batch: part for batch, part in self._parts.items() if part.at < oldest}
            for batch in old:
                del self._parts[batch]
            changed, self._changed = self._changed or bool(old), False
            parts = list(self._parts.values())
        for part in old.values():
            shutil.rmtree(part.path, ignore_errors=True)
        return parts if changed else None


def watch(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    mapping: LogMapping | None = None,
    interval: float,
    window: float,
    work_folder: str | Path,
    on_events: OnEvents,
    stop: threading.Event,
    clock: Callable[[], float] = time.time,
) -> None:
    """Call `on_events` with all events of the last `window` seconds, at most each `interval`; returns after `stop`."""
    judged = _stream(spark, paths, mapping)
    Path(work_folder).mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix="watch-", dir=work_folder))
    parts = Parts(folder, window, clock)
    query = (
        judged.writeStream.foreachBatch(parts.keep)
        .option("checkpointLocation", f"file://{folder / 'checkpoint'}")
        .trigger(processingTime=f"{max(1, round(interval * 1000))} milliseconds")
        .start()
    )
    try:
        while not stop.wait(min(LOOK_EVERY, interval)):
            _check(query, paths)
            if (kept := parts.changed()) is not None:
                oldest = clock() - window
                on_events(_events(spark, kept, oldest, mapping), _quality(spark, paths, mapping, kept, oldest))
    except Exception:
        query.stop()
        raise
    else:
        query.stop()
    finally:  # after Ctrl-C the query is not asked to stop: it would wait for its batch
        shutil.rmtree(folder, ignore_errors=True)


def _check(query: StreamingQuery, paths: Sequence[str]) -> None:
    if not query.isActive:
        error = query.exception()
        why = "its query has ended" if error is None else reason(error)
        raise DoctorError(f"--watch: Spark no longer follows {', '.join(paths)}: {why}; start the doctor again")


# The stream.


def _stream(spark: SparkSession, paths: Sequence[str], mapping: LogMapping | None) -> DataFrame:
    return reduce(DataFrame.unionByName, [part for path in paths for part in _sources(spark, path, mapping)])


def _sources(spark: SparkSession, path: str, mapping: LogMapping | None) -> Iterator[DataFrame]:
    """Each file of a folder is read once, when it is first seen; one of an application also as it grows."""
    place = _place(path)
    if mapping is not None:
        # An application appends to its log; Semel's own files are whole when they appear, and so are a store's.
        if place.startswith("file://"):
            yield mapped.from_lines(follow(spark, local_path(path)), mapping)
        else:
            yield judged_lines(spark.readStream, place, mapping, sift=True)
        return
    ends = [f"*{end}{packed}" for end in LINES for packed in ("", *PACKED)]
    yield judged_lines(spark.readStream.option("pathGlobFilter", _any(ends)), place, None)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in ROWS)
    rows = spark.readStream.options(**OPTIONS).option("pathGlobFilter", _any([f"*{end}" for end in PARQUET]))
    yield from_rows(rows.schema(schema).parquet(place).withColumn("problem", F.lit(None).cast("string")))


def _any(globs: Sequence[str]) -> str:
    return f"{{{','.join(globs)}}}"


def _place(path: str) -> str:
    scheme = path.partition("://")[0] if "://" in path else "file"
    if scheme in FETCHED:
        raise DoctorError(
            f"--watch cannot follow {path}: Spark has no reader of its own for {scheme}://; "
            "follow a local folder, or an address that your Spark knows, such as s3a://"
        )
    if scheme != "file":
        return path
    if not Path(local_path(path)).exists():
        raise DoctorError(f"--log {path}: no such folder; --watch follows one that is there, empty or not")
    return f"file://{local_path(path)}"


# What is handed on.


def _events(spark: SparkSession, parts: Sequence[Part], oldest: float, mapping: LogMapping | None) -> DataFrame:
    if not parts:
        return spark.createDataFrame([], SCHEMA)
    events = spark.read.schema(SCHEMA).parquet(*(f"file://{part.path}" for part in parts))
    events = within(events, oldest, None)
    return events if mapping is None else mapped.with_starts(events, mapping)


def _quality(
    spark: SparkSession, paths: Sequence[str], mapping: LogMapping | None, parts: Sequence[Part], oldest: float
) -> Quality:
    """Counts of what came in; files, and which are damaged, as they are now."""
    try:
        found = find(spark, paths, mapped=mapping is not None, days=Days.of(oldest, None))
    except DoctorError:  # gone, or empty again
        found = Found()
    counts = sum((part.counts for part in parts), Counts())
    return quality_of(counts, len(found.files), tuple(found.unreadable))

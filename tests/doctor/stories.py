"""Short logs for tests: what happened to a message, step by step; written to files, read and analysed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from semel.doctor import analysis, sql
from semel.doctor.analysis import Analysis, analyse
from semel.doctor.engine.contract import Engine, Row
from semel.doctor.logs.discovery import Days, find
from semel.doctor.logs.mapping import LogMapping, own
from semel.doctor.model import Behaviour, Quality

Event = dict[str, Any]
START: Final = 1_700_000_000.0

# For the few tests that also run on Spark in the fast tier. The other tests run on Spark only in the slow tier.
on_both_engines_at_once = pytest.mark.parametrize("engine", ["duckdb", "spark"], indirect=True)


def delivery(
    message: str, *steps: tuple[float, str] | tuple[float, str, dict[str, Any]], count: int = 1, **common: Any
) -> list[Event]:
    """One delivery: (seconds after START, step[, more fields]). Every event gets the fields in `common`."""
    fields = {"queue": "orders", "visibility": 30.0, "worker": "w1", "key": message} | common
    return [
        {"message_id": message, "receive_count": count, "at": START + at, "step": step}
        | fields
        | (more[0] if more else {})
        for at, step, *more in steps
    ]


def success(message: str, at: float = 0.0, work: float = 1.0, count: int = 1, **common: Any) -> list[Event]:
    """A successful delivery."""
    return delivery(
        message,
        (at, "received"),
        (at + 0.01, "claimed"),
        (at + 0.02, "started", {"seconds": 0.02}),
        (at + 0.02 + work, "recorded", {"seconds": work}),
        (at + 0.05 + work, "deleted"),
        count=count,
        **common,
    )


def write(path: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    """Write events as the attempt log does, without fields that are None."""
    lines = ({name: value for name, value in event.items() if value is not None} for event in events)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(engine: Engine, *paths: Path | str, visibility: Mapping[str, float] | None = None, **options: Any) -> Analysis:
    """Read and analyse logs as `diagnose` does, with an engine that is already running. `options` as for `load`."""
    log = load(engine, *paths, **options)
    result = analyse(engine, log.mapping, files=log.files, visibility=visibility)
    return replace(result, quality=replace(result.quality, files=len(log.files), unreadable=log.unreadable))


class LoadedLog(NamedTuple):
    mapping: LogMapping
    files: list[str]
    unreadable: tuple[str, ...]


def load(
    engine: Engine,
    *paths: Path | str,
    mapping: LogMapping | None = None,
    since: float | None = None,
    until: float | None = None,
) -> LoadedLog:
    """Fill the engine's `log_lines`. Without a mapping, the files are attempt logs."""
    log_files = find([str(path) for path in paths], any_name=mapping is not None, days=Days.of(since, until))
    problems = engine.read(log_files.files, mapping or own(), since, until)
    unreadable = tuple(sorted((*log_files.unreadable, *problems)))
    return LoadedLog(mapping or own(), [file.address for file in log_files.files], unreadable)


def events_and_quality(engine: Engine, *paths: Path | str, **options: Any) -> tuple[list[Row], Quality]:
    """The events of a log in time order, and its quality, without the rest of an analysis."""
    log = load(engine, *paths, **options)
    unknown_words = analysis._make_small_tables(engine, log.mapping, engine.rows(sql.figure("queues_and_words")), {})
    analysis._make_tables(engine, log.mapping)
    quality = analysis._quality(engine, unknown_words, log.files)
    events = engine.rows("SELECT * FROM events ORDER BY event_time, flag DESC, message_id")
    return events, replace(quality, files=len(log.files), unreadable=log.unreadable)


def by_queue(result: Analysis) -> dict[str, Behaviour]:
    return {behaviour.queue: behaviour for behaviour in result.behaviours}


def causes(behaviour: Behaviour) -> dict[str, int]:
    return {summary.cause.value: summary.duplicates for summary in behaviour.causes}

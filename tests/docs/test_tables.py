"""Tables that list names list all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from semel.consumer.settings import OPTIONS
from semel.spark.pipeline.progress import metrics as pipeline
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.source.column_types import COLUMN_NAMES
from semel.telemetry import metrics as consumer
from semel.telemetry.attempt_log import SPARK_SCHEMA, Step
from semel.verify import EventKind, FindingKind, HistoryEvent

REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference"
METRICS: Final = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
CONSUMER: Final = (REFERENCE / "consumer.md").read_text(encoding="utf-8")
SPARK: Final = (REFERENCE / "spark.md").read_text(encoding="utf-8")
ATTEMPT_LOG: Final = (REFERENCE / "attempt-log.md").read_text(encoding="utf-8")
VERIFY: Final = (REFERENCE / "verify.md").read_text(encoding="utf-8")


def table(page: str, heading: str) -> set[str]:
    """The names in the first column of the table whose headings begin so."""
    rows = page.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}


def exposed() -> set[str]:
    """The metrics that Prometheus would read from a consumer and from a pipeline."""
    of_consumer = consumer.Metrics()
    queue = of_consumer.queue("orders")
    for gauge in consumer.GAUGES:
        queue.gauge(gauge, lambda: 0.0)
    snapshot = Snapshot("shop", "1", "table", State.RUNNING, 1, "host", "1", 0.0, 0.0, backlog={"orders": 1})
    of_pipeline = pipeline.Metrics(lambda: snapshot, ("orders",))
    return set(re.findall(r"^(semel_\w+)", of_consumer.text() + of_pipeline.text(), re.MULTILINE))


def test_the_page_on_metrics_lists_every_metric_of_a_consumer() -> None:
    assert table(METRICS, "counter") == set(consumer.COUNTERS)
    assert table(METRICS, "gauge") == set(consumer.GAUGES)
    assert table(METRICS, "histogram") == {f"{name}_{unit}" for name, (unit, *_) in consumer.HISTOGRAMS.items()}


def test_every_metric_that_the_page_names_exists() -> None:
    """In its PromQL, too, which cannot be executed here."""
    named = set(re.findall(r"\bsemel_\w+", METRICS))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed()}
    assert named
    assert named <= exposed() | families


def test_the_page_on_the_attempt_log_lists_its_columns_and_steps() -> None:
    assert table(ATTEMPT_LOG, "column") == set(re.findall(r"(\w+)`? [A-Z]+", SPARK_SCHEMA))
    assert table(ATTEMPT_LOG, "`step` | meaning") == {step.value for step in Step}


def test_the_page_on_the_consumer_lists_every_setting() -> None:
    assert table(CONSUMER, "setting") == set(OPTIONS)


def test_the_page_on_spark_lists_every_column_of_the_source_in_order() -> None:
    columns = SPARK.partition("**Columns**: ")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`(\w+)`", columns)) == COLUMN_NAMES


def test_the_page_on_verify_lists_every_event_field_and_finding() -> None:
    assert table(VERIFY, "`kind`") == set(EventKind)
    assert table(VERIFY, "field") == set(HistoryEvent.__struct_fields__) - {"file", "line"}
    assert table(VERIFY, "finding") == set(FindingKind)

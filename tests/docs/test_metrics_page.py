"""docs/metrics.md names the metrics that there are. Its PromQL cannot be executed here, but its names can be checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from semel.consumer import metrics as consumer
from semel.spark.pipeline import metrics as pipeline
from semel.spark.pipeline.snapshot import Snapshot, State

TEXT: Final = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def table(heading: str) -> set[str]:
    """The names in the first column of the table with this heading."""
    rows = TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def exposed() -> set[str]:
    """What Prometheus would read from a consumer and from a pipeline."""
    of_consumer = consumer.Metrics()
    lane = of_consumer.lane("orders")
    for gauge in consumer.GAUGES:
        lane.gauge(gauge, lambda: 0.0)
    snapshot = Snapshot("shop", "1", "table", State.RUNNING, 1, "host", "1", 0.0, 0.0, backlog={"orders": 1})
    of_pipeline = pipeline.Metrics(lambda: snapshot, ("orders",))
    return set(re.findall(r"^(semel_\w+)", of_consumer.text() + of_pipeline.text(), re.MULTILINE))


def test_the_page_lists_every_metric_of_a_consumer() -> None:
    assert table("counter") == set(consumer.COUNTERS)
    assert table("gauge") == set(consumer.GAUGES)
    assert table("histogram") == {f"{name}_{unit}" for name, (unit, *_) in consumer.HISTOGRAMS.items()}


def test_every_metric_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\bsemel_\w+", TEXT))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed()}
    assert named
    assert named <= exposed() | families

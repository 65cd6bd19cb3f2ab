"""Parts of pages alone: charts that stay within their frame, the order of rows, sentences for states."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from dashboard.serving import shop
from semel.dashboard.views.model import (
    DeliveriesPage,
    DeliverySeries,
    Fault,
    QueueDeliveries,
    QueueRow,
)
from semel.dashboard.web import charts, deliveries, jobs_and_workers, queues, template_filters
from semel.dashboard.web.charts import Line, Stream
from semel.dlq.audit import AuditEntry
from semel.dlq.jobs import Job, State
from semel.telemetry.annotation_log import Annotation
from waiting import until

SCRIPT = "<script>alert(1)</script>"


def row(name: str, *sources: str, visible: int = 0) -> QueueRow:
    return QueueRow(name, f"http://x/{name}", fifo=False, visible=visible, in_flight=0, delayed=0, sources=sources)


# Charts.


def figures(svg: str) -> list[float]:
    return [float(figure) for d in re.findall(r' d="([^"]*)"', svg) for figure in re.findall(r"-?\d+(?:\.\d+)?", d)]


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [0, 0, 0], [1, None, 3], [None, None], [1e300, 1], [math.inf, 1, 2], [math.nan, 1, 2], [-5, 5, 1]],
)
def test_any_values_make_a_chart_within_its_frame_or_none(values: list[float | None]) -> None:
    at = [1_000.0 + 10 * place for place in range(len(values))]
    spark = charts.sparkline(values, "depth")
    chart = charts.timeline("Depth", at, [Line("visible", "blue", values, area=True)])
    assert all(-0.1 <= figure <= 1000.1 for figure in figures(spark) + figures(chart))
    assert "nan" not in chart + spark
    assert "inf" not in chart + spark


def test_a_chart_has_a_label_with_its_values_and_annotations_are_text() -> None:
    line = Line("visible", "blue", [1.0, 7.0, 3.0])
    chart = charts.timeline("Depth", [0.0, 10.0, 20.0], [line], annotations=[Annotation(10.0, SCRIPT, SCRIPT)])
    assert "visible: now 3, highest 7, lowest 1" in chart
    assert "<script" not in chart
    assert "&lt;script&gt;" in chart


def test_of_many_points_the_highest_stay() -> None:
    values = [0.0] * 5_000
    values[1_234] = 9.0
    chart = charts.timeline("Depth", [float(place) for place in range(5_000)], [Line("visible", "blue", values)])
    assert "highest 9" in chart
    assert len(chart) < 30_000


def test_ribbons_are_as_thick_as_their_share_and_never_invisible() -> None:
    svg = charts.ribbons([Stream("effects", "", "green", 999_999, main=True), Stream("caught", "", "purple", 1)])
    heights = [float(height) for height in re.findall(r'width="12\.0" height="([\d.]+)"', svg)]
    assert heights[0] == pytest.approx(heights[1] + heights[2], abs=0.2)
    assert heights[2] >= 2
    assert charts.ribbons([Stream("effects", "", "green", 0)]) == ""


# Rows.


def test_a_dead_letter_queue_stands_below_its_source_unless_another_order_is_asked_for() -> None:
    rows = [row("b-dead", "a"), row("c", visible=5), row("a", visible=1)]
    assert [queue.name for queue in queues.ordered(rows, "")] == ["a", "b-dead", "c"]
    assert [queue.name for queue in queues.ordered(rows, "visible")] == ["c", "a", "b-dead"]


def test_a_queues_own_fault_comes_before_the_one_for_all() -> None:
    faults = [Fault("duplicate", "", 0.0), Fault("throttle", "", 0.5), Fault("duplicate", "", 0.2, "orders")]
    assert [(fault.kind, fault.rate) for fault in queues.in_force(faults, "orders")] == [
        ("duplicate", 0.2),
        ("throttle", 0.5),
    ]


def test_a_begun_entry_is_hidden_once_its_action_has_ended() -> None:
    def entry(at: float, outcome: str, action: str = "redrive") -> AuditEntry:
        return AuditEntry(at, "operator", action, "dlq", "", 1, outcome)

    rows = [entry(5, "begun"), entry(4, "done"), entry(3, "begun"), entry(2, "begun", "delete"), entry(1, "begun")]
    assert [entry.at for entry in jobs_and_workers.ended(rows)] == [5, 4, 2, 1]


def test_an_empty_dead_letter_queue_does_not_read_like_none(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        place.client.create_queue("parcels")
        rows = {
            name: " ".join(re.sub("<[^>]*>", " ", html).split())
            for name, html in re.findall(r'<tr data-key="([^"]*)">(.*?)</th>', site.get("/").text, re.DOTALL)
        }
        assert "DLQ orders-dlq: empty" in rows["orders"]
        assert "no dead-letter queue" in rows["parcels"]
        assert "no dead-letter queue" not in rows["orders"] + rows["orders-dlq"]
        until(lambda: "This dead-letter queue is empty" in site.get("/dead-letters/orders-dlq").text)
        place.dead_letter(1)
        until(lambda: "DLQ orders-dlq: 1 message<" in site.get("/").text)


# Sentences.


def test_times_past_and_to_come() -> None:
    now = 1_000_000.0
    assert [template_filters.ago(now - passed, now) for passed in (0, 5, 200, 7_200, 200_000)] == [
        "now", "5 s ago", "3 min 20 s ago", "2 h ago", "2 d 8 h ago",
    ]  # fmt: skip
    assert template_filters.ago(now + 30, now) == "in 30 s"
    assert template_filters.ago(None, now) == "–"


def test_the_deliveries_page_accounts_for_every_delivery() -> None:
    queue = QueueDeliveries("orders", 100, 9, 80, 6, 4, 1, 1, 1, 3, 2, 1, 2, 0)
    page = DeliveriesPage(100, 80, 9, (), 4, 6, 1, 1, (queue,), DeliverySeries(), 1)
    assert sum(stream.count for stream in deliveries.streams(page)) == 100
    assert "11 duplicates stopped before taking effect" in deliveries.summary(page)
    assert "1 late record was refused" in deliveries.summary(page)


@pytest.mark.parametrize(
    ("state", "plan", "sentence"),
    [
        (State.RUNNING, {}, "40 of 100 redriven"),
        (State.PAUSED, {}, "Paused: 40 of 100 redriven"),
        (State.CANARY, {}, "40 canary messages sent; waiting for the outcome"),
        (State.DONE, {}, "Finished: 40 redriven"),
        (State.DONE, {"dry_run": True}, "Dry run finished: 100 would be redriven; nothing was changed"),
        (State.STOPPED, {}, "Stopped: the canary failed"),
    ],
)
def test_the_state_of_a_job_is_a_sentence(state: State, plan: dict[str, Any], sentence: str) -> None:
    job = Job("redrive", "dlq", plan).to_json()
    job |= {"state": state.value, "total": 100, "reason": "the canary failed"}
    job["counts"] |= {"sent": 40, "matched": 100}
    assert jobs_and_workers.headline(job).startswith(sentence)


def test_the_doctor_page_has_each_recommended_setting_with_its_reasons(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        place.client.create_queue("parcels", {"MessageRetentionPeriod": "3600"})
        until(lambda: "Recommended settings" in site.get("/doctor").text)
        changes = [advice for advice in site.api("doctor")["recommendations"] if advice["changes"]]
        page = " ".join(re.sub("<[^>]*>", " ", site.get("/doctor").text).split())
        assert changes
        assert all(text in page for advice in changes for text in (advice["value"], *advice["reasons"]))

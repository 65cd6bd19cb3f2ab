"""The JSON report: complete, with stable names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doctor import sample
from semel.doctor.report import json_report as report


def read(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document


def test_it_has_everything_under_its_name() -> None:
    document = read(report.render(sample.rich()))
    assert document["version"] == 2
    assert document["worst"] == "critical"
    assert document["counts"] == {"critical": 2, "warning": 2, "info": 1}
    assert [case["queue"] for case in document["queues"]] == ["orders", "payments", "emails.fifo"]
    orders = document["queues"][0]["behaviour"]
    assert (orders["duplicates"], orders["messages"], orders["doubled"]) == (1_562, 48_210, 12)
    assert orders["duplicate_share"] == pytest.approx(0.0324, abs=1e-4)
    assert orders["wasted"] == 40_139.0
    assert orders["causes"][0]["cause"] == "visibility"
    assert orders["causes"][0]["overrun"]["most"] == 31.4
    assert orders["causes"][0]["examples"][0]["events"][0]["step"] == "received"
    assert orders["replays"][1] == {"visibility": 30.0, "duplicates": 1_562, "share": 1_562 / 48_210}
    assert orders["skew"] == {"web3-0815": 2.4}
    assert document["queues"][0]["state"]["dead_letters"]["visible"] == 31
    assert len(document["queues"][0]["series"]["points"]) == 288
    assert document["findings"][0]["severity"] == "critical"
    assert document["findings"][0]["remedy"]["cli"] == list(sample.FINDINGS[0].remedy.cli)
    assert document["recommendations"][0]["setting"] == "visibility timeout"
    assert document["recommendations"][0]["reasons"] == list(sample.ADVICE[0].reasons)
    assert document["engine"] == sample.ENGINE
    assert document["quality"]["malformed"] == 61
    assert document["not_looked_at"][0]["option"] == "--alarms FILE"


def test_names_that_programs_rely_on_are_there() -> None:
    """Take nothing out of this list, and rename nothing, without a new `version`."""
    document = read(report.render(sample.rich()))
    assert set(document) >= {
        "version", "semel", "made_at", "since", "until", "worst", "counts", "queues", "findings", "recommendations",
        "quality", "notes", "not_looked_at", "engine",
    }  # fmt: skip
    assert set(document["queues"][0]) >= {
        "queue", "behaviour", "state", "series", "ledger", "alarmed", "dlq_alarmed", "read_timeout",
    }  # fmt: skip
    assert set(document["queues"][0]["behaviour"]) >= {
        "queue", "first_at", "last_at", "events", "deliveries", "attempts", "messages", "effects", "doubled", "retries",
        "duplicates", "duplicate_share", "wasted", "causes", "work", "wait", "hold", "handlers", "histogram",
        "visibility", "heartbeats", "heartbeat_every", "batch_fill", "workers", "groups", "looping", "loops",
        "failures", "errors", "window", "windows", "replays", "skew",
    }  # fmt: skip
    assert set(document["findings"][0]) >= {
        "rule", "severity", "queue", "observed", "why", "remedy", "examples", "figures",
    }  # fmt: skip
    assert set(document["recommendations"][0]) >= {"queue", "setting", "value", "now", "reasons", "changes", "remedy"}
    assert set(document["findings"][0]["remedy"]) >= {"text", "cli", "terraform"}


def test_hostile_text_and_figures_that_are_none_come_back_from_json() -> None:
    text = report.render(sample.hostile())
    assert text.isascii()
    document = read(text)
    assert document["findings"][0]["observed"] == sample.HOSTILE + sample.BIDI
    assert document["queues"][0]["behaviour"]["work"]["most"] is None
    assert document["findings"][0]["figures"] == {sample.HOSTILE: None}


def test_an_empty_diagnosis_is_a_whole_document() -> None:
    document = read(report.render(sample.empty()))
    assert (document["worst"], document["queues"], document["quality"]) == (None, [], None)
    assert document["not_looked_at"][0]["option"] == "--log PATH"

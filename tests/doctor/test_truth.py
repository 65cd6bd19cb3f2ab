"""Duplicates whose causes are known, because we caused them: what the doctor says of the log is the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from doctor.known_truth import SHARE, write_attempt_log
from semel.doctor.behaviour import observe
from semel.doctor.logs import spark_reader as logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 300


@pytest.mark.slow
def test_each_duplicate_that_was_caused_on_purpose_is_found_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    truth = write_attempt_log(tmp_path / "log", MESSAGES)
    assert sum(sum(causes.values()) for causes in truth.values()) > MESSAGES * SHARE * 3  # it did happen
    found = observe(logs.read(spark, [str(tmp_path / "log")]).events).behaviours
    told = {one.queue: {caused.cause.value: caused.duplicates for caused in one.causes} for one in found}
    assert told == truth
    assert [one.doubled for one in found] == [0] * len(found)  # the ledger let none of them take effect twice
    assert {one.queue: one.messages for one in found} == {
        queue: MESSAGES + sum(causes.get(cause, 0) for cause in ("producer", "redrive"))
        for queue, causes in truth.items()
    }

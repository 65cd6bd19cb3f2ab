"""Duplicates whose causes are known because the test caused them: the doctor reports exactly these."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from doctor import known_truth, known_truth_application
from doctor.known_truth import SHORT, Truth
from doctor.known_truth_application import MAPPING, MAPPING_WITH_RECEIVES
from semel.doctor.diagnosis import Request, diagnose
from semel.doctor.model import Behaviour
from suite import effort, slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES: Final = effort(fast=60, full=240)


@pytest.fixture(scope="module", params=["duckdb", *slow("spark")])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        request.getfixturevalue("spark_for_engine")
    return str(request.param)


@pytest.fixture(scope="module")
def spark_for_engine(spark: SparkSession) -> SparkSession:
    return spark


def behaviours(engine: str, **request: Any) -> dict[str, Behaviour]:
    diagnosis = diagnose(Request(engine=engine, **request))
    return {case.queue: case.behaviour for case in diagnosis.cases if case.behaviour is not None}


def causes(behaviour: Behaviour) -> dict[str, int]:
    return {summary.cause.value: summary.duplicates for summary in behaviour.causes}


@pytest.fixture(scope="module")
def attempt_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    folder = tmp_path_factory.mktemp("attempts")
    return folder, known_truth.write_attempt_log(folder, MESSAGES)


@pytest.fixture(scope="module")
def attempts(engine: str, attempt_log: tuple[Path, Truth]) -> dict[str, Behaviour]:
    return behaviours(engine, logs=(str(attempt_log[0]),))


@pytest.mark.parametrize("queue", known_truth.SCENARIOS)
def test_each_duplicate_in_an_attempt_log_is_found_with_its_cause(
    attempts: dict[str, Behaviour], attempt_log: tuple[Path, Truth], queue: str
) -> None:
    behaviour, (_, truth) = attempts[queue], attempt_log
    assert causes(behaviour) == truth.causes[queue]
    assert behaviour.messages == truth.messages[queue]
    assert behaviour.doubled == 0  # the ledger let none of them take effect twice


def test_every_cause_happened(attempt_log: tuple[Path, Truth]) -> None:
    happened = {cause for causes in attempt_log[1].causes.values() for cause in causes}
    assert happened == {"visibility", "lost-delete", "concurrent", "crash", "producer", "redrive"}


@pytest.fixture(scope="module")
def application_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    file = tmp_path_factory.mktemp("application") / "app.jsonl"
    return file, known_truth_application.write_application_log(file, MESSAGES // 4)


@pytest.fixture(scope="module", params=[MAPPING, MAPPING_WITH_RECEIVES], ids=["by-order", "by-receive-count"])
def application(
    request: pytest.FixtureRequest, engine: str, application_log: tuple[Path, Truth]
) -> dict[str, Behaviour]:
    visibility = {"": float(SHORT)}
    return behaviours(engine, logs=(str(application_log[0]),), mapping=request.param, visibility=visibility)


@pytest.mark.parametrize("queue", known_truth_application.SCENARIOS)
def test_each_duplicate_in_an_application_log_is_found_with_its_cause(
    application: dict[str, Behaviour], application_log: tuple[Path, Truth], queue: str
) -> None:
    behaviour, (_, truth) = application[queue], application_log
    assert causes(behaviour) == truth.causes[queue]
    assert behaviour.messages == truth.messages[queue]

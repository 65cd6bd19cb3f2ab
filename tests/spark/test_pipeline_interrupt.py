"""Ctrl-C at any moment of a pipeline, as in a terminal: it ends within seconds, prints one line, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import interrupted
from semel.broker import EmbeddedBroker, running
from semel.spark.pipeline.stop_request import INTERRUPT_DRAIN, Stop, interruptible, on_signals
from semel.sqs import Client, Entry

SEMEL: Final = (sys.executable, "-m", "semel")
FILE: Final = """
name = "slow"
checkpoint = "state"
[source]
queues = ["orders"]
dedup = "segments"
[schema]
ddl = "id STRING NOT NULL"
[[schema.constraints]]
name = "it has an id"
check = "length(id) > 0"
[sink]
type = "parquet"
path = "rows"
"""
# The same queue, into a handler whose work takes longer than anybody waits after Ctrl-C.
HANDLER: Final = """
name = "slow"
checkpoint = "state"
[source]
queues = ["orders"]
[sink]
type = "handler"
app = "slow_shop:app"
"""
APP: Final = """
import pathlib, time
from semel import App

app = App("sqlite:///ledger.db")


@app.handler("orders", key="$.id")
def work(order: dict) -> None:
    pathlib.Path("at work").touch()
    time.sleep(120)
"""
RUN: Final = (*SEMEL, "pipeline", "run", "slow.toml")


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.chdir(tmp_path)
    with running() as broker, Client(broker.url) as client:
        dead = client.create_queue("dead")
        policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 20}
        queue = client.create_queue("orders", {"RedrivePolicy": json.dumps(policy)})
        queue.send_many([Entry(json.dumps({"id": str(number)})) for number in range(10)])
        Path("slow.toml").write_text(FILE)
        Path("slow_shop.py").write_text(APP)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", broker.url)
        yield broker


def check(ended: interrupted.Ended, code: int, *, seconds: float) -> None:
    assert (ended.code, ended.left) == (code, ()), ended.output
    assert "Traceback" not in ended.output
    assert ended.seconds < seconds


def test_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for an SQS that never answers."""
    monkeypatch.chdir(tmp_path)
    Path("slow.toml").write_text(FILE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        calls: list[socket.socket] = []

        def is_called(output: str, processes: object) -> bool:
            try:
                calls.append(server.accept()[0])
            except BlockingIOError:
                return False
            return True

        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        ended = interrupted.interrupt([*RUN, "--endpoint-url", url], tmp_path, is_called)
        for call in calls:
            call.close()
    check(ended, 130, seconds=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (RUN, 130),
        ((*SEMEL, "pipeline", "check", "slow.toml", "--sql"), 130),
        ((*SEMEL, "run", "slow_shop:app", "--on", "spark"), 130),
    ],
)
def test_while_java_starts(command: tuple[str, ...], code: int, broker: EmbeddedBroker, tmp_path: Path) -> None:
    check(interrupted.interrupt(command, tmp_path, interrupted.starts_java), code, seconds=10)


@pytest.mark.slow
def test_when_the_query_has_just_started(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Spark is up; its first batch may or may not have begun."""

    def runs(output: str, processes: object) -> bool:
        status = tmp_path / "state" / "status.json"
        return status.exists() and '"state": "running"' in status.read_text()

    ended = interrupted.interrupt(RUN, tmp_path, runs)
    assert ended.code in (130, 4)
    check(ended, ended.code, seconds=20)


@pytest.mark.slow
@pytest.mark.parametrize("command", [RUN, (*SEMEL, "run", "slow_shop:app", "--on", "spark")])
def test_within_a_batch_that_takes_long(command: tuple[str, ...], broker: EmbeddedBroker, tmp_path: Path) -> None:
    Path("slow.toml").write_text(HANDLER)
    ended = interrupted.interrupt(command, tmp_path, lambda output, processes: Path("at work").exists())
    check(ended, 4, seconds=INTERRUPT_DRAIN + 15)
    assert "unfinished" in ended.output


def test_signals_are_ours_again_when_spark_has_taken_them() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark replaces it
    assert signal.getsignal(signal.SIGINT) is before
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGTERM, 60.0), (signal.SIGINT, INTERRUPT_DRAIN)])
def test_after_ctrl_c_a_batch_has_less_time_than_after_sigterm(number: signal.Signals, seconds: float) -> None:
    stop = Stop()
    with on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert stop.drain(60.0) == seconds

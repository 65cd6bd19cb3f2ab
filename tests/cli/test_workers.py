"""Workers in separate processes, controlled while they run: a single one, and several behind one address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel import Client
from semel.broker import EmbeddedBroker, running
from semel.sqs import Queue
from semel.telemetry import worker_client
from semel.telemetry import worker_registry as registry
from semel.telemetry.worker_client import WorkerError
from waiting import until

APP = """
import os, time
from pathlib import Path
from semel import App, Batch

app = App(os.environ["TEST_LEDGER"])
folder = Path(os.environ["TEST_FOLDER"])

@app.handler("orders", concurrency=4)
def handle(order: dict) -> None:
    with open(folder / "effects", "a") as file:
        file.write(f"{order['n']}\\n")
    while order.get("wait") and not (folder / "go").exists():
        time.sleep(0.01)

@app.batch_handler("log.fifo")
def keep(batch: Batch[str]) -> None:
    pass
"""
PROCESSES = pytest.mark.parametrize("processes", [1, 2])


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def orders(broker: EmbeddedBroker) -> Iterator[Queue]:
    with Client(broker.url, "us-east-1", access_key="test", secret_key="test") as client:
        client.create_queue("log.fifo", {"FifoQueue": "true"})
        queue = client.create_queue("orders")
        yield queue


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_CONTROL_TOKEN", raising=False)


class Running:
    """`semel run` with a health endpoint on a free port; the registry says which."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.note = registry.Registered("", "", 0, "", 0.0)
        self.until(self._is_registered)
        self.url = self.note.url

    def _is_registered(self) -> bool:
        workers = registry.workers(self.folder / "state")
        if workers:
            self.note = workers[0]
        return bool(workers)

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, process=self.process)

    def look(self) -> dict[str, Any]:
        return worker_client.get_worker(self.url)

    def queue(self, name: str = "orders") -> dict[str, Any]:
        status: dict[str, Any] = self.look()["queues"].get(name, {})
        return status

    def send_command(self, action: str, **more: Any) -> dict[str, Any]:
        return worker_client.send_command(self.url, action, **more)

    @property
    def effects(self) -> list[int]:
        path = self.folder / "effects"
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@contextmanager
def worker(folder: Path, broker: EmbeddedBroker, processes: int) -> Iterator[Running]:
    (folder / "shop.py").write_text(APP)
    environment = {
        **os.environ,
        "TEST_LEDGER": f"sqlite:///{folder}/ledger.db",
        "TEST_FOLDER": str(folder),
        "SEMEL_STATE": str(folder / "state"),
        "AWS_ENDPOINT_URL_SQS": broker.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", "run", "shop:app", "--health", "0", "--processes", str(processes)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        run = Running(folder, process)
        run.until(lambda: run.look()["processes"] == processes)
        yield run
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def send(orders: Queue, *numbers: int, **more: Any) -> None:
    for number in numbers:
        orders.send(json.dumps({"n": number, **more}))


@PROCESSES
def test_workers_are_paused_resumed_and_resized_while_they_work(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue, processes: int
) -> None:
    with worker(tmp_path, broker, processes) as run:
        send(orders, 1, wait=True)
        run.until(lambda: [m["state"] for m in run.queue()["messages"]] == ["working"])
        assert run.look()["app"] == "shop:app"
        assert "paused orders" in run.send_command("pause", queue="orders")["done"]
        (tmp_path / "go").touch()
        run.until(lambda: run.queue()["in_progress"] == 0)
        send(orders, 2, 3)
        assert run.queue()["paused"]
        assert not run.queue("log.fifo")["paused"]
        assert run.effects == [1]
        answer = run.send_command("concurrency", queue="orders", value=9)
        assert answer["queues"]["orders"] == {"paused": True, "concurrency": 9, "in_progress": 0}
        run.send_command("resume")
        run.until(lambda: run.effects == [1, 2, 3])
        with pytest.raises(WorkerError, match=r"log.fifo works on one batch at a time"):
            run.send_command("concurrency", value=2)
        with pytest.raises(WorkerError, match=r"'nope'; its queues are log.fifo, orders"):
            run.send_command("pause", queue="nope")
        assert run.queue()["concurrency"] == 9, "a command that is refused changes nothing"


@PROCESSES
def test_a_worker_that_is_told_to_stop_drains_ends_well_and_takes_its_note_away(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue, processes: int
) -> None:
    with worker(tmp_path, broker, processes) as run:
        send(orders, 1, wait=True)
        run.until(lambda: run.effects == [1])
        assert run.send_command("stop")["done"].startswith("stopping")
        run.until(lambda: run.look()["stopping"])
        with pytest.raises(WorkerError, match="is stopping") as error:
            run.send_command("pause")
        assert error.value.status == 409
        (tmp_path / "go").touch()
        _, errors = run.process.communicate(timeout=60)
        assert run.process.returncode == 0, errors
    assert registry.workers(tmp_path / "state") == []
    assert not list((tmp_path / "state" / "workers").iterdir())


@pytest.mark.slow
def test_a_worker_that_dies_comes_back_as_the_operator_wanted_it(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue
) -> None:
    with worker(tmp_path, broker, 2) as run:
        run.send_command("pause")
        run.send_command("concurrency", queue="orders", value=3)
        before = run.look()["pids"]
        os.kill(before[0], signal.SIGKILL)
        run.until(lambda: before[0] not in (pids := run.look()["pids"]) and len(pids) == 2)
        assert run.queue()["paused"]
        assert run.queue()["concurrency"] == 3
        send(orders, 1)
        assert run.effects == []
        run.send_command("resume")
        run.until(lambda: run.effects == [1])


@pytest.mark.slow
def test_commands_from_all_sides_at_once_leave_all_processes_alike(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with worker(tmp_path, broker, 2) as run:
        with ThreadPoolExecutor(6) as pool:
            answers = [
                pool.submit(run.send_command, ("pause", "resume")[number % 2], queue=("orders", None)[number % 3 == 0])
                for number in range(40)
            ]
            for answer in answers:
                answer.result(60)
        run.send_command("resume")
        send(orders, *range(20))
        run.until(lambda: run.effects == list(range(20)))
        run.process.send_signal(signal.SIGTERM)
        _, errors = run.process.communicate(timeout=60)
        assert run.process.returncode == 0, errors


def semel(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """The command line, as the same user."""
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", *arguments],
        env={**os.environ, "SEMEL_STATE": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_shows_workers_and_tells_them_what_to_do(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue
) -> None:
    with worker(tmp_path, broker, 1) as run:
        send(orders, 1, wait=True)
        run.until(lambda: run.queue()["in_progress"] == 1)
        code, said, _ = semel(tmp_path, "workers", "list")
        assert code == 0
        assert "  shop:app  pid " in said
        assert ", 1 process, up " in said
        assert "orders: concurrency 4, 1 in progress" in said
        assert "working for" in said
        code, said, _ = semel(tmp_path, "workers", "pause", "--queue", "orders")
        assert (code, "paused orders" in said) == (0, True)
        assert run.queue()["paused"]
        assert semel(tmp_path, "workers", "scale", "7", "--queue", "orders")[0] == 0
        port = run.url.rpartition(":")[2]
        code, said, _ = semel(tmp_path, "workers", "list", "--worker", port, "--output", "json")
        assert json.loads(said)[0]["queues"]["orders"]["concurrency"] == 7
        code, said, _ = semel(tmp_path, "workers", "scale", "7", "--queue", "nope")
        assert (code, "'nope'; its queues are log.fifo, orders" in said) == (1, True)
        code, _, errors = semel(tmp_path, "workers", "stop")
        assert (code, "--worker, or use --all" in errors) == (2, True)
        code, _, errors = semel(tmp_path, "workers", "list", "--worker", "somebody")
        assert (code, run.note.id in errors) == (1, True)
        code, said, _ = semel(tmp_path, "workers", "health", port)
        assert (code, "orders: 1 in progress, paused" in said) == (0, True)
        code, said, _ = semel(tmp_path, "workers", "resume", "--queue", "orders", "--queue", "log.fifo")
        assert (code, "orders" in said, "log.fifo" in said) == (0, True, True)
        code, said, _ = semel(tmp_path, "workers", "list", "--output", "jsonl", "--queue", "orders")
        assert [json.loads(line)["id"] for line in said.splitlines()] == [run.note.id]
        assert semel(tmp_path, "workers", "stop", "--worker", run.note.id)[0] == 0
        code, said, _ = semel(tmp_path, "workers", "health")
        assert (code, "live, not ready" in said) == (3, True), "it drains"
        code, said, _ = semel(tmp_path, "workers", "health", port, "1", "--output", "json")
        assert code == 1
        assert [(row["url"], row["live"]) for row in json.loads(said)] == [
            (f"http://127.0.0.1:{port}", True),
            ("http://127.0.0.1:1", False),
        ]
        (tmp_path / "go").touch()
        _, errors = run.process.communicate(timeout=60)
        assert run.process.returncode == 0, errors
    code, _, errors = semel(tmp_path, "workers", "list")
    assert (code, "start one with" in errors) == (1, True)
    audit = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert [(entry["action"], entry["outcome"].partition(":")[0]) for entry in audit] == [
        (f"{action} worker", outcome)
        for action, end in (
            *(("pause", "done"), ("concurrency", "done"), ("concurrency", "failed")),
            *(("resume", "done"), ("stop", "done")),
        )
        for outcome in ("begun", end)
    ]


def test_a_port_in_use_is_said_before_any_process_is_started(
    tmp_path: Path, broker: EmbeddedBroker, orders: Queue
) -> None:
    with worker(tmp_path, broker, 1) as run:
        port = run.url.rpartition(":")[2]
        done = subprocess.run(
            [sys.executable, "-m", "semel.cli", "run", "shop:app", "--health", port, "--processes", "2"],
            cwd=tmp_path,
            env={**os.environ, "TEST_LEDGER": f"sqlite:///{tmp_path}/other.db", "TEST_FOLDER": str(tmp_path)}
            | {"AWS_ENDPOINT_URL_SQS": broker.url, "AWS_DEFAULT_REGION": "us-east-1"}
            | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "SEMEL_STATE": str(tmp_path / "other")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "in use; choose another port" in done.stderr
    assert "Traceback" not in done.stderr

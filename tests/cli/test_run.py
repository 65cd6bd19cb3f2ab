"""`semel run` and `semel workers health` as a user starts them: processes, signals, exit codes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import Client
from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.consumer.settings import OPTIONS
from semel.doctor import recommendations
from semel.sqs import Entry, Queue
from suite import slow
from waiting import free_port, until

APP = """
import os, time
from semel import App, Transaction, Context, Reject

app = App(os.environ["TEST_LEDGER"])

@app.handler("orders", lease="45s", key="$.n")
def handle(order: dict, ctx: Context) -> None:
    with open(os.environ["TEST_EFFECTS"], "a") as file:
        file.write(f"{order['n']}\\n")
    if order.get("seconds"):
        time.sleep(order["seconds"])

@app.handler("refunds")
def refund(order: dict) -> None:
    raise Reject("no such order")

@app.handler("payments")
def book(payment: dict, tx: Transaction) -> None:
    tx.execute("INSERT INTO nowhere VALUES (1)")
"""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def orders(broker: EmbeddedBroker) -> Iterator[Queue]:
    with Client(broker.url, "us-east-1", access_key="test", secret_key="test") as client:
        for name in ("payments", "refunds", "orders"):
            queue = client.create_queue(name)
        yield queue


class Shop:
    """A folder with an app in it, and the command line in that folder."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.effects_file = folder / "effects"
        (folder / "shop.py").write_text(APP)
        self.environment = {
            **os.environ,
            "TEST_LEDGER": f"sqlite:///{folder}/ledger.db",
            "TEST_EFFECTS": str(self.effects_file),
            "SEMEL_STATE": str(folder / "state"),
            "AWS_ENDPOINT_URL_SQS": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "semel.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    @property
    def effects(self) -> list[int]:
        return sorted(map(int, self.effects_file.read_text().split())) if self.effects_file.exists() else []


@pytest.fixture
def shop(tmp_path: Path, broker: EmbeddedBroker) -> Shop:
    return Shop(tmp_path, broker.url)


def test_exit_when_empty_works_the_queue_off_and_exits_with_0(shop: Shop, orders: Queue) -> None:
    orders.send_many([Entry(json.dumps({"n": n})) for n in range(25)])
    code, output, errors = shop.run("run", "shop:app", "--queue", "orders", "--exit-when-empty", "--output", "jsonl")
    assert code == 0, errors
    assert json.loads(output) == {
        "completed": 25, "duplicates": 0, "retried": 0, "dead_lettered": 0, "left": {}, "waiting": {}, "outbox": 0,
        "error": "",
    }  # fmt: skip
    assert shop.effects == list(range(25))


def test_several_processes_share_the_work_and_report_as_one(shop: Shop, orders: Queue) -> None:
    orders.send_many([Entry(json.dumps({"n": n})) for n in range(60)])
    code, output, errors = shop.run(
        "run", "shop:app", "--queue", "orders", "--exit-when-empty", "--processes", "2", "--output", "jsonl"
    )
    assert code == 0, errors
    assert json.loads(output)["completed"] == 60
    messages = [json.loads(line)["message"] for line in errors.splitlines()]
    started, queue, _no_dlq, stopped = messages  # said once, not by each process
    assert (
        started == f"started shop:app in 2 processes: ledger sqlite:///{shop.folder}/ledger.db, SQS at {shop.endpoint}"
    )
    assert queue == (
        "queue orders: handler shop.handle, at least once, one holder at a time, always with the same key; "
        "key $.n, concurrency 32, dead-letter queue none"
    )
    assert stopped == "stopped, messages completed: 60"
    assert shop.effects == list(range(60))


def test_sigterm_drains_and_exits_with_0(shop: Shop, orders: Queue) -> None:
    orders.send(json.dumps({"n": 1, "seconds": 1}))
    process = shop.start("run", "shop:app", "--queue", "orders")
    until(lambda: shop.effects == [1], process=process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    counts = orders.attributes("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert set(counts.values()) == {"0"}


@pytest.mark.parametrize("processes", ["1", "2"])
def test_signals_that_come_all_at_once_end_it_too(shop: Shop, orders: Queue, processes: str) -> None:
    orders.send(json.dumps({"n": 1}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", processes)
    until(lambda: shop.effects == [1], process=process)
    for _ in range(200):
        process.send_signal(signal.SIGTERM)
    stop(process)


def test_handlers_that_outlast_the_drain_make_it_4(shop: Shop, orders: Queue) -> None:
    orders.send(json.dumps({"n": 1, "seconds": 60}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--drain", "0.5")
    until(lambda: shop.effects == [1], process=process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4, errors
    assert "1 handler of orders still running at the end of the drain, 0.5 s" in errors


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_drains_and_the_second_one_ends_it_at_once_and_says_so(
    shop: Shop, orders: Queue, processes: str
) -> None:
    orders.send(json.dumps({"n": 1, "seconds": 60}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", processes)
    until(lambda: shop.effects == [1], process=process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    time.sleep(0.5)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4, errors
    assert "1 handler of orders still running at the second signal" in errors
    assert "Traceback" not in errors


def test_a_signal_that_reaches_another_thread_than_the_main_one_stops_it_all_the_same(
    shop: Shop, orders: Queue
) -> None:
    """The kernel chooses the thread, and chooses another one while the main thread has a signal to handle."""
    (shop.folder / "itself.py").write_text(
        "import signal, threading\nfrom shop import app\n"
        "app.handlers.clear()\n"
        "@app.handler('orders')\n"
        "def stop(body: str) -> None:\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
    )
    orders.send("now")
    process = shop.start("run", "itself:app", "--output", "jsonl")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads(output)["completed"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_lets_handlers_finish(shop: Shop, orders: Queue, number: signal.Signals) -> None:
    """As a terminal sends Ctrl-C, and systemd SIGTERM: to the workers, too, which hear of it a second time from us."""
    orders.send(json.dumps({"n": 1, "seconds": 1}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", "2", "--output", "jsonl")
    until(lambda: shop.effects == [1], process=process)
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 0), errors
    assert json.loads(output)["completed"] == 1
    counts = orders.attributes("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert set(counts.values()) == {"0"}


def test_workers_whose_supervisor_is_killed_let_handlers_finish_and_end_without_a_word(
    shop: Shop, orders: Queue
) -> None:
    orders.send(json.dumps({"n": 1, "seconds": 1}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", "2", "--log-level", "error")
    until(lambda: shop.effects == [1], process=process)
    process.kill()
    _, errors = process.communicate(timeout=60)  # ends when the workers have ended
    assert errors == ""
    counts = orders.attributes("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert set(counts.values()) == {"0"}


AWAY_AT_FIRST = """
import multiprocessing, os
from semel import App

def is_one_of_the_first_two() -> bool:
    for number in range(2):
        try:
            os.close(os.open(f"{os.environ['TEST_EFFECTS']}-{number}", os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            pass
    return False

away = multiprocessing.parent_process() is not None and is_one_of_the_first_two()
app = App("redis://127.0.0.1:1/0" if away else os.environ["TEST_LEDGER"])

@app.handler("orders")
def handle(order: dict) -> None:
    open(os.environ["TEST_EFFECTS"], "w").write("1")
"""


def test_workers_that_find_the_ledger_away_at_their_start_are_started_again(shop: Shop, orders: Queue) -> None:
    (shop.folder / "shop.py").write_text(AWAY_AT_FIRST)
    process = shop.start("run", "shop:app", "--processes", "2")
    orders.send("{}")
    until(lambda: shop.effects == [1], process=process)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors.count("a worker could not start: Redis at redis://127.0.0.1:1/0 did not answer") == 2
    assert "Traceback" not in errors


SLOW_IMPORT = """
import multiprocessing, os, time
from semel import App

app = App(os.environ["TEST_LEDGER"])

@app.handler("orders")
def handle(order: dict) -> None: ...

if os.environ["TEST_SLOW"] == ("worker" if multiprocessing.parent_process() else "parent"):
    open(os.environ["TEST_EFFECTS"], "w").write("1")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("slow", "number", "code"),
    [("parent", signal.SIGINT, 130), ("worker", signal.SIGINT, 130), ("worker", signal.SIGTERM, 0)],
)
def test_a_signal_to_all_processes_while_the_app_is_imported_ends_it_without_a_word(
    shop: Shop, orders: Queue, slow: str, number: signal.Signals, code: int
) -> None:
    (shop.folder / "shop.py").write_text(SLOW_IMPORT)
    shop.environment["TEST_SLOW"] = slow
    process = shop.start("run", "shop:app", "--processes", "2", "--log-level", "error")
    until(lambda: shop.effects == [1], process=process)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (code, "")


def test_exit_when_empty_that_leaves_something_exits_with_4_and_says_what(
    shop: Shop, orders: Queue, broker: EmbeddedBroker
) -> None:
    with Client(broker.url) as client:
        client.queue("refunds").send("{}")
    quiet = ("--processes", "2", "--log-format", "text", "--log-level", "error")  # counts in the workers too
    code, _, errors = shop.run("run", "shop:app", "--queue", "refunds", "--exit-when-empty", "--lease", "2", *quiet)
    assert code == 4, errors
    of_worker, at_the_end = errors.splitlines()
    assert re.search(
        r"ERROR +semel.consumer: could not move message \S+ of refunds to the dead-letter queue", of_worker
    )
    assert at_the_end == "semel: messages are left for the next run: 1 of refunds waiting for a retry"


def test_a_worker_that_dies_is_started_again(shop: Shop, orders: Queue) -> None:
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", "2", "--log-level", "error")
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def workers() -> list[int]:
            return [pid for pid in map(int, children.read_text().split()) if b"spawn_main" in command_of(pid)]

        until(lambda: len(workers()) == 2, process=process)
        victim = workers()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(workers()) == 2 and victim not in workers(), process=process)
    finally:
        errors = stop(process)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("pause", [0.6, *slow(0.0, 0.3, 1.0, 1.5)])
def test_a_stop_that_comes_while_workers_start_ends_them_all(shop: Shop, orders: Queue, pause: float) -> None:
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", "3", "--log-level", "error")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: children.read_text(), process=process)
    time.sleep(pause)  # whatever they are at then
    errors = stop(process)
    assert process.returncode == 0, errors


def stop(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_explain_says_each_setting_its_source_and_the_guarantee(shop: Shop, orders: Queue) -> None:
    code, output, errors = shop.run("run", "shop:app", "--explain", "--concurrency", "7")
    assert code == 0, errors
    lines = output.splitlines()
    assert any(line.split()[:3] == ["concurrency", "7", "command"] for line in lines)
    assert any(line.split()[:3] == ["lease", "45s", "handler"] for line in lines)
    assert any(line.split()[:3] == ["prefetch", "auto", "default"] for line in lines)
    assert any(line.split()[:3] == ["retention", "28d", "ledger"] for line in lines)
    assert any(line.split()[:3] == ["wait", "20", "default"] for line in lines)
    assert "exactly once: its writes and the ledger's record are one transaction" in " ".join(output.split())
    assert "at least once, one holder at a time" in output
    assert [line for line in lines if len(line) > 80 and not line.startswith(("ledger ", "    retry "))] == []
    code, output, _ = shop.run("run", "shop:app", "--explain", "--output", "json")
    handlers = {handler["queue"]: handler for handler in json.loads(output)["handlers"]}
    assert handlers["orders"]["settings"]["lease"] == {
        "value": 45.0,
        "source": "handler",
        "description": OPTIONS["lease"].description,
    }
    assert handlers["payments"]["guarantee"].startswith("exactly once")


def test_a_flag_wins_over_the_app_and_the_app_over_a_variable(shop: Shop, orders: Queue) -> None:
    shop.environment |= {"SEMEL_LEDGER": "sqlite:///other.db", "SEMEL_CONCURRENCY": "7", "SEMEL_LEASE": "50s"}

    def explained(*flags: str) -> tuple[str, tuple[int, str], tuple[int, str]]:
        _, output, errors = shop.run("run", "shop:app", "--explain", "--output", "json", *flags)
        assert errors == ""
        explanation = json.loads(output)
        (settings,) = [handler["settings"] for handler in explanation["handlers"] if handler["queue"] == "orders"]
        return explanation["ledger"], *(
            (settings[name]["value"], settings[name]["source"]) for name in ("concurrency", "lease")
        )

    own = f"sqlite:///{shop.folder}/ledger.db"
    assert explained() == (own, (7, "environment: SEMEL_CONCURRENCY"), (45.0, "handler"))
    flags = ("--ledger", f"sqlite:///{shop.folder}/flag.db", "--concurrency", "9", "--lease", "60s")
    assert explained(*flags) == (flags[1], (9, "command line"), (60.0, "command line"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nowhere:app"), "there is no module 'nowhere'"),
        (("run", "shop"), "write it as module:app"),
        (("run", ":app"), "write it as module:app"),
        (("run", "../shop:app"), "write it as module:app"),
        (("run", "shop:nothing"), "is not an App"),
        (("run", "shop:app", "--queue", "nope"), "no handler for 'nope'"),
        (("run", "shop:app", "--lease", "soon"), "--lease soon: 'soon' is not a duration"),
        (("run", "shop:app", "--lease", "0"), "--lease 0: it must be from 1"),
        (("run", "shop:app", "--drain", "25x"), "--drain: '25x' is not a duration"),
        (("run", "shop:app", "--concurrency", "0"), "--concurrency 0: the minimum is 1"),
        (("run", "shop:app", "--prefetch", "-1"), "--prefetch -1: the minimum is 0"),
        (("run", "shop:app", "--prefetch", "some"), "--prefetch some: it must be a whole number"),
        (("run", "shop:app", "--health", "nonsense"), "--health: 'nonsense' is not an address"),
        (("run", "shop:app", "--checkpoint", "x"), "--checkpoint is for Spark: add --on spark"),
        (("run", "shop:app", "--control-token", "x"), "add --health"),
        (("run", "shop:app", "--on", "spark", "--control-token", "x"), "--control-token works on threads only"),
        (("run", "shop:app", "--on", "spark", "--processes", "2"), "--processes is for threads"),
        (("workers", "stop"), "or use --all"),
        (("workers", "scale", "99999"), "a number from 1 to"),
    ],
)
def test_wrong_usage_is_said_in_one_line_with_exit_code_2(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command sets up the log of its process
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    sys.modules.pop("shop", None)
    code = main(arguments)
    errors = capsys.readouterr().err
    sys.modules.pop("shop", None)
    assert code == 2, errors
    assert said in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "shop:app", "--endpoint-url", "http://127.0.0.1:9", "--queue", "orders"), "127.0.0.1:9"),
        (("workers", "health", "1"), "127.0.0.1:1"),
        (("run", "broken:app"), "'broken' cannot be imported: ZeroDivisionError: division by zero ("),
        (("run", "exits:app"), "'exits' cannot be imported: SystemExit: 5 ("),
        (("run", "remote:app"), "semel: PostgreSQL at 127.0.0.1:9/shop cannot be reached"),
    ],
)
def test_what_cannot_work_is_said_in_one_line_with_exit_code_1(
    shop: Shop, orders: Queue, arguments: tuple[str, ...], said: str
) -> None:
    shop.environment["AWS_MAX_ATTEMPTS"] = "1"
    (shop.folder / "broken.py").write_text("1 / 0")
    (shop.folder / "exits.py").write_text("raise SystemExit(5)")
    (shop.folder / "remote.py").write_text(APP.replace('os.environ["TEST_LEDGER"]', '"postgresql://127.0.0.1:9/shop"'))
    code, _, errors = shop.run(*arguments, *(("--log-level", "error") if arguments[0] == "run" else ()))
    assert code == 1, errors
    assert said in errors
    assert "again at the next call" not in errors
    assert "Traceback" not in errors


def test_a_missing_queue_is_named(shop: Shop, broker: EmbeddedBroker) -> None:
    (shop.folder / "shop.py").write_text(APP.replace('"orders"', '"no-such-queue"'))
    code, _, errors = shop.run("run", "shop:app", "--queue", "no-such-queue")
    assert code == 1
    assert f"semel queues create no-such-queue --region us-east-1 --endpoint-url {broker.url}" in errors
    assert "Traceback" not in errors


def test_a_region_that_is_given_counts(shop: Shop, orders: Queue) -> None:
    away = APP.replace("import os, time", "import os, time, multiprocessing").replace('"orders"', '"nowhere"')
    (shop.folder / "shop.py").write_text(away)
    _, _, errors = shop.run("run", "shop:app", "--queue", "nowhere", "--region", "eu-west-3")
    assert "in region eu-west-3 of this account" in errors


def test_create_dlq_makes_the_queue_and_says_so(shop: Shop, orders: Queue, broker: EmbeddedBroker) -> None:
    code, _, errors = shop.run("run", "shop:app", "--queue", "orders", "--exit-when-empty", "--create-dlq")
    assert code == 0, errors
    assert "created the dead-letter queue orders-dlq for orders: SQS moves a message there after 5 receives" in errors
    policy = json.loads(orders.attributes("RedrivePolicy")["RedrivePolicy"])
    assert policy["deadLetterTargetArn"].endswith(":orders-dlq")
    assert int(policy["maxReceiveCount"]) == recommendations.RECEIVES  # as the doctor advises


@pytest.mark.parametrize("processes", ["1", "2"])
def test_health_and_metrics_of_one_and_of_many_processes(shop: Shop, orders: Queue, processes: str) -> None:
    port = free_port()
    orders.send(json.dumps({"n": 1}))
    process = shop.start("run", "shop:app", "--queue", "orders", "--processes", processes, "--health", str(port))
    try:
        until(lambda: shop.effects == [1], process=process)
        until(lambda: completed(port) == 1, process=process)
        assert is_healthy(shop, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def is_healthy(shop: Shop, port: int) -> bool:
    return shop.run("workers", "health", str(port))[0] == 0


def completed(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith('semel_completed_total{queue="orders"}'))

"""`semel serve` as a process: its ready line, signals, exit codes, and its errors when it cannot continue."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import pytest
from serve_process import SEMEL, Serve, Starter, assert_clean, request, run_to_end

from waiting import free_port

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def refusal(folder: Path, *options: str, code: int = 1, **how: Any) -> str:
    """The one line with which a broker refuses to start."""
    ended = run_to_end(folder, *(() if "--port" in options else ("--port", "0")), *options, **how)
    assert (ended.code, ended.output) == (code, ""), ended
    assert ended.errors.startswith("semel: "), ended.errors
    assert ended.errors.count("\n") == 1, ended.errors
    return ended.errors


# The start.


def test_it_says_when_it_is_ready_and_where_its_queues_are_and_answers_from_then_on(serve: Starter) -> None:
    broker = serve("--ephemeral")
    assert broker.ready_line == f"semel: SQS listening on http://127.0.0.1:{broker.port}\n"
    assert broker.data_line == "semel: queues are kept in memory only\n"
    assert broker.call("ListQueues").status == 200
    assert_clean(broker.stop())


def test_port_0_gives_each_broker_a_port_of_its_own(serve: Starter) -> None:
    first, second = serve("--ephemeral"), serve("--ephemeral")
    assert first.port != second.port
    assert first.port > 1023


def test_a_chosen_port_can_be_used_again_right_after_a_broker_left_it(serve: Starter) -> None:
    first = serve("--ephemeral")
    with first.connect() as connection:
        connection.call("ListQueues")
        assert_clean(first.stop())
    assert serve("--ephemeral", "--port", str(first.port)).port == first.port


def test_queues_are_kept_in_semel_data_unless_another_folder_is_named(serve: Starter, tmp_path: Path) -> None:
    broker = serve()
    broker.create("orders")
    assert broker.data_line == f"semel: queues are kept in {tmp_path / 'semel-data'}\n"
    assert_clean(broker.stop())
    assert (tmp_path / "semel-data" / "broker.db").is_file()
    assert "orders" in serve().call("ListQueues").json["QueueUrls"][0]


def test_a_data_folder_is_made_with_its_parents_whatever_its_name(serve: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "größe"
    broker = serve("--data", str(folder))
    broker.create("orders")
    assert_clean(broker.stop())
    assert (folder / "broker.db").is_file()


def test_an_ephemeral_broker_leaves_no_file(serve: Starter, tmp_path: Path) -> None:
    broker = serve("--ephemeral")
    broker.create("orders")
    broker.call("SendMessage", "orders", MessageBody="x")
    assert_clean(broker.stop())
    assert list(tmp_path.iterdir()) == []


def test_it_listens_on_ipv6(serve: Starter) -> None:
    try:
        socket.socket(socket.AF_INET6).close()
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    broker = serve("--ephemeral", "--host", "::1")
    assert broker.url == f"http://[::1]:{broker.port}"
    assert broker.call("ListQueues").status == 200


@pytest.mark.parametrize("number", SIGNALS)
def test_a_ready_file_is_there_from_the_ready_line_to_the_end(
    serve: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    where = ("--ephemeral", "--account", "123456789012", "--region", "eu-west-1", "--ready-file", "broker.json")
    broker = serve(*where)
    text = (tmp_path / "broker.json").read_text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    expected = {"url": broker.url, "pid": broker.pid, "region": "eu-west-1", "account": "123456789012"}
    assert json.loads(text) == expected
    assert_clean(broker.stop(number), number)
    assert list(tmp_path.iterdir()) == []


def test_a_ready_file_of_a_killed_broker_is_replaced(serve: Starter, tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    serve("--ephemeral", "--ready-file", str(file)).stop(signal.SIGKILL)
    assert file.exists()
    second = serve("--ephemeral", "--ready-file", str(file))
    assert json.loads(file.read_text())["pid"] == second.pid


def test_a_broker_leaves_the_ready_file_of_its_successor_alone(serve: Starter, tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    first = serve("--ephemeral", "--ready-file", str(file))
    second = serve("--ephemeral", "--ready-file", str(file))
    assert_clean(first.stop())
    assert json.loads(file.read_text())["url"] == second.url


@pytest.mark.parametrize("path", ["absent/broker.json", ".", "folder"])
def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    text = refusal(tmp_path, "--ephemeral", "--ready-file", path)
    assert f"--ready-file {path}: cannot be written" in text
    assert "choose a file in a folder that exists" in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_ready_line_that_nobody_can_take_ends_it_without_a_stack_trace() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this machine has no /dev/full to write to")
    with open("/dev/full", "w") as full:
        command = [SEMEL, "serve", "--ephemeral", "--port", "0"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr


# The end.


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_answers_every_waiting_poll_and_exits(serve: Starter, number: signal.Signals) -> None:
    broker = serve()
    broker.create("empty")
    with ExitStack() as stack:
        polls = [stack.enter_context(broker.connect()) for _ in range(20)]
        for poll in polls:
            poll.ask("ReceiveMessage", "empty", WaitTimeSeconds=20)
        broker.call("ListQueues")
        asked = monotonic()
        ended = broker.stop(number)
        for poll in polls:
            answer = poll.answer()
            assert (answer.status, answer.json) == (200, {})
            assert poll.at_end()
    assert_clean(ended, number)
    assert monotonic() - asked < 5


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_under_load_loses_no_answer_and_no_acknowledged_send(serve: Starter, number: signal.Signals) -> None:
    broker = serve()
    broker.create("orders")
    acknowledged: set[str] = set()
    under_way: list[float] = []
    stopped = threading.Event()
    enough = threading.Semaphore(0)

    def send() -> None:
        try:
            with broker.connect() as connection:
                while True:
                    asked = monotonic()
                    connection.ask("SendMessage", "orders", MessageBody="x")
                    try:
                        acknowledged.add(connection.answer().json["MessageId"])
                    except ConnectionError:
                        under_way.append(asked)
                        return
                    enough.release()
        except ConnectionError:
            assert stopped.is_set()

    with ThreadPoolExecutor(8) as pool:
        senders = [pool.submit(send) for _ in range(8)]
        for _ in range(200):
            assert enough.acquire(timeout=20)
        stopped.set()
        signalled = monotonic()
        ended = broker.stop(number)
    for sender in senders:
        sender.result()
    assert_clean(ended, number)
    # What was sent while it was closing the door may stay outside; what had come in before that is answered.
    assert [asked for asked in under_way if asked < signalled - 0.05] == []
    stored = {message["MessageId"] for message in _everything(serve(), "orders")}
    assert stored >= acknowledged


def _everything(broker: Serve, queue: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    with broker.connect() as connection:
        page: dict[str, Any] = {"Next": 0}
        while "Next" in page:
            target = f"/_semel/queues/{queue}/messages?limit=1000&after={page['Next']}"
            connection.send(request(target, host=broker.url, method="GET"))
            page = connection.answer().json
            messages += page["Messages"]
    return messages


def test_a_signal_waits_for_calls_that_a_fault_holds_up(serve: Starter) -> None:
    broker = serve("--fault", "latency=1:400")
    broker.create("orders")
    with ExitStack() as stack:
        senders = [stack.enter_context(broker.connect()) for _ in range(5)]
        for sender in senders:
            sender.ask("SendMessage", "orders", MessageBody="x")
        with broker.connect() as other:  # answered at once, so the five are known to have arrived
            other.send(request("/_semel/health", host=broker.url, method="GET"))
            assert other.answer().status == 200
        broker.send_signal(signal.SIGTERM)
        for sender in senders:
            assert sender.answer().status == 200
    assert_clean(broker.wait())
    assert len(serve().peek("orders")) == 5


def test_silent_and_half_finished_clients_do_not_hold_up_the_end(serve: Starter) -> None:
    broker = serve()
    with broker.connect(), broker.connect() as half:
        half.send(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        broker.call("ListQueues")
        asked = monotonic()
        assert_clean(broker.stop())
        assert monotonic() - asked < 5


def test_two_signals_end_it_as_cleanly_as_one(serve: Starter) -> None:
    broker = serve()
    broker.create("orders")
    broker.send_signal(signal.SIGINT)
    assert_clean(broker.stop(signal.SIGTERM), signal.SIGINT)


# What keeps it from starting: one line that names the trouble, and exit 1.


def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(serve: Starter, tmp_path: Path) -> None:
    broker = serve("--data", "shared")
    broker.create("orders")
    line = refusal(tmp_path, "--data", "shared")
    assert "shared" in line
    assert "another broker is using it" in line
    assert broker.call("SendMessage", "orders", MessageBody="x").status == 200
    assert_clean(broker.stop())
    assert len(serve("--data", "shared").peek("orders")) == 1


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"port {port}" in refusal(tmp_path, "--port", str(port), "--ephemeral")


def test_a_port_that_is_taken_leaves_no_data_folder_behind(serve: Starter, tmp_path: Path) -> None:
    broker = serve("--ephemeral")
    refusal(tmp_path, "--port", str(broker.port))
    assert not (tmp_path / "semel-data").exists()


def test_of_two_brokers_that_start_on_one_port_at_once_one_is_refused(tmp_path: Path) -> None:
    port = free_port()
    command = [SEMEL, "serve", "--ephemeral", "--port", str(port)]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    try:
        end = monotonic() + 20
        while all(process.poll() is None for process in both) and monotonic() < end:
            sleep(0.02)
        (refused,) = [process for process in both if process.poll() is not None]
        errors = refused.communicate()[1]
        assert refused.returncode == 1
        assert f"port {port}" in errors
        assert errors.count("\n") == 1
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt" in refusal(tmp_path, "--data", "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Below a file: not even root can make a folder there."""
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt/data" in refusal(tmp_path, "--data", "notes.txt/data")


def test_a_data_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    """In /proc, not even root can make one; where there is no /proc, a folder in the database's place does."""
    if os.path.isdir("/proc/self/fdinfo"):
        assert "/proc/self/fdinfo" in refusal(tmp_path, "--data", "/proc/self/fdinfo")
    (tmp_path / "data" / "broker.db").mkdir(parents=True)
    assert "data" in refusal(tmp_path, "--data", "data")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    database = _database(tmp_path)
    database.write_bytes(b"these are my notes\n" * 500)
    line = refusal(tmp_path, "--data", "data")
    assert "data" in line
    assert "not a Semel database" in line
    assert database.read_bytes() == b"these are my notes\n" * 500


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(_database(tmp_path)) as other:
        other.execute("CREATE TABLE accounts (id)")
    other.close()
    before = _database(tmp_path).read_bytes()
    assert "another program" in refusal(tmp_path, "--data", "data")
    assert _database(tmp_path).read_bytes() == before


def test_a_database_of_a_newer_semel_is_left_alone(serve: Starter, tmp_path: Path) -> None:
    assert_clean(serve("--data", "data").stop())
    database = sqlite3.connect(_database(tmp_path))
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = _database(tmp_path).read_bytes()
    line = refusal(tmp_path, "--data", "data")
    assert "newer Semel" in line
    assert "99" in line
    assert _database(tmp_path).read_bytes() == before


@pytest.mark.parametrize("damage", [100, 4096, 8192])
def test_a_damaged_database_is_refused_without_a_stack_trace(serve: Starter, tmp_path: Path, damage: int) -> None:
    """From the given byte on, a page and more is overwritten: the list of tables, then the tables themselves."""
    broker = serve("--data", "data")
    broker.create("orders")
    assert_clean(broker.stop())
    with _database(tmp_path).open("r+b") as database:
        database.seek(damage)
        database.write(b"\xff" * 8192)
    line = refusal(tmp_path, "--data", "data")
    assert "data" in line
    assert "damaged" in line or "malformed" in line


def _database(folder: Path) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    return folder / "data" / "broker.db"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_other_machines_are_not_let_in_without_credentials(tmp_path: Path, host: str) -> None:
    line = refusal(tmp_path, "--ephemeral", "--host", host, code=2)
    assert "--credentials" in line
    assert "--insecure" in line


def test_other_machines_are_let_in_if_asked_for(serve: Starter) -> None:
    broker = serve("--ephemeral", "--host", "0.0.0.0", "--insecure")
    assert broker.call("ListQueues").status == 200


@pytest.mark.parametrize(
    "options",
    [
        ("--account", "12"),
        ("--account", "12345678901x"),
        ("--allow-host", "http://sqs.example.com:9324"),
        ("--region", "Mars"),
        ("--region", "us_east_1"),
        ("--fault", "nonsense=1"),
        ("--fault", "duplicate"),
        ("--fault", "duplicate=2"),
        ("--fault", "duplicate=often"),
        ("--fault", "duplicate=nan"),
        ("--fault", "latency=1:soon"),
        ("--port", "-1"),
        ("--port", "65536"),
        ("--host", "no.such.host.invalid"),
        ("--credentials", "missing.ini"),
    ],
    ids="=".join,
)
def test_a_bad_option_is_named_with_its_value(tmp_path: Path, options: tuple[str, str]) -> None:
    extra = ("--insecure",) if options[0] == "--host" else ()
    line = refusal(
        tmp_path, "--ephemeral", *options, *extra, code=1 if options[0] in ("--host", "--credentials") else 2
    )
    assert options[1] in line


@pytest.mark.parametrize(
    "options", [("--port", "http"), ("--clock", "sundial"), ("--data", "x", "--ephemeral"), ("--frobnicate",)], ids=str
)
def test_wrong_usage_exits_2_with_the_usage(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run_to_end(tmp_path, *options)
    assert (ended.code, ended.output) == (2, "")
    assert ended.errors.startswith("usage: semel")
    assert "Traceback" not in ended.errors

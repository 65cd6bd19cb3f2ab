"""For users' own tests: the fixture `sqs_broker`, and brokers that start and stop without leaving anything behind."""

from __future__ import annotations

import gc
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from semel.broker import EmbeddedBroker, running
from semel.errors import SemelError, StartError
from semel.testing import running as running_for_tests

pytest_plugins = ["pytester"]

# What other plugins do is not looked at here.
QUICK: Final = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:timeout", "-W", "error")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """pytest in a process of its own, in a project that has nothing but its tests."""
    return pytester.runpytest_subprocess(*QUICK, *options)


def names(broker: EmbeddedBroker) -> list[str]:
    return [queue["name"] for queue in broker.admin("GET", "queues")["queues"]]


@contextmanager
def client_of(broker: EmbeddedBroker) -> Iterator[Any]:
    client = broker.client()
    try:
        yield client
    finally:
        client.close()


# The plugin.


def test_a_project_that_only_installs_semel_has_a_fresh_broker_for_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_fresh(sqs_broker, number):
            assert sqs_broker.admin("GET", "queues") == {"queues": []}
            assert sqs_broker.admin("GET", "faults")["faults"] == []
            sqs_broker.faults.set("throttle", 1.0)
            client = sqs_broker.client()
            with pytest.raises(client.exceptions.RequestThrottled):
                client.create_queue(QueueName="orders")
            sqs_broker.faults.clear()
            client.create_queue(QueueName="orders")
            client.close()

        def test_a_message_comes_back_after_its_timeout(sqs_broker):
            client = sqs_broker.client()
            url = client.create_queue(QueueName="orders")["QueueUrl"]
            client.send_message(QueueUrl=url, MessageBody="hello")
            assert client.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hello"
            assert "Messages" not in client.receive_message(QueueUrl=url)
            sqs_broker.clock.advance(30)
            assert client.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hello"
            client.close()
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_the_fixture_explains_itself(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest_inprocess("--fixtures", "-q", "-p", "no:cacheprovider").stdout.str()
    assert "sqs_broker" in listed
    assert "clock.advance(seconds)" in listed


def test_the_fixtures_clock_stands_still_until_it_is_moved(sqs_broker: EmbeddedBroker) -> None:
    assert sqs_broker.admin("GET", "clock")["manual"] is True
    before = sqs_broker.clock.now()
    assert before == pytest.approx(time(), abs=30)
    assert sqs_broker.clock.now() == before
    sqs_broker.clock.advance(300)
    assert sqs_broker.clock.now() == pytest.approx(before + 300, abs=0.001)


def test_the_fixture_keeps_the_pauses_of_the_service(sqs_broker: EmbeddedBroker) -> None:
    with client_of(sqs_broker) as client:
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        client.purge_queue(QueueUrl=url)
        with pytest.raises(client.exceptions.PurgeQueueInProgress):
            client.purge_queue(QueueUrl=url)
        sqs_broker.clock.advance(60)
        client.purge_queue(QueueUrl=url)


def test_a_project_that_does_not_use_the_fixture_does_not_pay_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_of_the_broker_is_loaded():
            loaded = {name for name in sys.modules if name.startswith(("semel.broker", "uvloop", "boto"))}
            assert loaded == set()
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_broker_needs_no_boto3_but_its_client_says_that_it_does(
    sqs_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert names(sqs_broker) == []
    with pytest.raises(SemelError, match=r"pip install 'semel\[testing\]'"):
        sqs_broker.client()


def test_a_test_without_boto3_can_drive_an_app(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['boto3'] = None")
    pytester.makepyfile(
        """
        from semel import App
        from semel.testing import driving

        def test_a_crash_is_survived(sqs_broker):
            app = App()

            @app.handler("orders", key="$.id")
            def ship(order: dict) -> None: ...

            with driving(app, sqs_broker, crash_at="after_work") as driver:
                driver.client.create_queue("orders").send('{"id": 7}')
                assert app.drain() == 0
                sqs_broker.clock.advance(31)
                assert app.drain() == 1
        """
    )
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.slow
def test_tests_in_several_processes_do_not_get_in_each_others_way(pytester: pytest.Pytester) -> None:
    """By pytest-xdist."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_alone(sqs_broker, number):
            assert sqs_broker.admin("GET", "queues") == {"queues": []}
            client = sqs_broker.client()
            client.create_queue(QueueName="orders")
            client.close()
            assert len(sqs_broker.admin("GET", "queues")["queues"]) == 1
        """
    )
    run(pytester, "-n", "2").assert_outcomes(passed=4)


# Brokers in this process.


def test_starting_a_broker_takes_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    begin = perf_counter()
    for _ in range(50):
        with running(clock="manual") as broker:
            assert broker.url
    each = (perf_counter() - begin) / 50 * 1000
    with capsys.disabled():
        print(f"\n50 brokers one after the other: {each:.1f} ms each", end=" ")


def test_two_brokers_at_once_share_nothing() -> None:
    with running(clock="manual") as broker, running(clock="manual", region="eu-west-1") as other:
        assert broker.url != other.url
        with client_of(broker) as first, client_of(other) as second:
            first.create_queue(QueueName="orders")
            second.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
        assert (names(broker), names(other)) == (["orders"], ["orders.fifo"])
        assert other.admin("GET", "queues")["queues"][0]["arn"] == "arn:aws:sqs:eu-west-1:000000000000:orders.fifo"
        before = other.clock.now()
        broker.clock.advance(1000)
        assert other.clock.now() == before
        broker.faults.set("throttle", 1.0)
        with client_of(other) as second:
            second.list_queues()
        assert (broker.faults.counts(), other.faults.counts()) == ({}, {})


def test_brokers_can_be_started_from_many_threads_at_once() -> None:
    def use(number: int) -> tuple[str, list[str]]:
        with running(clock="manual") as broker:
            host = broker.url
            with client_of(broker) as client:
                client.create_queue(QueueName=f"q{number}")
            return host, names(broker)

    with ThreadPoolExecutor(4) as pool:
        brokers = list(pool.map(use, range(8)))
    assert [queues for _, queues in brokers] == [[f"q{number}"] for number in range(8)]


def test_a_broker_can_be_used_from_many_threads_at_once(sqs_broker: EmbeddedBroker) -> None:
    with client_of(sqs_broker) as client, ThreadPoolExecutor(8) as pool:
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        list(pool.map(lambda n: client.send_message(QueueUrl=url, MessageBody=str(n)), range(100)))
    assert sorted(int(message["Body"]) for message in sqs_broker.peek("orders")) == list(range(100))


def test_a_broker_with_a_data_folder_keeps_its_messages_from_run_to_run(tmp_path: Path) -> None:
    with running(data=tmp_path / "kept") as broker, client_of(broker) as client:
        url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "40"})["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="taken")
        client.receive_message(QueueUrl=url)
        sent = client.send_message(QueueUrl=url, MessageBody="kept")["MessageId"]
        before = broker.peek("orders")
    with running(data=str(tmp_path / "kept")) as broker, client_of(broker) as client:
        assert broker.peek("orders") == before
        url = client.get_queue_url(QueueName="orders")["QueueUrl"]
        (message,) = client.receive_message(QueueUrl=url)["Messages"]
        assert (message["MessageId"], message["Body"]) == (sent, "kept")


def test_a_broker_without_a_data_folder_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running() as broker, client_of(broker) as client:
        client.create_queue(QueueName="orders")
    assert list(tmp_path.iterdir()) == []


def test_a_broker_on_the_system_clock_goes_with_the_time() -> None:
    with running() as broker:
        assert broker.clock.now() == pytest.approx(time(), abs=30)
        with pytest.raises(SemelError, match="manual"):
            broker.clock.advance(1)


def test_the_pauses_of_the_service_can_be_switched_off() -> None:
    with running(clock="manual", cooldowns=False) as broker, client_of(broker) as client:
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        for _ in range(3):
            client.purge_queue(QueueUrl=url)
        client.delete_queue(QueueUrl=url)
        client.create_queue(QueueName="orders")
        assert names(broker) == ["orders"]


def test_testing_offers_the_same_broker() -> None:
    assert running_for_tests is running


# Without a trace.


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert left == []


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_broker_in_memory_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # of whatever else this process runs
    with running() as broker, client_of(broker) as client:
        client.create_queue(QueueName="orders")
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        assert [name for name in started if "semel" in name] == ["semel-broker"]


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_broker_on_disk_leaves_no_thread_behind(tmp_path: Path) -> None:
    with running(data=tmp_path) as broker, client_of(broker) as client:
        client.create_queue(QueueName="orders")


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_block_that_fails_leaves_no_thread_behind_and_its_error_comes_through() -> None:
    with pytest.raises(ZeroDivisionError), running():
        raise ZeroDivisionError


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize(
    "options", [{"account": "12"}, {"region": "Mars"}, {"port": 70_000}, {"host": "0.0.0.0"}, {"credentials": "none"}]
)
def test_a_broker_that_cannot_start_says_so_and_leaves_no_thread_behind(options: dict[str, Any]) -> None:
    with pytest.raises(StartError), running(**options):
        pytest.fail("it runs")


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_port_or_a_folder_that_is_taken_is_an_error_and_the_first_broker_goes_on(tmp_path: Path) -> None:
    with running(data=tmp_path) as broker:
        port = int(broker.url.rpartition(":")[2])
        with pytest.raises(StartError, match=f"port {port}"), running(port=port):
            pytest.fail("it runs")
        with pytest.raises(StartError, match="another broker is using it"), running(data=tmp_path):
            pytest.fail("it runs")
        assert names(broker) == []
    # A socket or a file that was left open would be complained of now.
    gc.collect()


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_poll_that_still_waits_is_answered_when_the_broker_ends() -> None:
    with ExitStack() as stack:
        with running(clock="manual") as broker:
            with client_of(broker) as client:
                url = client.create_queue(QueueName="orders")["QueueUrl"]
            host = urlsplit(broker.url)
            waiting = stack.enter_context(socket.create_connection((host.hostname, host.port), 10))
            query = f"{urlsplit(url).path}?Action=ReceiveMessage&WaitTimeSeconds=20"
            waiting.sendall(f"GET {query} HTTP/1.1\r\nHost: {host.netloc}\r\n\r\n".encode())
            # Two requests later it has been read and waits: it was there first.
            for _ in range(2):
                broker.clock.now()
            begin = perf_counter()
        answer = waiting.recv(10_000).decode()
        assert answer.startswith("HTTP/1.1 200 ")
        assert "<ReceiveMessageResult/>" in answer
        assert perf_counter() - begin < 8

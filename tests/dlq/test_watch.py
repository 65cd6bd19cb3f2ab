"""Alarms: when they are raised, and that each target gets every one of them, whatever fails in between."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.serving import Shop, shop
from semel.dlq import watch as watching
from semel.dlq.messages import DeadLetterQueue
from semel.dlq.watch import Alarm, AlarmChannel, Watch

DLQ = "orders-dlq"


def queue(depth: int, first_expires: float | None = None, name: str = DLQ) -> DeadLetterQueue:
    return DeadLetterQueue(name, "", "", False, depth, 0, 0, 345_600.0, ("orders",), first_expires=first_expires)


def raised(watch: Watch, depth: int, now: float = 0.0, first_expires: float | None = None) -> list[str]:
    """What is delivered at once."""
    watch.check([queue(depth, first_expires)], now)
    alarms = list(watch.state.pending)
    for alarm in alarms:
        watch.delivered(alarm)
    return [f"{alarm.kind} {alarm.new}" for alarm in alarms]


def test_an_arrival_is_raised_once_and_not_for_swings_of_a_count() -> None:
    watch = Watch(None)
    depths = [0, 3, 3, 2, 3, 5, 0, 0, 1]
    assert [raised(watch, depth) for depth in depths] == [
        *([], ["arrival 3"], [], [], [], ["arrival 2"], [], [], ["arrival 1"])
    ]
    watch.ignore_existing([queue(7)])
    assert raised(watch, 7) == []
    assert raised(watch, 8) == ["arrival 1"]


def test_an_expiry_is_raised_when_it_is_near_and_again_each_hour() -> None:
    watch = Watch(6 * 3_600.0)
    watch.ignore_existing([queue(3)])
    expires = 100_000.0 + 7 * 3_600
    assert raised(watch, 3, 100_000.0, expires) == []
    assert raised(watch, 3, 104_000.0, expires) == ["expiry 0"]
    assert raised(watch, 3, 104_100.0, expires) == []
    assert raised(watch, 3, 107_700.0, expires) == ["expiry 0"]
    watch = Watch(3_600)
    watch.check([queue(1, 1_800.0)], 1.0)
    assert watch.state.pending[1].text == "the first of 1 message in orders-dlq expires in 0 h 29 min"


def test_alarms_that_wait_for_delivery_become_one_of_each_kind() -> None:
    watch = Watch(3_600.0)
    for hour in range(100):
        watch.check([queue(hour + 1, hour * 3_600.0 + 60)], hour * 3_600.0)
    assert [(alarm.kind, alarm.new, alarm.depth) for alarm in watch.state.pending] == [
        ("arrival", 100, 100),
        ("expiry", 0, 100),
    ]
    assert watch.state.pending[0].text == "100 messages of orders in orders-dlq"


class Inbox:
    """A place that fails as long as it is asked to."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self.down = False

    def deliver(self, alarm: Alarm) -> str:
        if self.down:
            return "it is down"
        self.alarms.append(alarm)
        return ""

    @property
    def new(self) -> list[int]:
        return [alarm.new for alarm in self.alarms]


def channel(folder: Path, name: str, inbox: Inbox) -> AlarmChannel:
    return AlarmChannel(folder, "http://sqs", name, inbox.deliver, before=None)


def test_each_place_gets_each_alarm_once_whatever_happens_at_the_others(tmp_path: Path) -> None:
    webhook, command = Inbox(), Inbox()
    webhook.down = True
    for depth in (3, 3, 4):  # three runs
        for name, inbox in (("webhook", webhook), ("exec", command)):
            place = channel(tmp_path, name, inbox)
            place.check([queue(depth)], 0.0)
            assert place.deliver() == ("it is down" if inbox.down else "")
    webhook.down = False
    assert channel(tmp_path, "webhook", webhook).deliver() == ""
    assert channel(tmp_path, "webhook", webhook).pending == ()
    assert (webhook.new, command.new) == ([4], [3, 1])


def test_what_was_not_delivered_is_delivered_even_if_the_messages_are_gone(tmp_path: Path) -> None:
    inbox = Inbox()
    inbox.down = True
    place = channel(tmp_path, "webhook", inbox)
    place.check([queue(3)], 1.0)
    place.deliver()
    inbox.down = False
    place = channel(tmp_path, "webhook", inbox)
    place.check([queue(0)], 2.0)
    place.deliver()
    assert [(alarm.new, alarm.at) for alarm in inbox.alarms] == [(3, 1.0)]


def test_an_endpoint_and_a_place_have_a_state_of_their_own(tmp_path: Path) -> None:
    inbox_a, inbox_b = Inbox(), Inbox()
    for endpoint, inbox in (("http://a", inbox_a), ("http://b", inbox_b)):
        place = AlarmChannel(tmp_path, endpoint, "output", inbox.deliver, before=None)
        place.check([queue(3)], 0.0)
        place.deliver()
    assert (inbox_a.new, inbox_b.new) == ([3], [3])
    files = list((tmp_path / "watch").iterdir())
    assert (len(files), files[0].parent.stat().st_mode & 0o077) == (2, 0)


class Webhook:
    """A real HTTP server; `status` is its answer."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 204
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if webhook.status == 204:
                    webhook.got.append(content)
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


def test_a_webhook_that_nobody_serves_is_named_without_the_number_of_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    watch = Watch(None)
    watch.check([queue(2)], 5.0)
    problem = watching.post(watch.state.pending[0], f"http://127.0.0.1:{port}/x", sleep=lambda _: None)
    assert problem.endswith("did not accept the alarm for orders-dlq: Connection refused")


def test_a_webhook_that_fails_and_recovers_gets_the_alarm(tmp_path: Path, webhook: Webhook) -> None:
    waits: list[float] = []

    def deliver(alarm: Alarm) -> str:
        return watching.post(alarm, webhook.url, sleep=waits.append)

    place = AlarmChannel(tmp_path, "http://sqs", "webhook", deliver, before=None)
    place.check([queue(2)], 5.0)
    webhook.status = 503
    problem = place.deliver()
    assert "did not accept the alarm for orders-dlq: HTTP 503" in problem
    assert "secret" not in problem
    assert waits == [1.0, 2.0, 4.0]
    webhook.status = 400
    place.deliver()
    assert len(waits) == 3, "a request that is refused is not repeated"
    webhook.status = 204
    again = AlarmChannel(tmp_path, "http://sqs", "webhook", deliver, before=None)
    assert again.deliver() == ""
    assert [(alarm["source"], alarm["queue"], alarm["new"], alarm["at"]) for alarm in webhook.got] == [
        ("semel dlq watch", DLQ, 2, 5.0)
    ]


def test_a_command_that_fails_is_reported() -> None:
    alarm = Alarm("arrival", DLQ, "text", 5.0, 1, 1)
    assert watching.execute(alarm, 'test "$SEMEL_ALARM_QUEUE $SEMEL_ALARM_NEW" = "orders-dlq 1"') == ""
    assert "exited with status 3" in watching.execute(alarm, "exit 3")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path / "state") as place:
        yield place


def test_an_alarm_survives_a_kill_before_it_was_delivered(place: Shop, tmp_path: Path, webhook: Webhook) -> None:
    """The command kills the watch that runs it; the next run delivers to the command, and not again to the webhook."""
    hook, log = tmp_path / "hook.sh", tmp_path / "log"
    place.dead_letter(3)
    environment = os.environ | {
        "SEMEL_STATE": str(place.state),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    where = ["--endpoint-url", place.broker.url, "--webhook", webhook.url, "--exec", f". {hook}"]
    command = [sys.executable, "-m", "semel.cli", "dlq", "watch", "--once", *where]

    def run() -> int:
        return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False).returncode

    hook.write_text("kill -9 $PPID\n")
    assert run() == -signal.SIGKILL
    assert [alarm["new"] for alarm in webhook.got] == [3]
    hook.write_text(f'echo "$SEMEL_ALARM_NEW" >> {log}\n')
    assert run() == 3
    assert run() == 0
    assert log.read_text() == "3\n"
    assert [alarm["new"] for alarm in webhook.got] == [3]

"""`semel dlq watch`: when it alerts, and that no alarm is lost."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path
from typing import Any

from cli.shell import DLQ, Shell, Terminal


class Hooks:
    """A webhook that refuses the first alarms, and takes the rest."""

    def __init__(self, refused: int) -> None:
        self.got: list[dict[str, Any]] = []
        hooks = self

        class Hook(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hooks.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(404 if len(hooks.got) <= refused else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Hooks:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_watch_once_remembers_what_it_told(shell: Shell, tmp_path: Path) -> None:
    assert shell("dlq", "watch", "--once").code == 0
    shell.dead_letter(3)
    alarms = tmp_path / "alarms"
    command = f'echo "$SEMEL_ALARM_KIND $SEMEL_ALARM_QUEUE $SEMEL_ALARM_NEW" >> {alarms}'
    ran = shell("dlq", "watch", "--once", "--exec", command)
    assert (ran.code, alarms.read_text()) == (3, "arrival orders-dlq 3\n")
    assert "ARRIVAL  3 messages of orders in orders-dlq" in ran.out
    assert shell("dlq", "watch", "--once").code == 0
    shell.dead_letter(1)
    alarm = shell("dlq", "watch", "--once", "--output", "json", "--expires-within", "30d", "--exec", "exit 7")
    assert [json.loads(line)["kind"] for line in alarm.out.splitlines()] == ["arrival", "expiry"]
    assert "exited with status 7" in alarm.err


def test_watch_waits_and_ends_at_the_first_alarm_and_the_webhook_is_tried_again(shell: Shell) -> None:
    got: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(503 if len(got) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hook"
        terminal = Terminal("dlq", "watch", DLQ, "--interval", "100ms", "--exit", "--webhook", url)
        terminal.until("watching 1 queue with")
        shell.dead_letter(2)
        code = terminal.end()
        server.shutdown()
    assert (code, len(got), got[0]) == (3, 2, got[1])
    assert (got[1]["kind"], got[1]["queue"], got[1]["source"]) == ("arrival", DLQ, "semel dlq watch")


def test_an_alarm_that_was_not_delivered_is_raised_again_by_the_next_run(shell: Shell) -> None:
    shell.dead_letter(3)
    with Hooks(refused=1) as hooks:
        ran = shell("dlq", "watch", "--once", "--webhook", hooks.url)
        assert (ran.code, "did not accept the alarm for orders-dlq: HTTP 404" in ran.err) == (3, True)
        shell.dead_letter(1)
        assert shell("dlq", "watch", "--once", "--webhook", hooks.url).code == 3
        assert shell("dlq", "watch", "--once", "--webhook", hooks.url).code == 0
    assert [alarm["new"] for alarm in hooks.got] == [3, 4]


def test_an_alarm_waits_until_the_webhook_takes_it_and_a_command_gets_it_once(shell: Shell, tmp_path: Path) -> None:
    shell.dead_letter(2)
    alarms = tmp_path / "alarms"
    with Hooks(refused=2) as hooks:
        command = f'echo "$SEMEL_ALARM_NEW" >> {alarms}'
        terminal = Terminal("dlq", "watch", DLQ, "--interval", "100ms", "--webhook", hooks.url, "--exec", command)
        terminal.until(lambda: len(hooks.got) == 3)
        states = tmp_path / "state" / "watch"
        terminal.until(lambda: not any(b"arrival" in state.read_bytes() for state in states.glob("*.json")))
        terminal.interrupt()
        assert terminal.end() == 130
    assert len(hooks.got) == 3
    assert alarms.read_text() == "2\n"
    assert terminal.text.count("ARRIVAL") == 1

"""The command line for tests: in this process, or in a separate process on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from semel.broker import EmbeddedBroker
from semel.cli import main
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client, Entry
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """The command line in this process."""

    def __init__(self, broker: EmbeddedBroker, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.client, self._capsys = broker, client, capsys

    def __call__(self, *arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(str(error.code))
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def dead_letter(self, count: int, error: str = "read timed out after {n} s", queue: str = DLQ) -> list[str]:
        """Write messages to the dead-letter queue as a worker does; returns their ids."""
        entries = []
        for n in range(count):
            about = own_attributes.DeadLetterDetails(f"o-{n}", "TimeoutError", error.format(n=n), 3, f"m-{n}", "orders")
            body = json.dumps({"id": f"o-{n}", "n": n})
            own = {"tenant": Attribute("String", "acme" if n % 2 else "umbrella")}
            entries.append(Entry(body, attributes=own_attributes.attributes(about, own, len(body))))
        return [
            answer.message_id for answer in self.client.queue(queue).send_many(entries) if hasattr(answer, "message_id")
        ]

    def count(self, queue: str = DLQ, state: str | None = None) -> int:
        return len(self.broker.peek(queue, state, limit=10_000))


class Terminal:
    """The command line in a separate process, on a terminal in which the test types."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semel.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def until(self, wanted: str | Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not (wanted in self.text if isinstance(wanted, str) else wanted()):
            assert time.monotonic() < ends, self.text
            self._read(0.05)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        ends = time.monotonic() + 60
        while self._process.poll() is None:
            assert time.monotonic() < ends, self.text
            self._read(0.05)
        self._read(0.05)
        os.close(self._master)
        return self._process.returncode

    def _read(self, patience: float) -> None:
        while select.select([self._master], [], [], patience)[0]:
            try:
                self.text += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                return
            patience = 0

"""Whatever fails, the programs write no secrets and no message bodies: not to output, logs at level debug, tracebacks,
the state folder, the attempt log, /metrics, /health, or the list of processes.

The text of an exception that a handler raises is logged, and written to the attempt log and the dead-letter queue, with
passwords masked. A message's key is shown, too, and so is what the user asks to see (`semel dlq show`, an export).
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from intruders import marks, targets
from intruders.marked_shop import app
from intruders.marks import BODY, PASSWORD
from intruders.signing import sign
from intruders.targets import Target
from intruders.wire import ask, get
from semel import App, Ledger
from semel.broker import EmbeddedBroker, running
from semel.errors import SemelError
from semel.sqs import Client
from suite import slow

RUN: Final = ("run", "intruders.marked_shop:app", "--log-level", "debug", "--create-dlq")


@pytest.fixture
def shop() -> Iterator[EmbeddedBroker]:
    """The app's queues, with messages that it accepts, rejects, cannot decode and fails on."""
    with running(cooldowns=False) as broker, Client(broker.url, "us-east-1", access_key="x", secret_key="y") as client:
        for name in app.handlers:
            queue = client.create_queue(name, {"VisibilityTimeout": "1"})
            queue.send(json.dumps({"id": 1, "note": BODY}))
            queue.send(json.dumps({"id": 2, "note": {"nested": [BODY]}}))
            queue.send(json.dumps([BODY]))
            queue.send(f"{{no JSON {BODY}")
            queue.send(json.dumps({"id": {"not": BODY}}), attributes={"note": BODY})
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_worker_on_which_everything_fails_writes_down_no_body_and_no_secret(
    shop: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    ran = marks.run(
        tmp_path,
        *(*RUN, "--endpoint-url", shop.url, "--exit-when-empty", "--log-format", form, "--attempt-log", "attempts"),
        SEMEL_LEDGER=f"sqlite:///{tmp_path}/ledger.db",
    )
    assert "the shop is closed" in ran.errors
    assert list((tmp_path / "attempts").rglob("*"))
    assert ran.leaks(tmp_path) == {}


ADDRESSES: Final = {
    "nobody listens": f"postgresql://shop:{PASSWORD}@127.0.0.1:1/db",
    "a slash in the password": f"postgresql://shop:x/{PASSWORD}@127.0.0.1:1/db",
    "a number and a slash in the password": f"postgresql://shop:1/{PASSWORD}@127.0.0.1:1/db",
    "a hash in the password": f"postgresql://shop:x#{PASSWORD}@127.0.0.1:1/db",
    "a question mark in the password": f"postgresql://shop:x?{PASSWORD}@127.0.0.1:1/db",
    "an @ at the end of the password": f"postgresql://shop:{PASSWORD}@x@127.0.0.1:1/db",
    "an @ at the start of the password": f"postgresql://shop:x@{PASSWORD}@127.0.0.1:1/db",
    "a bracket in the password": f"postgresql://shop:[{PASSWORD}@127.0.0.1:1/db",
    "a bad escape in the password": f"postgresql://shop:%zz{PASSWORD}@127.0.0.1:1/db",
    "the password as an option": f"postgresql://shop@127.0.0.1:1/db?password={PASSWORD}",
    "an option that does not exist": f"postgresql://shop:{PASSWORD}@127.0.0.1:1/db?nonsense=1",
    "a port that is no number": f"postgresql://shop:{PASSWORD}@127.0.0.1:port/db",
    "no Redis there": f"redis://:{PASSWORD}@127.0.0.1:1/0",
    "a slash in Redis's password": f"redis://:x/{PASSWORD}@127.0.0.1:1/0",
    "an @ in Redis's password": f"redis://:x@{PASSWORD}@127.0.0.1:1/0",
    "a question mark in Redis's password": f"redis://:x?{PASSWORD}@127.0.0.1:1/0",
    "a database of Redis that is no number": f"redis://:{PASSWORD}@127.0.0.1:1/none",
    "a port of Redis that is no number": f"redis://:{PASSWORD}@127.0.0.1:port/0",
    "an unknown store": f"mysql://shop:{PASSWORD}@127.0.0.1/db",
    "no colon": f"postgresql//shop:{PASSWORD}@127.0.0.1/db",
    "one slash": f"postgresql:/shop:{PASSWORD}@127.0.0.1/db",
    "a user of DynamoDB": f"dynamodb://user:{PASSWORD}@table",
    "an endpoint of DynamoDB": f"dynamodb://table?endpoint=http://user:{PASSWORD}@127.0.0.1:1&region=us-east-1",
    "an option that DynamoDB has not": f"dynamodb://table?endpoint=http://user:{PASSWORD}@127.0.0.1:1&x=1",
}

# These connections are retried, which takes time.
CONNECTING: Final = ("nobody listens", "the password as an option", "no Redis there", "an endpoint of DynamoDB")


@pytest.mark.parametrize("what", [*slow(*CONNECTING), *(what for what in ADDRESSES if what not in CONNECTING)])
def test_no_password_of_a_ledger_is_shown_whatever_is_wrong_with_its_address(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not in the error, its traceback, the log, or the name of the ledger that --explain shows."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    caplog.set_level("DEBUG")
    with pytest.raises(SemelError) as refused:
        Ledger.connect(ADDRESSES[what], timeout=1.0)
    written = {
        "error": str(refused.value),
        "traceback": "".join(traceback.format_exception(refused.value)),
        "log": "".join(record.getMessage() for record in caplog.records if record.name.startswith("semel")),
        "name": App(ledger=ADDRESSES[what]).ledger_name,
    }
    assert marks.leaks(written) == {}


# Servers.


@pytest.mark.slow
def test_a_broker_with_a_dashboard_writes_down_no_body_and_no_secret_and_shows_none_in_the_list_of_processes(
    tmp_path: Path,
) -> None:
    (tmp_path / "users.ini").write_text(
        f"[default]\naws_access_key_id = AKIAMARKED\naws_secret_access_key = {marks.SECRET_KEY}\n"
    )
    command = ("broker", "--port", "0", "--credentials", "users.ini", "--dashboard-port", "0")
    variables = marks.environment(tmp_path)
    with targets.program(tmp_path, "broker", *command, ready="listening on ", environment=variables) as running:
        site = targets.wait_for(lambda: _address(running.output, "dashboard at "), running.errors.read_text)
        with Client(running.target.url, "us-east-1", access_key="AKIAMARKED", secret_key=marks.SECRET_KEY) as client:
            client.create_queue("orders").send(f'{{"note": "{BODY}"}}')
            written = _provoke(running.target, targets.target("dashboard", site))
        written |= {f"process {pid}": line for pid, line in _processes(running.process.pid).items()}
    written |= {"stdout": running.output.read_text(), "stderr": running.errors.read_text()}
    written |= dict(marks.files(tmp_path / "state"))
    assert len([name for name in written if name.startswith("process")]) == 2
    assert marks.leaks(written) == {}


def _address(output: Path, before: str) -> str:
    return output.read_text().partition(before)[2].partition("\n")[0]


def _provoke(broker: Target, site: Target) -> dict[str, str]:
    """The answers to requests that fail, and to requests that anybody may send."""
    requests = {
        "unsigned": (broker, get("/_semel/queues")),
        "metrics without a password": (broker, get("/metrics")),
        "garbage": (broker, get("/", "127.0.0.1", "X-Amz-Target: AmazonSQS.SendMessage", method="POST", body=b"{")),
        "wrong key": (broker, sign("ListQueues", f"127.0.0.1:{broker.port}", secret="wrong").raw()),
        "health": (site, get("/health")),
        "no token": (site, get("/api/v1/queues")),
        "wrong token": (site, get("/api/v1/queues", "127.0.0.1", "Authorization: Bearer wrong")),
        "a page": (site, get("/queues/orders")),
        "no such page": (site, get("/none", "127.0.0.1", f"Authorization: Bearer {marks.DASHBOARD}")),
        "queues": (site, get("/api/v1/queues", "127.0.0.1", f"Authorization: Bearer {marks.DASHBOARD}")),
    }
    return {name: ask(target.port, request).data.decode() for name, (target, request) in requests.items()}


def _processes(parent: int) -> dict[int, str]:
    """The command lines of a process and its children, as `ps` shows them."""
    processes = [psutil.Process(parent), *psutil.Process(parent).children(recursive=True)]
    return {process.pid: " ".join(process.cmdline()) for process in processes}


@pytest.mark.slow
def test_what_spark_shows_and_keeps_of_a_stream_holds_no_body(tmp_path: Path) -> None:
    """Plans, progress, UI, REST and the event log. Only the segment log has bodies: it is where messages are kept."""
    (tmp_path / "events").mkdir()
    with running() as broker, Client(broker.url, "us-east-1", access_key="x", secret_key="y") as client:
        client.create_queue("orders").send(f'{{"note": "{BODY}"}}', attributes={"note": BODY})
        program = [sys.executable, str(marks.TESTS / "spark" / "secret_program.py"), broker.url, str(tmp_path)]
        ran = subprocess.run(
            [*program, "dedup=segments"],
            env=marks.environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout.splitlines()[-1])
    assert shown["rows"] == 1
    assert marks.leaks({"stderr": ran.stderr, **{name: str(text) for name, text in shown.items()}}) == {}

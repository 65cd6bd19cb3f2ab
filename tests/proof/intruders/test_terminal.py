"""Text from others never reaches a terminal unescaped: names, bodies, keys, errors, and answers of hostile servers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Final

import pytest

from dashboard.serving import Shop
from intruders.hostile_server import ESCAPES, hostile_server
from semel.cli import main
from semel.messages import dead_letter_attributes as own_attributes
from semel.text import UNPRINTABLE
from suite import slow

SENDABLE: Final = "\u009b31m\u202eevil"  # characters that SQS accepts
ID: Final = "the id of a message"


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    with hostile_server() as url:
        yield url


@pytest.fixture(scope="module")
def messages(place: Shop) -> dict[str, str]:
    """The ids of a hostile message, and of one in the dead-letter queue."""
    details = own_attributes.DeadLetterDetails(SENDABLE, SENDABLE, SENDABLE, 3, SENDABLE, "orders")
    body = json.dumps({SENDABLE: SENDABLE}, ensure_ascii=False)
    place.dead.send(body, attributes=own_attributes.attributes(details, {}, len(body)))
    place.orders.send(SENDABLE, attributes={"x": SENDABLE})
    return {queue: place.broker.peek(queue)[-1]["MessageId"] for queue in ("orders", "orders-dlq")}


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with contextlib.suppress(SystemExit):
        main(arguments)
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.parametrize(
    "command",
    [
        "queues list",
        "queues show orders",
        "messages peek orders",
        "messages send orders x",
        "dlq list",
        "dlq list orders-dlq",
        "dlq show orders-dlq 1",
        "dlq redrive orders-dlq --all --yes",
        "alarms",
    ],
)
def test_what_a_hostile_endpoint_answers_cannot_touch_the_terminal(
    hostile: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    text = said(capsys, *command.split(), "--endpoint-url", hostile, "--region", "us-east-1")
    assert text
    assert UNPRINTABLE.findall(text) == []


@pytest.mark.parametrize("command", ["dlq list orders-dlq", "jobs list", "jobs show x", "audit"])
def test_what_a_hostile_dashboard_answers_cannot_touch_the_terminal(
    hostile: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, *command.split(), "--dashboard", hostile)
    assert "evil" in text
    assert UNPRINTABLE.findall(text) == []


@pytest.mark.parametrize("command", ["list", "health", "pause", "stop"])
def test_what_a_hostile_worker_says_of_itself_cannot_touch_the_terminal(
    hostile: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "workers", command, *([] if command == "health" else ["--worker"]), hostile)
    assert "evil" in text
    assert UNPRINTABLE.findall(text) == []


@pytest.mark.parametrize(
    "command",
    [
        ("messages", "peek", "orders"),
        ("messages", "show", "orders", ID),
        ("dlq", "list"),
        ("dlq", "list", "orders-dlq"),
        ("dlq", "list", "orders-dlq", "--by", "error"),
        ("dlq", "show", "orders-dlq", ID),
        ("dlq", "redrive", "orders-dlq", "--all", "--dry-run"),
        ("dlq", "list", "orders-dlq", "--where", ESCAPES),
        ("dlq", "show", "orders-dlq", ESCAPES),
        ("messages", "send", ESCAPES, "x"),
        ("queues", "create", ESCAPES),
    ],
    ids=lambda command: " ".join(command).encode("unicode_escape").decode(),
)
def test_nothing_in_a_message_or_a_name_can_touch_the_terminal(
    place: Shop, messages: dict[str, str], command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [messages[command[2]] if part == ID else part for part in command]
    text = said(capsys, *arguments, "--endpoint-url", place.broker.url, "--region", "us-east-1")
    assert text
    assert UNPRINTABLE.findall(text) == []


@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "show", ESCAPES),
        ("workers", "list", "--worker", f"{ESCAPES}:80"),
        *slow(
            ("run", ESCAPES),
            ("run", f"json:{ESCAPES}"),
            ("doctor", "--log", ESCAPES),
            ("pipeline", "check", ESCAPES),
        ),
        ("broker", "--host", ESCAPES, "--ephemeral", "--insecure"),
    ],
    ids=lambda command: command[0],
)
def test_an_argument_that_was_pasted_is_shown_without_its_escapes(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, *command)
    assert text
    assert UNPRINTABLE.findall(text) == []

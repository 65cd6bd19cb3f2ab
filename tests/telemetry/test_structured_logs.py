"""Log lines: each names its message, is a single line, and contains no secret."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from semel.errors import StartError
from semel.telemetry.logs import JsonFormatter, TextFormatter, configure, message_logger, safe_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    chatty = {name: logging.getLogger(name).level for name in ("botocore", "boto3", "urllib3", "s3transfer")}
    yield
    for name, former in chatty.items():
        logging.getLogger(name).setLevel(former)


def logger() -> Any:
    return message_logger("orders", "id-1", "order-7", 3, 2)


def json_line(out: io.StringIO) -> dict[str, Any]:
    (line,) = out.getvalue().splitlines()
    fields: dict[str, Any] = orjson.loads(line)
    return fields


def test_a_json_line_names_queue_message_key_fence_and_attempt() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    logger().info("shipped %d", 3)
    line = json_line(out)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "semel.handler",
        "message": "shipped 3",
        "queue": "orders",
        "message_id": "id-1",
        "key": "order-7",
        "fence": 3,
        "attempt": 2,
    }


def test_a_text_line_names_them_too() -> None:
    out = io.StringIO()
    configure("text", stream=out)
    logger().warning("late")
    line = out.getvalue()
    assert "WARNING semel.handler: late queue=orders message_id=id-1 key=order-7 fence=3 attempt=2\n" in line


def test_what_a_call_adds_stands_beside_the_message_and_not_in_its_place() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    logger().info("x", extra={"order": 7, "key": "another", "level": "no"})
    line = json_line(out)
    assert (line["order"], line["key"], line["level"]) == (7, "order-7", "info")


def test_the_names_of_a_message_that_are_not_known_are_left_out() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    message_logger("orders", "id-1", "", 0, 0).info("x")
    assert "key" not in json_line(out)


def test_a_line_without_a_message_is_just_a_line() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    logging.getLogger("semel.consumer").info("started")
    assert set(json_line(out)) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize(
    ("format", "stream", "json"),
    [
        ("auto", Terminal, False),
        ("auto", io.StringIO, True),
        ("json", Terminal, True),
        ("text", io.StringIO, False),
    ],
)
def test_a_terminal_gets_text_and_all_else_json_unless_told(format: Any, stream: type[io.StringIO], json: bool) -> None:
    out = stream()
    configure(format, stream=out)
    logging.getLogger("semel").info("started")
    assert out.getvalue().startswith("{") is json


def test_configuring_again_takes_the_place_of_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("json", stream=first)
    configure("json", "warning", stream=second)
    logging.getLogger("semel").info("quiet")
    logging.getLogger("semel").warning("loud")
    assert first.getvalue() == ""
    assert json_line(second)["message"] == "loud"


@pytest.mark.parametrize(("options", "text"), [({"format": "xml"}, "auto, json or text"), ({"level": "lots"}, "debug")])
def test_a_wrong_option_is_refused_with_the_right_ones(options: dict[str, Any], text: str) -> None:
    with pytest.raises(StartError, match=text):
        configure(**options)


def test_debugging_does_not_let_the_aws_libraries_print_headers_and_bodies() -> None:
    out = io.StringIO()
    configure("json", "debug", stream=out)
    logging.getLogger("botocore.endpoint").debug("Authorization: x")
    assert out.getvalue() == ""


# Errors.


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_error_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    out = io.StringIO()
    configure(stream=out)
    logging.getLogger().handlers[-1].setFormatter(formatter)
    try:
        raise ValueError("no such order")
    except ValueError:
        logger().exception("failed")
    assert "ValueError: no such order" in out.getvalue()
    assert "test_structured_logs.py" in out.getvalue()


def test_a_json_line_with_an_error_is_one_line_with_the_error_apart() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    try:
        raise ValueError("postgresql://me:hunter2@db")
    except ValueError:
        logger().exception("failed")
    line = json_line(out)
    assert line["error"] == "ValueError: postgresql://me:***@db"
    assert line["traceback"].startswith("Traceback")
    assert "hunter2" not in out.getvalue()


# Secrets and length.


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@db:5432/x",
        "redis://:hunter2@cache:6379/0",
        "postgresql://me:p@ss/hunter2@db/x",
        "host=db password=hunter2 dbname=x",
        "password='hunter2'",
        '{"password": "hunter2"}',
        "aws_secret_access_key = hunter2",
        "https://sqs/?X-Amz-Signature=hunter2&a=1",
        "X-Amz-Security-Token: hunter2",
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIA/1, SignedHeaders=host, Signature=hunter2",
        "Authorization: Bearer hunter2hunter2",
        "{'authorization': 'hunter2'}",
        "sent Bearer hunter2hunter2",
        "{'ReceiptHandle': 'hunter2'}",
    ],
)
def test_a_secret_in_a_text_is_masked(text: str) -> None:
    assert "hunter2" not in safe_text(text, 1_000)


@pytest.mark.parametrize(
    "text", ["see https://docs/x: all@once", "12:30 me@home", "the password was wrong", "key=order-7 token"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert safe_text(text, 1_000) == text


@pytest.mark.parametrize("name", ["body", "message_body", "receipt", "password", "db_password", "token", "api_key"])
def test_a_field_that_would_hold_a_body_or_a_secret_is_masked(name: str) -> None:
    for format in ("json", "text"):
        out = io.StringIO()
        configure(format, stream=out)
        logger().info("x", extra={name: "hunter2"})
        assert "hunter2" not in out.getvalue()
        assert "***" in out.getvalue()


def test_long_texts_are_cut() -> None:
    out = io.StringIO()
    configure("json", stream=out)
    logger().info("x" * 1_000_000, extra={"more": "y" * 1_000_000})
    assert len(out.getvalue()) < 6_000


def test_a_secret_is_masked_also_where_the_text_is_cut() -> None:
    text = "x" * 50 + " postgresql://me:hunter2@db"
    cut = text.index("2@")
    assert "hunter" not in safe_text(text, cut)
    assert "r2@" not in safe_text(f"{text} and so on", len("r2@db and so on"), end=True)


def test_the_end_of_a_traceback_is_what_is_kept() -> None:
    assert safe_text("first " + "x" * 100 + " last", 20, end=True).endswith("last")


# Lines that cannot be forged.


@pytest.mark.parametrize("format", ["json", "text"])
def test_what_a_sender_wrote_cannot_pass_for_a_line_of_its_own(format: Any) -> None:
    out = io.StringIO()
    configure(format, stream=out)
    message_logger("orders", "id-1", "a\n12:00:00.000 ERROR forged", 1, 1).info("one\n12:00:00.000 ERROR two\x1b[31m")
    assert not any(line.startswith("12:00:00.000 ERROR") for line in out.getvalue().splitlines())
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("format", ["json", "text"])
def test_odd_characters_and_values_are_no_reason_to_fail(format: Any) -> None:
    out = io.StringIO()
    configure(format, stream=out)
    message_logger("orders", "id-1", "half \ud800 pair", 2**70, 1).info("ä \udfff", extra={"set": {1}, "none": None})
    assert "orders" in out.getvalue()
    out.getvalue().encode()

"""Options that many commands share. Addresses and names are checked as they are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from semel.cli.command import UsageError, option
from semel.durations import seconds
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.sqs import Client

_AWS: Final = ("endpoint_url", "region", "profile")
OUTPUTS: Final = ("table", "json", "jsonl")


# Where SQS is.


def add_aws(parser: Any) -> None:
    """To a parser, or to a group of its options: --endpoint-url, --region and --profile."""
    option(
        parser,
        "--endpoint-url",
        variable="never",  # AWS has one
        type=http_url,
        metavar="URL",
        help="SQS endpoint, such as http://127.0.0.1:9324 (default: $AWS_ENDPOINT_URL_SQS, then AWS)",
    )
    option(
        parser,
        "--region",
        variable="never",
        type=some_text,
        metavar="REGION",
        help="AWS region (default: $AWS_REGION, $AWS_DEFAULT_REGION, then the profile's)",
    )
    option(
        parser,
        "--profile",
        variable="never",
        type=some_text,
        metavar="NAME",
        help="profile in ~/.aws (default: $AWS_PROFILE)",
    )


def client(given: argparse.Namespace) -> Client:
    """The client for these three options. It is to be closed."""
    from semel.sqs import Client

    return Client(given.endpoint_url, given.region, given.profile)


def add_dashboard(parser: Any) -> None:
    option(
        parser,
        "--dashboard",
        variable="common",
        type=http_url,
        metavar="URL",
        help="go through a running dashboard (default: $SEMEL_DASHBOARD)",
    )
    option(
        parser,
        "--token",
        variable="common",
        type=some_text,
        metavar="TOKEN",
        help="the dashboard's token; prefer $SEMEL_TOKEN: arguments are visible in the process list",
    )


def dashboard(given: argparse.Namespace) -> str | None:
    """The dashboard to go through. A flag that says where SQS is wins over the variable."""
    flags = [f"--{name.replace('_', '-')}" for name in _AWS if getattr(given, name, None)]
    url: str | None = given.dashboard
    if not flags or url is None:
        return url
    if "dashboard" in given.environment:
        return None
    raise UsageError(f"{flags[0]} and --dashboard exclude each other: a dashboard has its own endpoint; leave one out")


# What consumers use, too.


def add_ledger(parser: Any, help: str = "the workers' ledger") -> None:
    option(
        parser, "--ledger", variable="common", code="App(ledger=…)", toml="ledger", type=ledger_url, metavar="URL",
        help=f"{help} (default: $SEMEL_LEDGER)",
    )  # fmt: skip


# Output.


def add_output(parser: Any, *choices: str, help: str = "") -> None:
    """`--output`: table, json and jsonl unless others are named; the first is the default."""
    choices = choices or OUTPUTS
    text = help or f"{', '.join(choices[:-1])} or {choices[-1]}"
    option(
        parser, "--output", variable="common", choices=choices, default=choices[0], metavar="FORMAT",
        help=f"{text} (default: {choices[0]})",
    )  # fmt: skip


def add_quiet(parser: Any) -> None:
    option(parser, "--quiet", variable="common", action="store_true", help="no progress on standard error")


def add_yes(parser: Any) -> None:
    option(parser, "--yes", variable="never", action="store_true", help="do not ask for confirmation")


def add_receive(parser: Any) -> None:
    option(
        parser,
        "--receive",
        variable="never",
        action="store_true",
        help="on SQS: receive messages even if that may move them to another queue",
    )


# Kinds of values.


def some_text(text: str) -> str:
    """Not empty: an unset variable of a shell is not the same as an option left out."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; is a variable unset?")
    return text


def http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    except ValueError:  # a port that is no number, a bracket that does not close
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address; write http://host:port")


def ledger_url(text: str) -> str:
    from semel.ledger.connect import check
    from semel.ledger.contract import LedgerError

    try:
        check(text)
    except LedgerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def at_least(least: int) -> Any:
    def number(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least}")
        return value

    return number


def duration(text: str) -> float:
    """Above zero; a bare number is seconds."""
    try:
        value = seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except SemelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not value:
        raise argparse.ArgumentTypeError("it must be above 0")
    return value


def rate(text: str) -> float:
    """Messages a second, above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages a second above 0")
    return value


def whole_seconds(high: str, low: str = "") -> Any:
    """A duration in whole seconds, as SQS takes them. The bounds are names in `semel.sqs.limits`."""

    def value(text: str) -> int:
        from semel import durations
        from semel.sqs import limits

        most, least = getattr(limits, high), getattr(limits, low) if low else 0
        try:
            found = seconds(text)
        except SemelError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not least <= found <= most or found != int(found):
            bounds = f"{durations.text(least)} to {durations.text(most)}"
            raise argparse.ArgumentTypeError(f"{text!r}: give whole seconds from {bounds}")
        return int(found)

    return value

"""Options that many commands share. Addresses and names are checked as they are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from semel.cli.command import UsageError, Variable, option
from semel.cli.command import some_text as some_text
from semel.durations import seconds
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.sqs import Client

_AWS: Final = ("endpoint_url", "region", "profile")
OUTPUTS: Final = ("table", "json", "jsonl")


# Where SQS is.


def add_aws(parser: Any, *, code: str = "", toml: str = "") -> None:
    """Adds --endpoint-url, --region and --profile to a parser or to a group of its options. `code` and `toml` are
    patterns for the names of the three, such as App({}=…)."""

    def add(usage: str, help: str, **details: Any) -> None:
        field = usage.partition(" ")[0].removeprefix("--").replace("-", "_")
        # AWS has variables of its own.
        option(parser, usage, help, env="never", code=code.format(field), toml=toml.format(field), **details)

    endpoint = "SQS endpoint, such as http://127.0.0.1:9324 (default: $AWS_ENDPOINT_URL_SQS, then AWS)"
    add("--endpoint-url URL", endpoint, type=http_url)
    add("--region REGION", "AWS region (default: $AWS_REGION, $AWS_DEFAULT_REGION, then the profile's)")
    add("--profile NAME", "profile in ~/.aws (default: $AWS_PROFILE)")


def client(args: argparse.Namespace) -> Client:
    """The client for these three options. The caller closes it."""
    from semel.sqs import Client

    return Client(args.endpoint_url, args.region, args.profile)


def add_dashboard(parser: Any) -> None:
    option(
        parser,
        "--dashboard URL",
        "go through a running dashboard (default: $SEMEL_DASHBOARD)",
        env="common",
        type=http_url,
    )
    option(
        parser,
        "--token TOKEN",
        "the dashboard's token; prefer $SEMEL_TOKEN: arguments are visible in the process list",
        env="common",
    )


def dashboard(args: argparse.Namespace) -> str | None:
    """The dashboard to go through, if any. A flag that says where SQS is wins over SEMEL_DASHBOARD."""
    flags = [f"--{name.replace('_', '-')}" for name in _AWS if getattr(args, name, None)]
    url: str | None = args.dashboard
    if not flags or url is None:
        return url
    if "dashboard" in args.environment:
        return None
    raise UsageError(f"{flags[0]} and --dashboard exclude each other: a dashboard has its own endpoint; leave one out")


# What consumers use, too.


def add_ledger(parser: Any, variable: Variable = "common") -> None:
    option(
        parser,
        "--ledger URL",
        "ledger that the workers share: postgresql://…, redis://…, dynamodb://… or sqlite:///FILE "
        "(default: $SEMEL_LEDGER)",
        env=variable,
        code="App(ledger=…)",
        toml="source.ledger",
        type=ledger_url,
    )


def add_workers(parser: Any) -> None:
    """Adds --worker, --control-token and --attempt-log, for the commands that show everything."""
    option(
        parser,
        "--worker [HOST:]PORT",
        "health endpoint of a worker; repeatable. Workers of this user on this machine are found automatically",
        type=worker_address,
        repeat=True,
    )
    add_control_token(parser)
    option(
        parser,
        "--attempt-log FOLDER",
        "attempt log of the workers, local or s3://…; repeatable (default: $SEMEL_ATTEMPT_LOG)",
        env="common",
        repeat=True,
    )


def add_control_token(parser: Any, variable: Variable = "common") -> None:
    option(
        parser,
        "--control-token TOKEN",
        "bearer token for the workers' /workers and /control; prefer $SEMEL_CONTROL_TOKEN: arguments are visible "
        "in the process list",
        env=variable,
    )


def observed(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the commands that show everything, under the names of the dashboard's settings."""
    return {
        "endpoint_url": args.endpoint_url,
        "region": args.region,
        "profile": args.profile,
        "ledger": args.ledger,
        "workers": tuple(args.worker),
        "control_token": args.control_token,
        "attempt_logs": tuple(args.attempt_log),
        "read_only": args.read_only,
    }


def add_create_dlq(parser: Any, code: str = "") -> None:
    option(
        parser, "--create-dlq", "create missing dead-letter queues (maxReceiveCount 5, retention 14 days)", code=code
    )


# Servers.


def add_listen(parser: Any, port: int) -> None:
    option(parser, "--host ADDRESS", "address to listen on", default="127.0.0.1", type=str)
    option(parser, "--port PORT", "port to listen on; 0 picks a free one", type=int, default=port)


def add_interval(parser: Any, default: str, note: str = "") -> None:
    option(
        parser, "--interval TIME", f"{note}time between two updates, such as 10s or 1m", type=duration, default=default
    )


def add_queue(parser: Any) -> None:
    parser.add_argument("queue", type=some_text, metavar="QUEUE", help="the queue's name, URL or ARN")


# Output.


def add_output(parser: Any, *choices: str, help: str = "") -> None:
    """`--output`: table, json and jsonl unless others are named; the first is the default."""
    choices = choices or OUTPUTS
    text = help or f"{', '.join(choices[:-1])} or {choices[-1]}"
    option(parser, "--output FORMAT", text, env="common", choices=choices, default=choices[0])


# Kinds of values.


def http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    except ValueError:  # a port that is no number, a bracket that does not close
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address; write http://host:port")


def worker_address(text: str) -> str:
    """The URL of a health endpoint: PORT, HOST:PORT or a URL."""
    host, _, port = text.rpartition(":")
    url = text if "://" in text else f"http://{host or '127.0.0.1'}:{port}"
    try:
        if urlsplit(http_url(url)).port:
            return url
    except argparse.ArgumentTypeError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not the address of a worker; write PORT, HOST:PORT or a URL")


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
    """A duration above zero; a bare number means seconds."""
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
            duration = seconds(text)
        except SemelError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not least <= duration <= most or duration != int(duration):
            bounds = f"{durations.text(least)} to {durations.text(most)}"
            raise argparse.ArgumentTypeError(f"{text!r}: give whole seconds from {bounds}")
        return int(duration)

    return value


# Options that are the same everywhere.

_SHARED: Final[dict[str, dict[str, Any]]] = {
    "--any-queue": {"help": "continue even if QUEUE is not the dead-letter queue of any queue", "env": "never"},
    "--cores N": {"help": "number of cores of this machine to use (default: all)", "type": at_least(1)},
    "--force": {"help": "replace the file if it exists", "env": "never"},
    "--master URL": {"help": "Spark master (default: this machine)"},
    "--max-receive N": {"help": "on SQS: maximum number of messages to receive (default: 1,000)", "type": at_least(1)},
    "--quiet": {"help": "show no progress on standard error", "env": "common"},
    "--read-only": {"help": "allow no changes"},
    "--receive": {"help": "on SQS: receive messages even if that may move them to another queue", "env": "never"},
    "--yes": {"help": "do not ask for confirmation", "env": "never"},
}


def add(target: Any, *usages: str) -> None:
    """Adds shared options to a parser or to a group of its options."""
    for usage in usages:
        option(target, usage, **_SHARED[usage])

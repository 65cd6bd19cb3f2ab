"""Options that many commands share: where SQS is and as whom to call it; addresses are checked as they are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from semel.sqs import Client


def add_aws(parser: Any) -> None:
    """To a parser, or to a group of its options: --endpoint-url, --region and --profile."""
    parser.add_argument(
        "--endpoint-url",
        type=http_url,
        metavar="URL",
        help="SQS endpoint, such as http://127.0.0.1:9324 (default: $AWS_ENDPOINT_URL_SQS, then AWS)",
    )
    parser.add_argument(
        "--region",
        type=some_text,
        metavar="REGION",
        help="AWS region (default: $AWS_REGION, $AWS_DEFAULT_REGION, then the profile's)",
    )
    parser.add_argument("--profile", type=some_text, metavar="NAME", help="profile in ~/.aws (default: $AWS_PROFILE)")


def client(given: argparse.Namespace) -> Client:
    """The client for these three options. It is to be closed."""
    from semel.sqs import Client

    return Client(given.endpoint_url, given.region, given.profile)


def some_text(text: str) -> str:
    """What is given must not be empty: an unset variable of a shell is not the same as an option left out."""
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

"""Options of the commands that look at everything: queues, ledger, workers and attempt logs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from semel.cli import options
from semel.cli.errors import wrong_usage


def add_to(parser: Any) -> None:
    """To a parser, or to a group of its options."""
    options.add_aws(parser)
    parser.add_argument("--ledger", type=options.ledger_url, metavar="URL", help="the ledger that the workers use")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="health endpoint of a worker; may be repeated. Workers of this user on this machine are found without it",
    )
    add_control_token(parser)
    parser.add_argument(
        "--attempt-log",
        action="append",
        default=[],
        metavar="PATH",
        help="the workers' attempt log: every attempt of a message, and evidence for the doctor; may be repeated",
    )


def add_control_token(parser: Any) -> None:
    parser.add_argument(
        "--control-token",
        metavar="TOKEN",
        default=os.environ.get("SEMEL_CONTROL_TOKEN"),
        help="bearer token for the workers' /workers and /control (default: $SEMEL_CONTROL_TOKEN)",
    )


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """What was said, by the names that the dashboard's settings have."""
    from semel.dashboard.views.workers import address_of

    with wrong_usage():
        for worker in given.worker:
            address_of(worker)
    return {
        "endpoint_url": given.endpoint_url,
        "region": given.region,
        "profile": given.profile,
        "ledger": given.ledger,
        "workers": tuple(given.worker),
        "control_token": given.control_token,
        "attempt_logs": tuple(given.attempt_log),
        "read_only": given.read_only,
    }

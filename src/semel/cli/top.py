"""`semel top`: queues, dead letters, workers and jobs in this terminal, live."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from semel.cli import looking
from semel.cli.errors import UsageError
from semel.extras import importing

_EXAMPLES = """\
examples:
  semel top --endpoint-url http://127.0.0.1:9324
  semel top --ledger postgresql://localhost/shop --attempt-log attempts/
  semel top --worker 10.0.0.5:8080 --worker 10.0.0.6:8080
  semel top --region eu-west-1 --read-only             on AWS, for looking only

keys: ? shows them all

exit codes:
  0  left by q
  1  could not start (the reason is on standard error)
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="look at queues, dead letters and workers in this terminal",
        description="Queues, dead letters, workers and jobs in this terminal, live.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    looking.add_to(parser)
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between two looks (default 2)")
    parser.add_argument("--read-only", action="store_true", help="look, and change nothing")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if not 0.2 <= given.every <= 3_600:
        raise UsageError(f"--every {given.every:g} is not possible: from 0.2 to 3600 seconds")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "semel top needs a terminal; for scripts there are semel dlq ls --json and semel workers --json"
        )
    with importing("semel top", extra="dashboard"):
        from semel.dashboard.terminal.app import Top
    from semel.dashboard.services import Services
    from semel.dashboard.settings import Settings
    from semel.dlq.audit import somebody

    services = Services.of(Settings(**looking.settings(given)))
    services = replace(services, service=services.service.by(somebody()))
    try:
        top = Top(services, can_act=not given.read_only, every=given.every)
        top.run()
    finally:
        services.close()
    return top.return_code or 0

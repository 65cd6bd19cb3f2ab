"""`semel health`: check the health of a running consumer."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import urlsplit

from semel.cli.errors import wrong_usage

_EXAMPLES = """\
examples:
  semel health 8080
  semel health http://10.0.0.7:8080 --json

exit codes:
  0  live and ready
  1  not ready, or no answer
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "health",
        help="check the health of a running consumer",
        description="Check the health endpoint of `semel run --health`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", metavar="[HOST:]PORT|URL", help="address of the health endpoint")
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.telemetry.worker_client import get_health

    address: str = given.address
    if "://" not in address:
        host, _, port = address.rpartition(":")
        address = f"http://{host or '127.0.0.1'}:{port}"
    with wrong_usage(given.address):
        urlsplit(address).port  # noqa: B018 - it is a number, or this raises
    health = get_health(address)
    if given.json:
        print(json.dumps({"live": health.live, "ready": health.ready, **health.details}, indent=2))
    else:
        print(f"{'live' if health.live else 'not live'}, {'ready' if health.ready else 'not ready'}")
        for name, queue in health.details.get("queues", {}).items():
            polled = "paused" if queue.get("paused") else f"last poll {queue['seconds_since_poll']} s ago"
            print(f"  {name}: {queue['in_progress']} in progress, {polled}")
    return 0 if health.live and health.ready else 1

"""`semel serve`: the SQS in the box, as a process."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from semel.cli.errors import wrong_usage

_EXAMPLES = """\
examples:
  semel serve                         on 127.0.0.1:9324, queues in ./semel-data
  semel serve --ephemeral --port 0    in memory, on a free port: for tests
  semel serve --fault duplicate=0.05 --fault-seed 7
  semel serve --ui-port 9325          with the dashboard at port 9325

create a queue with the AWS CLI, version 1 or 2, without any AWS configuration:
  aws --endpoint-url http://127.0.0.1:9324 --region us-east-1 \\
      --no-sign-request sqs create-queue --queue-name orders

exit codes:
  0  stopped by SIGTERM or SIGINT, every request answered
  1  could not start (the reason is on standard error)
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the SQS in the box",
        description="Run an SQS-compatible broker: durable, and with the faults of SQS on request.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=9324, help="port; 0 picks a free one (default %(default)s)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, metavar="DIR", help="folder to keep queues in (default ./semel-data)")
    where.add_argument("--ephemeral", action="store_true", help="keep queues in memory only")
    parser.add_argument("--account", metavar="ID", default="000000000000", help="AWS account id (default %(default)s)")
    parser.add_argument("--region", metavar="R", default="us-east-1", help="AWS region (default %(default)s)")
    parser.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="check AWS signatures against the key pairs in FILE, which looks like ~/.aws/credentials",
    )
    parser.add_argument("--insecure", action="store_true", help="allow other machines in without credentials")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients reach this broker, besides addresses, names without a dot and names in "
        ".localhost, .local, .internal or .test; may be repeated. Without --credentials all others are refused",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND=RATE",
        help="misbehave at a rate from 0 to 1; may be repeated. Kinds: duplicate, lost-delete, lost-answer, "
        "short-poll, latency (=RATE:MILLISECONDS), throttle, server-error, early-visibility",
    )
    parser.add_argument("--fault-seed", type=int, default=0, metavar="N", help="makes faults repeatable (default 0)")
    parser.add_argument(
        "--clock", choices=("system", "manual"), default="system", help="manual: time moves only by the admin interface"
    )
    parser.add_argument(
        "--no-cooldowns", action="store_true", help="lift the 60-second limits on purging and on re-creating a queue"
    )
    parser.add_argument(
        "--ui-port", type=int, metavar="PORT", help="serve the dashboard, too, at this port; 0 picks a free one"
    )
    parser.add_argument(
        "--ui-token",
        metavar="TOKEN",
        default=os.environ.get("SEMEL_TOKEN"),
        help="token that the dashboard asks for; needed beyond this machine (default: $SEMEL_TOKEN)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    # Only now: `semel --help` should not have to load a server.
    from semel.broker.faults import parse_setting
    from semel.broker.process import serve
    from semel.broker.serving import DEFAULT_DATA, Options

    with wrong_usage():
        options = Options(
            host=given.host,
            port=given.port,
            data=None if given.ephemeral else given.data or DEFAULT_DATA,
            account=given.account,
            region=given.region,
            manual_clock=given.clock == "manual",
            cooldowns=not given.no_cooldowns,
            faults=dict(parse_setting(text) for text in given.fault),
            fault_seed=given.fault_seed,
            credentials=given.credentials,
            insecure=given.insecure,
            allowed_hosts=tuple(given.allow_host),
        )
        options.check()
    if given.ui_port is None:
        return serve(options)
    from semel.cli.broker_dashboard import Dashboard

    with Dashboard(options, given.ui_port, given.ui_token) as dashboard:
        return serve(options, dashboard.beside)

"""`semel broker`: the SQS-compatible broker, as a process."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from semel.cli import options
from semel.cli.command import ExitCode, command, option, wrong_usage


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "broker",
        run,
        "run an SQS-compatible broker on this machine",
        aliases=["serve"],
        description="Run an SQS-compatible broker: durable, and with the faults of SQS on request.",
        examples="""
            semel broker                         on 127.0.0.1:9324, data in ./semel-data
            semel broker --ephemeral --port 0    in memory, on a free port: for tests
            semel broker --fault duplicate=0.05 --fault-seed 7
            semel broker --dashboard-port 9325   with the dashboard at port 9325
            semel broker --port 0 --ready-file broker.json
        """,
        notes="""
            create a queue with the AWS CLI, version 1 or 2, without any AWS configuration:
              aws --endpoint-url http://127.0.0.1:9324 --region us-east-1 \\
                  --no-sign-request sqs create-queue --queue-name orders
        """,
        codes={
            ExitCode.OK: "stopped by SIGTERM, every request answered",
            ExitCode.FAILED: "could not start; the reason is on standard error",
            ExitCode.INTERRUPTED: "stopped with Ctrl-C, every request answered",
        },
    )
    options.add_listen(parser, 9324)
    where = parser.add_mutually_exclusive_group()
    option(where, "--data FOLDER", "folder for the queues' data (default: ./semel-data)", type=Path)
    option(where, "--ephemeral", "keep queues in memory only")
    option(parser, "--account ID", "AWS account of callers who have no other", default="000000000000", type=str)
    option(
        parser, "--region REGION", "AWS region of calls that are not signed for another", default="us-east-1", type=str
    )
    option(
        parser,
        "--credentials FILE",
        "check AWS signatures against the key pairs in FILE, which looks like ~/.aws/credentials, and enforce the "
        "policies of queues. A profile may have aws_account_id and aws_user_id",
        type=Path,
    )
    option(parser, "--insecure", "accept requests from other machines without credentials")
    option(
        parser,
        "--allow-host NAME",
        "host name by which clients reach this broker; repeatable. Without --credentials, other names are refused, "
        "except IP addresses, names without a dot and names in .localhost, .local, .internal and .test",
        repeat=True,
        type=str,
    )
    option(
        parser,
        "--fault KIND=RATE",
        "inject a fault at a rate from 0 to 1; repeatable. Kinds: duplicate, lost-delete, lost-answer, "
        "short-poll, latency (=RATE:MILLISECONDS), throttle, server-error, early-visibility",
        repeat=True,
        type=str,
    )
    option(parser, "--fault-seed N", "makes faults repeatable", type=int, default=0)
    option(
        parser,
        "--clock",
        "manual: time moves only through the admin interface",
        choices=("system", "manual"),
        default="system",
    )
    option(parser, "--no-cooldowns", "no 60-second limit on purging and re-creating a queue")
    option(
        parser,
        "--ready-file PATH",
        "file that is written when the broker listens, with its URL and process id as JSON, and removed when it ends",
        type=Path,
    )
    option(parser, "--dashboard-port PORT", "also serve the dashboard, at this port; 0 picks a free one", type=int)
    option(
        parser,
        "--dashboard-token TOKEN",
        "token of that dashboard; prefer a variable: arguments are visible in the process list (default: $SEMEL_TOKEN)",
    )


def run(args: argparse.Namespace) -> int:
    # Imported here, so that `semel --help` does not have to load a server.
    from semel.broker.faults import parse_setting
    from semel.broker.process import serve
    from semel.broker.startup import DEFAULT_DATA, Options

    with wrong_usage():
        options = Options(
            host=args.host,
            port=args.port,
            data=None if args.ephemeral else args.data or DEFAULT_DATA,
            account=args.account,
            region=args.region,
            manual_clock=args.clock == "manual",
            cooldowns=not args.no_cooldowns,
            faults=dict(parse_setting(text) for text in args.fault),
            fault_seed=args.fault_seed,
            credentials=args.credentials,
            insecure=args.insecure,
            allowed_hosts=tuple(args.allow_host),
        )
        options.check()
    if args.dashboard_port is None:
        return serve(options, None, args.ready_file)
    from semel.cli.broker_dashboard import Dashboard

    with Dashboard(options, args.dashboard_port, args.dashboard_token or os.environ.get("SEMEL_TOKEN")) as dashboard:
        return serve(options, dashboard.beside, args.ready_file)

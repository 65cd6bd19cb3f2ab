"""`semel top`: queues, dead letters, workers and jobs in this terminal, live."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from semel.cli import options
from semel.cli.command import ExitCode, UsageError, command
from semel.extras import importing


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "top",
        run,
        "show queues, dead letters and workers in this terminal",
        description="Show queues, dead letters, workers and jobs in this terminal, live. The key ? shows all keys.",
        examples="""
            semel top --endpoint-url http://127.0.0.1:9324
            semel top --ledger postgresql://localhost/shop --attempt-log attempts/
            semel top --worker 10.0.0.5:8080 --worker 10.0.0.6:8080
            semel top --region eu-west-1 --read-only
        """,
        codes={
            ExitCode.OK: "ended with the key q",
            ExitCode.FAILED: "could not start; the reason is on standard error",
        },
    )
    options.add_aws(parser)
    options.add_ledger(parser)
    options.add_workers(parser)
    options.add_interval(parser, "2s")
    options.add(parser, "--read-only")


def run(args: argparse.Namespace) -> int:
    if not 0.2 <= args.interval <= 3_600:
        raise UsageError(f"--interval {args.interval:g}: it must be from 0.2 to 3600 seconds")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "semel top needs a terminal; for scripts there are semel dlq queues and semel workers list, with "
            "--output json"
        )
    with importing("semel top", extra="dashboard"):
        from semel.dashboard.terminal.terminal_app import Top
    from dataclasses import replace

    from semel.dashboard.services import Services
    from semel.dashboard.settings import Settings
    from semel.dlq.audit import somebody

    services = Services.of(Settings(**options.observed(args)))
    services = replace(services, service=services.service.by(somebody()))
    try:
        top = Top(services, can_act=not args.read_only, every=args.interval)
        top.run()
    finally:
        services.close()
    return top.return_code or ExitCode.OK

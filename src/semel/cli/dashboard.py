"""`semel dashboard`: the pages and the JSON API over queues, dead letters, workers and the ledger."""

from __future__ import annotations

import argparse
from typing import Any

from semel.cli import options
from semel.cli.command import ExitCode, command, option, wrong_usage
from semel.extras import require


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "dashboard",
        run,
        "show queues, dead letters and workers in a browser",
        description="Serve pages and a JSON API: queues, messages, dead letters, workers, doctor. The URL that it "
        "prints contains a token; whoever has the token may do everything.",
        examples="""
            semel dashboard --endpoint-url http://127.0.0.1:9324
            semel dashboard --ledger postgresql://localhost/shop --attempt-log attempts/
            semel dashboard --worker 10.0.0.5:8080 --worker 10.0.0.6:8080
            semel dashboard --region eu-west-1 --cloudwatch --read-only
        """,
        notes="""
            for other machines:
              export SEMEL_TOKEN=$(openssl rand -hex 16)
              semel dashboard --host 0.0.0.0 --name ops.example.com
        """,
        codes={
            ExitCode.OK: "stopped by SIGTERM",
            ExitCode.FAILED: "could not start; the reason is on standard error",
            ExitCode.INTERRUPTED: "stopped with Ctrl-C",
        },
    )
    what = parser.add_argument_group("what to show")
    options.add_aws(what)
    options.add_ledger(what)
    options.add_workers(what)
    option(what, "--cloudwatch", "read rates and ages from CloudWatch, which is billed")
    where = parser.add_argument_group("where to listen, and who has access")
    options.add_listen(where, 9325)
    option(
        where,
        "--token TOKEN",
        "token that allows everything; prefer $SEMEL_TOKEN: arguments are visible in the process list (default: a "
        "random one, on this machine only)",
        env="common",
    )
    option(
        where, "--read-only-token TOKEN", "token that allows reading only; prefer $SEMEL_READ_ONLY_TOKEN", env="common"
    )
    option(
        where,
        "--open",
        "require no token: every user and every program of this machine may do everything; 127.0.0.1 only",
    )
    options.add(where, "--read-only")
    option(where, "--name HOST", "host name by which browsers reach this dashboard; repeatable", repeat=True, type=str)
    option(where, "--proxy", "behind a proxy: trust X-Forwarded-For, -User and -Proto")
    parser.add_argument("--inherited", type=int, metavar="FD", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from semel.dashboard.settings import Settings

    settings = Settings(
        **options.observed(args),
        cloudwatch=args.cloudwatch,
        host=args.host,
        port=args.port,
        token=args.token,
        reader_token=args.read_only_token,
        names=tuple(args.name),
        proxy=args.proxy,
        open_access=args.open,
    )
    with wrong_usage():
        settings.check()
    check_installed()
    from semel.dashboard.process import run as serve

    return serve(settings, inherited=args.inherited)


def check_installed() -> None:
    require("the dashboard", "fastapi", "itsdangerous", "jinja2", "python_multipart", "uvicorn", extra="dashboard")

"""`semel dashboard`: the pages and the JSON API over queues, dead letters, workers and the ledger."""

from __future__ import annotations

import argparse
import os
from typing import Any

from semel.cli import looking
from semel.cli.errors import wrong_usage
from semel.extras import require

_EXAMPLES = """\
examples:
  semel dashboard --endpoint-url http://127.0.0.1:9324
                                then open http://127.0.0.1:9325
  semel dashboard --ledger postgresql://localhost/shop --attempt-log attempts/
  semel dashboard --worker 10.0.0.5:8080 --worker 10.0.0.6:8080
  semel dashboard --region eu-west-1 --cloudwatch --read-only
                                on AWS, for looking only
  export SEMEL_TOKEN=$(openssl rand -hex 16)
  semel dashboard --host 0.0.0.0 --name ops.example.com

exit codes:
  0  stopped by SIGTERM or SIGINT
  1  could not start (the reason is on standard error)
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="look at queues, dead letters and workers in a browser",
        description="Serve pages and a JSON API: queues, messages, dead letters, workers, doctor.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to look at")
    looking.add_to(what)
    what.add_argument("--cloudwatch", action="store_true", help="ask CloudWatch for rates and ages (costs a little)")
    where = parser.add_argument_group("where to listen, and who may come in")
    where.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    where.add_argument("--port", type=int, default=9325, help="port; 0 picks a free one (default %(default)s)")
    where.add_argument(
        "--token",
        default=os.environ.get("SEMEL_TOKEN"),
        help="ask for this token; needed beyond this machine (default: $SEMEL_TOKEN)",
    )
    where.add_argument(
        "--read-only-token",
        metavar="TOKEN",
        default=os.environ.get("SEMEL_READ_ONLY_TOKEN"),
        help="a second token, for those who may only look (default: $SEMEL_READ_ONLY_TOKEN)",
    )
    where.add_argument("--read-only", action="store_true", help="nobody may act")
    where.add_argument(
        "--name", action="append", default=[], metavar="HOST", help="host name that it is called by; may be repeated"
    )
    where.add_argument("--proxy", action="store_true", help="behind a proxy: believe X-Forwarded-For, -User and -Proto")
    parser.add_argument("--inherited", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.dashboard.settings import Settings

    settings = Settings(
        **looking.settings(given),
        cloudwatch=given.cloudwatch,
        host=given.host,
        port=given.port,
        token=given.token,
        reader_token=given.read_only_token,
        names=tuple(given.name),
        proxy=given.proxy,
    )
    with wrong_usage():
        settings.check()
    check_installed()
    from semel.dashboard.process import run as serve

    return serve(settings, inherited=given.inherited)


def check_installed() -> None:
    require("the dashboard", "fastapi", "itsdangerous", "jinja2", "python_multipart", "uvicorn", extra="dashboard")

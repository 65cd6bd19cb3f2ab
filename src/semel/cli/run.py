"""`semel run`: the consumer, as one process or many, or on Spark."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options
from semel.cli.errors import UsageError, wrong_usage
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.consumer.processes import Wanted
    from semel.consumer.runtime import Report

UNFINISHED: Final = 3
NOT_EMPTY: Final = 4

_EXAMPLES = """\
examples:
  semel run shop:app                     work until SIGTERM or Ctrl-C; drain
  semel run shop:app --concurrency 64 --processes 4 --health 0.0.0.0:8080
  semel run shop:app --burst             work until nothing is left, then exit
  semel run shop:app --explain           each setting, where it came from, and
                                         what each handler guarantees
  semel run shop:app --endpoint-url http://127.0.0.1:9324
  semel run shop:app --on spark --checkpoint /var/lib/semel/shop
                                         the same handlers in Spark's executors,
                                         under the same ledger

A second SIGTERM or Ctrl-C ends the drain at once.

exit codes:
  0  stopped, and nothing is left in progress; with --burst: nothing is left
  1  could not start, or had to stop (the reason is on standard error)
  2  wrong usage
  3  stopped, but handlers were still running at the end of the drain; their
     messages come back, or on Spark: their batch is run again by the next start
  4  --burst has ended, but messages wait for a retry or are in the outbox
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run an app's handlers",
        description="Run the handlers of an app: receive, claim, work, record, delete.\n"
        "The effect of each message happens once.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="MODULE:APP", help="where the app is, for example shop:app or shop.workers:app")
    parser.add_argument("--on", choices=("threads", "spark"), default="threads", help="the engine (default threads)")
    parser.add_argument("--queue", action="append", metavar="NAME", help="only this handler's queue; may be repeated")
    parser.add_argument("--concurrency", type=int, metavar="N", help="messages worked on at a time, for each handler")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="worker processes (default 1)")
    parser.add_argument(
        "--burst",
        action="store_true",
        help="exit once the queues and the outbox are empty; retries are waited for, up to 5 attempts of a message if "
        "nothing else limits them",
    )
    parser.add_argument(
        "--drain", metavar="TIME", help="time for handlers to finish after SIGTERM, such as 25, 25s or 2m (default 25)"
    )
    parser.add_argument("--lease", metavar="TIME", help="visibility timeout and lease, such as 30, 30s or 5m")
    parser.add_argument(
        "--create-dlq",
        action="store_true",
        help="create the dead-letter queues that are missing, with a maxReceiveCount of 5 and 14 days of retention",
    )
    parser.add_argument("--health", metavar="[HOST:]PORT", help="serve /health, /metrics, /workers and /control there")
    parser.add_argument(
        "--control-token",
        metavar="TOKEN",
        help="bearer token that allows remote access to /workers and /control; prefer SEMEL_CONTROL_TOKEN, "
        "because arguments are visible in the process list",
    )
    parser.add_argument(
        "--attempt-log", metavar="FOLDER", help="log every step of every message here; s3://… works too"
    )
    options.add_aws(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="on Spark: where it keeps how far it is; s3://… works too (default ./semel-checkpoint/APP)",
    )
    parser.add_argument("--master", metavar="URL", help="on Spark: the cluster's address (default: this machine)")
    parser.add_argument(
        "--log-format", choices=("auto", "json", "text"), default="auto", help="auto: JSON unless a terminal"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="info (the default) also says what is started, and at the end what was done",
    )
    parser.add_argument("--explain", action="store_true", help="print the settings and guarantees, and exit")
    parser.add_argument("--json", action="store_true", help="with --explain, and for the report at the end: as JSON")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.consumer import explaining, processes
    from semel.telemetry import logs

    wanted = _wanted(given)
    logs.configure(given.log_format, given.log_level)
    try:
        if given.explain:
            found = explaining.explain(wanted)
            print(json.dumps(found, indent=2) if given.json else explaining.text(found))
            return 0
        if given.on == "spark":
            return _on_spark(given, wanted)
        report = processes.run(wanted)
    except processes.NotFound as error:
        raise UsageError(str(error)) from None
    if given.json:
        print(json.dumps(_as_json(report)))
    if report.error is not None:
        raise report.error
    if report.left:
        return UNFINISHED
    if wanted.burst and (report.waiting or report.outbox):
        print(f"semel: {_what_is_left(report)}", file=sys.stderr)
        return NOT_EMPTY
    return 0


def _wanted(given: argparse.Namespace) -> Wanted:
    """What was asked for. Raises UsageError for what no app could do."""
    from semel.consumer import processes, settings
    from semel.durations import seconds
    from semel.telemetry import endpoint

    _check_engine(given)
    if given.processes < 1:
        raise UsageError(f"--processes {given.processes}: 1 is the least")
    for_handlers = {name: value for name in ("concurrency", "lease") if (value := getattr(given, name)) is not None}
    for name, value in for_handlers.items():
        with wrong_usage(f"--{name} {value}"):
            settings.OPTIONS[name].check(value)
    drain = None
    if given.drain is not None:
        with wrong_usage("--drain"):
            drain = seconds(given.drain)
    if given.health is not None:
        with wrong_usage("--health"):
            endpoint.parse(given.health)
    elif given.control_token is not None:
        raise UsageError("--control-token needs --health: add --health 0.0.0.0:8080")
    return processes.Wanted(
        app=given.app,
        endpoint_url=given.endpoint_url,
        region=given.region,
        profile=given.profile,
        queues=tuple(given.queue) if given.queue else None,
        processes=given.processes,
        burst=given.burst,
        drain=drain,
        create_dlq=given.create_dlq,
        health=given.health,
        control_token=given.control_token,
        attempt_log=given.attempt_log,
        options=for_handlers,
        log_format=given.log_format,
        log_level=given.log_level,
    )


def _check_engine(given: argparse.Namespace) -> None:
    if given.on == "spark" and given.processes != 1:
        raise UsageError("--processes is for threads; on Spark, --master local[4] says how many tasks run at once")
    if given.on == "spark" and given.control_token is not None:
        raise UsageError("--control-token works on threads only: on Spark, workers cannot be controlled")
    for option in ("checkpoint", "master"):
        if given.on != "spark" and getattr(given, option) is not None:
            raise UsageError(f"--{option} is for Spark: add --on spark, or leave it out")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "completed": report.completed,
        "duplicates": report.duplicates,
        "retried": report.retried,
        "dead_lettered": report.dead_lettered,
        "left": report.left,
        "waiting": report.waiting,
        "outbox": report.outbox,
        "error": str(report.error or ""),
    }


def _what_is_left(report: Report) -> str:
    left = [f"{count:,} of {queue} waiting for a retry" for queue, count in report.waiting.items()]
    if report.outbox:
        left.append(f"{report.outbox:,} in the outbox")
    return f"messages are left for the next run: {', '.join(left)}"


def _on_spark(given: argparse.Namespace, wanted: Wanted) -> int:
    try:
        from semel.spark import handlers
    except ImportError as error:
        raise SemelError(f"this needs the package {error.name}: pip install 'semel[spark]'") from None
    report = handlers.run(
        wanted.app,
        endpoint_url=wanted.endpoint_url,
        region=wanted.region,
        profile=wanted.profile,
        queues=wanted.queues,
        checkpoint=given.checkpoint,
        available_now=wanted.burst,
        master=given.master,
        drain=wanted.drain,
        create_dlq=wanted.create_dlq,
        health=wanted.health,
        attempt_log=wanted.attempt_log,
        log_format=given.log_format,
        log_level=given.log_level,
        **wanted.options,
    )
    if given.json:
        left = {"unfinished": report.unfinished, "waiting": report.waiting}
        print(json.dumps({"completed": report.completed, "left": left, "error": str(report.error or "")}))
    if report.error is not None:
        raise report.error
    return UNFINISHED if report.unfinished else 0

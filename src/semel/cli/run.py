"""`semel run`: the consumer, in one process or several, or on Spark. Options are checked before the app is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options
from semel.cli.errors import UsageError, wrong_usage
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.consumer.app_loader import RunOptions
    from semel.consumer.report import Report

UNFINISHED: Final = 3
NOT_EMPTY: Final = 4

_EXAMPLES = """\
examples:
  semel run shop:app                     run until SIGTERM or Ctrl-C
  semel run shop:app --exit-when-empty             run until the queues are empty
  semel run shop:app --concurrency 64 --processes 4 --health 0.0.0.0:8080
  semel run shop:app --explain           print all settings and guarantees
  semel run shop:app --endpoint-url http://127.0.0.1:9324
  semel run shop:app --on spark --checkpoint /var/lib/semel/shop

The first SIGTERM or Ctrl-C stops receiving and waits for running handlers, for
the time that --drain allows. The second one stops at once.

Each handler option, such as concurrency, can also be set on the handler, on
the App, or as an environment variable (SEMEL_CONCURRENCY); --explain shows
which one is in effect.

exit codes:
  0  stopped, no handler was interrupted; with --exit-when-empty: the queues are empty
  1  could not start, or had to stop; the reason is on standard error
  2  invalid command line
  3  stopped while handlers were still running: their messages return to the
     queue (on Spark: the next start runs their batch again)
  4  --exit-when-empty: messages are left that wait for a retry or are in the outbox
  5  on Spark: permission denied
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run the handlers of an app",
        description="Run the handlers of an app. Each message is received, claimed in the ledger,\n"
        "handled, recorded in the ledger and deleted from its queue. A duplicate is\n"
        "deleted without being handled. --explain prints what each handler guarantees.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="MODULE:APP", help="the App to run, such as shop:app or shop.workers:app")
    _add_work(parser.add_argument_group("what to run"))
    _add_connections(parser.add_argument_group("SQS and ledger"))
    _add_observability(parser.add_argument_group("health, logs and output"))
    spark = parser.add_argument_group("with --on spark")
    spark.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="folder for Spark's checkpoint, local or s3://… (default: ./semel-checkpoint/APP)",
    )
    spark.add_argument("--master", metavar="URL", help="Spark master (default: this machine)")
    parser.set_defaults(run=run)


def _add_work(group: Any) -> None:
    group.add_argument("--queue", action="append", metavar="NAME", help="run only this queue's handler; repeatable")
    group.add_argument(
        "--exit-when-empty",
        action="store_true",
        help="exit when the queues and the outbox are empty; waits for retries, at most 5 attempts of a message if "
        "there is no other limit",
    )
    group.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="maximum number of handlers of a queue that run at once in a process (default: 32)",
    )
    group.add_argument(
        "--prefetch",
        metavar="N",
        help="maximum number of messages received ahead of the handlers, or auto; 0: only as many as there are free "
        "handlers (default: auto)",
    )
    group.add_argument("--processes", type=int, default=1, metavar="N", help="number of worker processes (default: 1)")
    group.add_argument(
        "--lease",
        metavar="TIME",
        help="visibility timeout and ledger lease, such as 30s or 5m: a crashed worker's messages return to the queue "
        "after this long (default: the queue's VisibilityTimeout)",
    )
    group.add_argument(
        "--drain",
        metavar="TIME",
        help="how long running handlers may take to finish after SIGTERM, such as 25s or 2m (default: 25s)",
    )
    group.add_argument(
        "--on", choices=("threads", "spark"), default="threads", help="run on threads (default) or on Spark executors"
    )


def _add_connections(group: Any) -> None:
    group.add_argument(
        "--ledger",
        type=options.ledger_url,
        metavar="URL",
        help="ledger that all workers share: postgresql://…, redis://…, dynamodb://… or sqlite:///FILE "
        "(default: the App's, then $SEMEL_LEDGER)",
    )
    group.add_argument(
        "--create-dlq",
        action="store_true",
        help="create missing dead-letter queues (maxReceiveCount 5, retention 14 days)",
    )
    options.add_aws(group)


def _add_observability(group: Any) -> None:
    group.add_argument("--health", metavar="[HOST:]PORT", help="serve /health, /metrics, /workers and /control")
    group.add_argument(
        "--control-token",
        metavar="TOKEN",
        help="bearer token that allows remote access to /workers and /control; prefer $SEMEL_CONTROL_TOKEN: arguments "
        "are visible in the process list",
    )
    group.add_argument(
        "--attempt-log",
        metavar="FOLDER",
        help="write an event for every step of every message to this folder, local or s3://…",
    )
    group.add_argument(
        "--log-format",
        choices=("auto", "json", "text"),
        default="auto",
        help="auto (default): text on a terminal, else JSON",
    )
    group.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="default: info"
    )
    group.add_argument("--explain", action="store_true", help="print all settings and guarantees, and exit")
    group.add_argument("--json", action="store_true", help="print the final report, or --explain, as JSON")


def run(given: argparse.Namespace) -> int:
    from semel.consumer import explain, processes
    from semel.consumer.app_loader import AppNotFound
    from semel.telemetry import logs

    run_options = _run_options(given)
    logs.configure(given.log_format, given.log_level)
    try:
        if given.explain:
            explained = explain.explain(run_options)
            print(json.dumps(explained, indent=2) if given.json else explain.text(explained))
            return 0
        if given.on == "spark":
            return _on_spark(given, run_options)
        report = processes.run(run_options)
    except AppNotFound as error:
        raise UsageError(str(error)) from None
    if given.json:
        print(json.dumps(_as_json(report)))
    if report.error is not None:
        raise report.error
    if report.left:
        return UNFINISHED
    if run_options.exit_when_empty and (report.waiting or report.outbox):
        print(f"semel: {_what_is_left(report)}", file=sys.stderr)
        return NOT_EMPTY
    return 0


def _run_options(given: argparse.Namespace) -> RunOptions:
    """Raises UsageError for what is wrong whatever the app is."""
    from semel.consumer import settings
    from semel.consumer.app_loader import RunOptions
    from semel.durations import seconds
    from semel.telemetry import endpoint

    _check_engine(given)
    if given.processes < 1:
        raise UsageError(f"--processes {given.processes}: the minimum is 1")
    names = ("concurrency", "prefetch", "lease")
    handler_options = {name: value for name in names if (value := getattr(given, name)) is not None}
    for name, value in handler_options.items():
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
    return RunOptions(
        app=given.app,
        endpoint_url=given.endpoint_url,
        region=given.region,
        profile=given.profile,
        ledger=given.ledger,
        queues=tuple(given.queue) if given.queue else None,
        processes=given.processes,
        exit_when_empty=given.exit_when_empty,
        drain=drain,
        create_dlq=given.create_dlq,
        health=given.health,
        control_token=given.control_token,
        attempt_log=given.attempt_log,
        handler_options=handler_options,
        log_format=given.log_format,
        log_level=given.log_level,
    )


def _check_engine(given: argparse.Namespace) -> None:
    if given.on == "spark" and given.processes != 1:
        raise UsageError("--processes is for threads; on Spark, use --master local[4] to run four tasks at once")
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


def _on_spark(given: argparse.Namespace, run_options: RunOptions) -> int:
    try:
        from semel.spark.pipeline import handler_app
        from semel.spark.pipeline.errors import kind_of
        from semel.spark.pipeline.runner import PERMISSION
    except ImportError as error:
        raise SemelError(f"this needs the package {error.name}: pip install 'semel[spark]'") from None
    report = handler_app.run(
        run_options.app,
        endpoint_url=run_options.endpoint_url,
        region=run_options.region,
        profile=run_options.profile,
        ledger=run_options.ledger,
        queues=run_options.queues,
        checkpoint=given.checkpoint,
        exit_when_empty=run_options.exit_when_empty,
        master=given.master,
        drain=run_options.drain,
        create_dlq=run_options.create_dlq,
        health=run_options.health,
        attempt_log=run_options.attempt_log,
        log_format=given.log_format,
        log_level=given.log_level,
        **run_options.handler_options,
    )
    if given.json:
        left = {"unfinished": report.unfinished, "waiting": report.waiting}
        print(json.dumps({"completed": report.completed, "left": left, "error": str(report.error or "")}))
    if report.error is not None and kind_of(report.error) == "permission":
        print(f"semel: {report.error}", file=sys.stderr)
        return PERMISSION
    if report.error is not None:
        raise report.error
    return UNFINISHED if report.unfinished else 0

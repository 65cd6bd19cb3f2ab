"""`semel run`: the consumer, as one process or many, or on Spark."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.consumer.processes import Wanted

_EXAMPLES = """\
examples:
  semel run shop:app                             work until SIGTERM, then drain
  semel run shop:app --concurrency 64 --processes 4 --health 0.0.0.0:8080
  semel run shop:app --burst                     work until the queues are empty, then exit
  semel run shop:app --explain                   each setting, where it came from, and what each handler guarantees
  semel run shop:app --endpoint-url http://127.0.0.1:9324
  semel run shop:app --on spark --checkpoint /var/lib/semel/shop
                                                 the same handlers in Spark's executors, under the same ledger

exit codes:
  0  stopped, and nothing is left in hand
  1  could not start, or had to stop (the reason is on standard error)
  2  wrong usage
  3  stopped, but handlers were still running at the end of the drain; their messages come back, or on Spark:
     their batch is run again by the next start
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run an app's handlers",
        description="Receive, claim, work, record, delete: run the handlers of an app, each message's effect once.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="MODULE:APP", help="where the app is, for example shop:app or shop.workers:app")
    parser.add_argument("--on", choices=("threads", "spark"), default="threads", help="the engine (default threads)")
    parser.add_argument("--queue", action="append", metavar="NAME", help="only this handler's queue; may be repeated")
    parser.add_argument("--concurrency", type=int, metavar="N", help="messages worked on at a time, for each handler")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="worker processes (default 1)")
    parser.add_argument("--burst", action="store_true", help="exit once the queues are empty")
    parser.add_argument("--drain", metavar="S", help="time for handlers to finish after SIGTERM, such as 25 or 2m")
    parser.add_argument("--lease", metavar="S", help="visibility timeout and lease, such as 30 or 5m")
    parser.add_argument("--create-dlq", action="store_true", help="create the dead-letter queues that are missing")
    parser.add_argument("--health", metavar="[HOST:]PORT", help="serve /health, /metrics, /workers and /control here")
    parser.add_argument(
        "--control-token",
        metavar="TOKEN",
        help="let others than this machine look at /workers and use /control, with this token "
        "(or SEMEL_CONTROL_TOKEN, which no list of processes shows)",
    )
    parser.add_argument(
        "--attempt-log", metavar="FOLDER", help="log every step of every message here; s3://… works too"
    )
    parser.add_argument("--endpoint-url", metavar="URL", help="SQS's address, for the broker in the box and others")
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="on Spark: where it keeps how far it is; s3://… works too (default ./semel-checkpoint/APP)",
    )
    parser.add_argument("--master", metavar="URL", help="on Spark: the cluster's address (default: this machine)")
    parser.add_argument(
        "--log-format", choices=("auto", "json", "text"), default="auto", help="auto: JSON unless a terminal"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--explain", action="store_true", help="print the settings and guarantees, and exit")
    parser.add_argument("--json", action="store_true", help="with --explain, and for the report at the end: as JSON")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.consumer import explaining, logs, processes

    _check_engine(given)
    if given.control_token is not None and given.health is None:
        raise SemelError("--control-token is for the address that --health gives: add --health 0.0.0.0:8080")
    logs.configure(given.log_format, given.log_level)
    wanted = processes.Wanted(
        app=given.app,
        endpoint_url=given.endpoint_url,
        queues=tuple(given.queue) if given.queue else None,
        processes=given.processes,
        burst=given.burst,
        drain=given.drain,
        create_dlq=given.create_dlq,
        health=given.health,
        control_token=given.control_token,
        attempt_log=given.attempt_log,
        options={name: value for name in ("concurrency", "lease") if (value := getattr(given, name)) is not None},
    )
    if given.explain:
        found = explaining.explain(wanted)
        print(json.dumps(found, indent=2) if given.json else explaining.text(found))
        return 0
    if given.on == "spark":
        return _on_spark(given, wanted)
    report = processes.run(wanted)
    if given.json:
        print(json.dumps({"completed": report.completed, "left": report.left, "error": str(report.error or "")}))
    if report.error is not None:
        raise report.error
    return 3 if report.left else 0


def _check_engine(given: argparse.Namespace) -> None:
    if given.on == "spark" and given.processes != 1:
        raise SemelError("--processes is for threads; on Spark, --master local[4] says how many tasks run at once")
    if given.on == "spark" and given.control_token is not None:
        raise SemelError("--control-token is for threads: on Spark, the engine itself decides who works on what")
    for option in ("checkpoint", "master"):
        if given.on != "spark" and getattr(given, option) is not None:
            raise SemelError(f"--{option} is for Spark: add --on spark, or leave it out")


def _on_spark(given: argparse.Namespace, wanted: Wanted) -> int:
    try:
        from semel.spark import handlers
    except ImportError as error:
        raise SemelError(f"this needs the package {error.name}: pip install 'semel[spark]'") from None
    report = handlers.run(
        wanted.app,
        endpoint_url=wanted.endpoint_url,
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
    return 3 if report.unfinished else 0

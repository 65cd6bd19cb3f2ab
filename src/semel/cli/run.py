"""`semel run`: the consumer, in one process or several, or on Spark. Options are checked before the app is loaded."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, option, wrong_usage
from semel.extras import importing

if TYPE_CHECKING:
    from semel.consumer.app_loader import RunOptions
    from semel.consumer.run_report import Report


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "run",
        run,
        "run the handlers of an app",
        description="Run the handlers of an app. Each message is received, claimed in the ledger, handled, recorded in "
        "the ledger and deleted from its queue. A duplicate is deleted without being handled. --explain prints what "
        "each handler guarantees.",
        examples="""
            semel run shop:app                     run until SIGTERM or Ctrl-C
            semel run shop:app --exit-when-empty   run until the queues are empty
            semel run shop:app --concurrency 64 --processes 4 --health 0.0.0.0:8080
            semel run shop:app --explain           print all settings and guarantees
            semel run shop:app --endpoint-url http://127.0.0.1:9324
            semel run shop:app --on spark --checkpoint /var/lib/semel/shop
        """,
        notes="""
            The first SIGTERM or Ctrl-C stops receiving and waits for running handlers, for
            the time that --drain allows. The second one stops at once.

            Each handler option, such as concurrency, can also be set on the handler, on
            the App, or as an environment variable (SEMEL_CONCURRENCY), in this order;
            --explain shows which one is in effect.
        """,
        codes={
            ExitCode.OK: "stopped, no handler was still running; with --exit-when-empty: the queues are empty",
            ExitCode.FAILED: "could not start, or had to stop; the reason is on standard error",
            ExitCode.STOPPED: "stopped while handlers were running: their messages return to the queue (on Spark: the "
            "next start runs their batch again); or --exit-when-empty left messages that wait for a retry or are in "
            "the outbox",
            ExitCode.INTERRUPTED: "stopped with Ctrl-C, no handler was still running",
        },
    )
    parser.add_argument("app", metavar="MODULE:APP", help="the App to run, such as shop:app or shop.workers:app")
    _add_work(parser.add_argument_group("what to run"))
    _add_connections(parser.add_argument_group("SQS and ledger"))
    _add_observability(parser.add_argument_group("health, logs and output"))
    spark = parser.add_argument_group("with --on spark")
    option(
        spark,
        "--checkpoint FOLDER",
        "folder for Spark's checkpoint, local or s3://… (default: ./semel-checkpoint/APP)",
        toml="checkpoint",
    )
    options.add(spark, "--master URL")


def _add_work(group: Any) -> None:
    option(group, "--queue QUEUE", "only this queue; repeatable (default: all queues)", action="append")
    option(
        group,
        "--exit-when-empty",
        "exit when the queues and the outbox are empty; waits for retries, at most 5 attempts of a message if there is "
        "no other limit",
        code="app.run(exit_when_empty=True)",
    )
    option(
        group,
        "--concurrency N",
        "maximum number of handlers of a queue that run at once in a process (default: 32)",
        env="app",
        code="App(concurrency=…), @app.handler(concurrency=…)",
        type=str,
    )
    option(
        group,
        "--prefetch N",
        "maximum number of messages received ahead of the handlers, or auto; 0: only as many as there are free "
        "handlers (default: auto)",
        env="app",
        code="App(prefetch=…), @app.handler(prefetch=…)",
        type=str,
    )
    option(
        group,
        "--lease TIME",
        "visibility timeout and ledger lease, such as 30s or 5m: a crashed worker's messages return to the queue "
        "after this long (default: the queue's VisibilityTimeout)",
        env="app",
        code="App(lease=…), @app.handler(lease=…)",
        type=str,
    )
    option(group, "--processes N", "number of worker processes", type=options.at_least(1), default=1)
    option(
        group,
        "--drain TIME",
        "how long running handlers may take to finish after SIGTERM, such as 25s or 2m (default: 25s)",
        env="app",
        code="App(drain=…), app.run(drain=…)",
        type=str,
    )
    option(group, "--on", "run on threads or on Spark executors", choices=("threads", "spark"), default="threads")


def _add_connections(group: Any) -> None:
    options.add_ledger(group, variable="app")
    options.add_create_dlq(group, "app.run(create_dlq=True)")
    options.add_aws(group, code="App({}=…)")


def _add_observability(group: Any) -> None:
    option(
        group,
        "--health [HOST:]PORT",
        "serve /health, /metrics, /workers and /control",
        code="app.run(health=…)",
        toml="metrics.health",
        type=str,
    )
    options.add_control_token(group, variable="app")
    option(
        group,
        "--attempt-log FOLDER",
        "write an event for every step of every message to this folder, local or s3://…",
        env="app",
        code="App(attempt_log=…)",
        toml="log.attempt_log",
    )
    option(
        group,
        "--log-format",
        "format of the log; auto: text on a terminal, else JSON",
        env="common",
        choices=("auto", "json", "text"),
        default="auto",
    )
    option(
        group,
        "--log-level",
        "least severe messages of the log",
        env="common",
        default="info",
        choices=("debug", "info", "warning", "error"),
    )
    option(group, "--explain", "print all settings and guarantees, and exit")
    options.add_output(group, help="print the final report, or --explain, as table (explain only), json or jsonl")


def run(args: argparse.Namespace) -> int:
    from semel.consumer import explain, processes
    from semel.consumer.app_loader import AppNotFound
    from semel.telemetry import logs

    run_options = _run_options(args)
    logs.configure(args.log_format, args.log_level)
    try:
        if args.explain:
            explained = explain.explain(run_options)
            output.show(args, explained, lambda: explain.text(explained))
            return ExitCode.OK
        if args.on == "spark":
            return _on_spark(args, run_options)
        report = processes.run(run_options)
    except AppNotFound as error:
        raise UsageError(str(error)) from None
    if args.output != "table":
        output.print_json(_as_json(report), args.output)
    if report.error is not None:
        raise report.error
    if report.left:
        return ExitCode.STOPPED
    if run_options.exit_when_empty and (report.waiting or report.outbox):
        print(f"semel: {_what_is_left(report)}", file=sys.stderr)
        return ExitCode.STOPPED
    return ExitCode.OK


def _run_options(args: argparse.Namespace) -> RunOptions:
    """Raises UsageError for options that are wrong for any app."""
    from semel.consumer import settings
    from semel.consumer.app_loader import RunOptions
    from semel.durations import seconds
    from semel.telemetry import endpoint

    _check_engine(args)
    names = ("concurrency", "prefetch", "lease")
    handler_options = {name: value for name in names if (value := getattr(args, name)) is not None}
    for name, value in handler_options.items():
        with wrong_usage(f"--{name} {value}"):
            settings.OPTIONS[name].check(value)
    drain = None
    if args.drain is not None:
        with wrong_usage("--drain"):
            drain = seconds(args.drain)
    if args.health is not None:
        with wrong_usage("--health"):
            endpoint.parse(args.health)
    elif args.control_token is not None:
        raise UsageError("--control-token needs --health: add --health 0.0.0.0:8080")
    return RunOptions(
        app=args.app,
        endpoint_url=args.endpoint_url,
        region=args.region,
        profile=args.profile,
        ledger=args.ledger,
        queues=tuple(args.queue) if args.queue else None,
        processes=args.processes,
        exit_when_empty=args.exit_when_empty,
        drain=drain,
        create_dlq=args.create_dlq,
        health=args.health,
        control_token=args.control_token,
        attempt_log=args.attempt_log,
        handler_options=handler_options,
        log_format=args.log_format,
        log_level=args.log_level,
    )


def _check_engine(args: argparse.Namespace) -> None:
    if args.on == "spark" and args.processes != 1:
        raise UsageError("--processes is for threads; on Spark, use --master local[4] to run four tasks at once")
    if args.on == "spark" and args.control_token is not None:
        raise UsageError("--control-token works on threads only: on Spark, workers cannot be controlled")
    for name in ("checkpoint", "master"):
        if args.on != "spark" and name not in args.environment and getattr(args, name) is not None:
            raise UsageError(f"--{name} is for Spark: add --on spark, or leave it out")


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


def _on_spark(args: argparse.Namespace, run_options: RunOptions) -> int:
    with importing("--on spark", extra="spark"):
        from semel.spark.pipeline import handler_app
    report = handler_app.run(
        run_options.app,
        endpoint_url=run_options.endpoint_url,
        region=run_options.region,
        profile=run_options.profile,
        ledger=run_options.ledger,
        queues=run_options.queues,
        checkpoint=args.checkpoint,
        exit_when_empty=run_options.exit_when_empty,
        master=args.master,
        drain=run_options.drain,
        create_dlq=run_options.create_dlq,
        health=run_options.health,
        attempt_log=run_options.attempt_log,
        log_format=args.log_format,
        log_level=args.log_level,
        **run_options.handler_options,
    )
    if args.output != "table":
        left = {"unfinished": report.unfinished, "waiting": report.waiting}
        summary = {"completed": report.completed, "left": left, "error": str(report.error or "")}
        output.print_json(summary, args.output)
    if report.error is not None:
        raise report.error
    left_over = report.unfinished or (run_options.exit_when_empty and report.waiting)
    return ExitCode.STOPPED if left_over else ExitCode.OK

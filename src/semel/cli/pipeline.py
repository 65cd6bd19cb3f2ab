"""`semel pipeline`: a queue into a table, from one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import confirmation, options, output
from semel.cli.command import ExitCode, Parser, UsageError, command, command_group, option
from semel.extras import require

if TYPE_CHECKING:
    from semel.spark.pipeline.config import Pipeline
    from semel.spark.pipeline.progress.display import Show
    from semel.spark.pipeline.runner import Report

SINKS: Final = ("parquet", "delta", "postgres", "sqs", "handler")
_SHOW: Final[dict[str, Show]] = {"table": "auto", "json": "none", "jsonl": "json"}


def add_to(commands: Any) -> None:
    steps = command_group(
        commands,
        "pipeline",
        "write queues into tables with Spark, exactly once, from one file",
        description="Read queues with Spark; write each message once to a table, queue or handler.",
        examples="""
            semel pipeline init orders.toml --sink delta      write a commented file
            semel pipeline check orders.toml                  check it, and its needs
            semel pipeline run orders.toml                    run until SIGTERM or Ctrl-C
            semel pipeline run orders.toml --exit-when-empty  current backlog, then exit
            semel pipeline status orders.toml --output json
            semel pipeline reset orders.toml                  after checkpoint damage
        """,
    )
    _add_init(steps)
    _add_check(steps)
    _add_run(steps)
    _add_status(steps)
    _add_reset(steps)


def _add_file(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")


def _add_adopt(parser: Parser) -> None:
    option(
        parser,
        "--adopt",
        "add to a table that another pipeline, or this one with another checkpoint, has written to",
        env="never",
    )


def _add_run(steps: Any) -> None:
    parser = command(
        steps,
        "run",
        run,
        "run a pipeline until it is stopped, or until the backlog is done",
        examples="""
            semel pipeline run orders.toml
            semel pipeline run orders.toml --exit-when-empty --output jsonl
            semel pipeline run orders.toml --master spark://master:7077
        """,
        notes="""
            If SQS, the table, the ledger or the store does not answer, the pipeline waits,
            says so, and continues. With --exit-when-empty it gives up after 15 minutes.

            SIGTERM waits up to 60 seconds for the batch in progress to finish, Ctrl-C up to
            5 seconds. A second signal ends the pipeline at once. Start it again at any
            time: nothing is lost or doubled.

            Java: pip install 'semel[spark]' has one; JAVA_HOME and PATH take precedence.
        """,
        codes={
            ExitCode.OK: "done, or stopped between two batches",
            ExitCode.FAILED: "could not start, or had to stop; the reason is on standard error, and in `semel pipeline "
            "status`",
            ExitCode.FOUND: "every message was rejected: the schema may be wrong",
            ExitCode.STOPPED: "stopped within a batch; the next start runs it again",
            ExitCode.INTERRUPTED: "stopped with Ctrl-C between two batches",
        },
    )
    _add_file(parser)
    option(parser, "--exit-when-empty", "process the current backlog, then exit")
    options.add_create_dlq(parser)
    _add_adopt(parser)
    options.add(parser, "--cores N", "--master URL")
    options.add_aws(parser, toml="source.{}")
    options.add_output(
        parser, help="table: draw the progress; json: print the final figures; jsonl: print the progress"
    )


def run(args: argparse.Namespace) -> int:
    pipeline = _loaded(args)
    from semel.spark.pipeline import requirements

    requirements.check(pipeline)
    from semel.spark.pipeline.runner import run as run_pipeline

    report = run_pipeline(
        pipeline,
        exit_when_empty=args.exit_when_empty,
        master=args.master,
        cores=args.cores,
        show=_SHOW[args.output],
        create_dlq=args.create_dlq,
        adopt=args.adopt,
    )
    if args.output == "json":
        from semel.spark.pipeline.progress.display import json_values

        output.print_json(json_values(report.snapshot), args.output)
    if report.error is not None:
        print(f"semel: {output.printable(str(report.error))}", file=sys.stderr)
        return ExitCode.FAILED
    if report.unfinished:
        return ExitCode.STOPPED
    if report.all_rejected:
        print(f"semel: {_all_rejected(report, pipeline)}", file=sys.stderr)
        return ExitCode.FOUND
    return ExitCode.OK


def _all_rejected(report: Report, pipeline: Pipeline) -> str:
    from semel.spark.pipeline.check import rejects_go

    rejects = report.snapshot.run.rejects
    most = max(rejects, key=lambda reason: rejects[reason])
    return (
        f"every message was rejected, {sum(rejects.values()):,} in all, {rejects[most]:,} of them because of: {most}. "
        f"They went {rejects_go(pipeline)}. Is [schema] of {pipeline.path} right?"
    )


def _loaded(args: argparse.Namespace) -> Pipeline:
    """Loads the pipeline from its file; the SQS options of the command line override the file. Called before anything
    of `semel.spark` is imported, so that a missing package is reported in one line."""
    _check_is_there(args.file)
    require("a pipeline", "pyspark", "pyarrow", "pandas", "pydantic", "rich", extra="spark")
    from semel.spark.pipeline.config_file import load

    if not hasattr(args, "endpoint_url"):
        return load(args.file)
    return load(args.file, endpoint_url=args.endpoint_url, region=args.region, profile=args.profile)


def _check_is_there(file: Path) -> None:
    if not file.exists():
        raise UsageError(f"there is no file {file}; `semel pipeline init {file}` writes one to start from")


def _add_status(steps: Any) -> None:
    parser = command(
        steps,
        "status",
        status,
        "show the state of a pipeline, or how it ended",
        examples="semel pipeline status orders.toml",
        codes={
            ExitCode.OK: "it runs, or ended without an error",
            ExitCode.FOUND: "it failed, was killed, or never ran",
        },
    )
    _add_file(parser)
    options.add_output(parser)


def status(args: argparse.Namespace) -> int:
    pipeline = _loaded(args)
    from semel.spark.pipeline.progress import status as status_

    healthy = status_.show(pipeline, output=args.output)
    return ExitCode.OK if healthy else ExitCode.FOUND


def _add_reset(steps: Any) -> None:
    parser = command(
        steps,
        "reset",
        reset,
        "start the checkpoint anew; sealed messages are written first",
        description="For a checkpoint that no longer belongs to its segment log or its table: Spark's folder query/ "
        "was removed, an older copy was restored, or a segment is gone. Messages that are sealed but not in the table "
        "are written by the next run; those in the table are not written again. Without --yes it shows its plan and "
        "asks.",
        examples="""
            semel pipeline reset orders.toml
            semel pipeline reset orders.toml --yes
            semel pipeline reset orders.toml --output json | jq .may_lose
        """,
        codes={
            ExitCode.OK: "reset",
            ExitCode.FAILED: "not possible; or messages may be lost and --accept-loss was not given; or not confirmed",
            ExitCode.FOUND: "only shown, nothing was changed: --output json without --yes",
        },
    )
    _add_file(parser)
    options.add(parser, "--yes")
    option(parser, "--accept-loss", "reset even if messages may be lost or written twice", env="never")
    options.add_aws(parser, toml="source.{}")
    options.add_output(parser)


def reset(args: argparse.Namespace) -> int:
    from contextlib import ExitStack

    pipeline = _loaded(args)
    if args.output == "table" and not args.yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to confirm at: add --yes, or --output json to see the plan only")
    from semel.spark.pipeline import requirements
    from semel.spark.pipeline.reset import PipelineReset

    requirements.check(pipeline)
    with ExitStack() as stack:
        plan = PipelineReset(pipeline, stack)
        refused = plan.plan.loses and not args.accept_loss
        if args.output == "table":
            print("\n".join(plan.as_text()), flush=True)
        confirmed = args.yes or (
            args.output == "table" and not refused and confirmation.agreed(f"reset {pipeline.name}?")
        )
        done = confirmed and not refused
        if done:
            plan.carry_out()
        if args.output != "table":
            output.print_json(plan.plain(done), args.output)
    if refused:
        text = "messages may be lost, so nothing was changed; see above, and add --accept-loss if there is no other way"
        print(f"semel: {text}", file=sys.stderr)
        return ExitCode.FAILED
    if args.output == "table":
        print(f"done; next: semel pipeline run {args.file}" if done else "nothing was changed")
        return ExitCode.OK if done else ExitCode.FAILED
    return ExitCode.OK if done else ExitCode.FOUND


def _add_init(steps: Any) -> None:
    parser = command(
        steps,
        "init",
        init,
        "write a commented pipeline file",
        examples="semel pipeline init orders.toml --sink postgres",
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("pipeline.toml"),
        metavar="FILE",
        help="the file to write (default: pipeline.toml)",
    )
    option(parser, "--sink", "where the rows are written", toml="sink.type", choices=SINKS, default="parquet")
    options.add(parser, "--force")


def init(args: argparse.Namespace) -> int:
    from semel.spark.pipeline import template

    if args.file.exists() and not args.force:
        raise UsageError(f"{args.file} is there already; --force overwrites it")
    try:
        args.file.write_text(template.text(args.sink), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{args.file} cannot be written: {error.strerror}") from None
    print(f"wrote {args.file}; next: semel pipeline check {args.file}")
    return ExitCode.OK


def _add_check(steps: Any) -> None:
    parser = command(
        steps,
        "check",
        check,
        "check a pipeline's file and what it needs; changes nothing",
        description="Check the file, the queues, the permissions of the credentials, the tables and the checkpoint. "
        "Permissions are tested with requests that cannot succeed, so that no message is received, sent, deleted or "
        "changed. Give --create-dlq and --adopt if the run will have them.",
        examples="""
            semel pipeline check orders.toml
            semel pipeline check orders.toml --sql --output json
        """,
        codes={
            ExitCode.OK: "it can run",
            ExitCode.FAILED: "the file has mistakes or cannot be read, or a package is missing",
            ExitCode.FOUND: "problems must be fixed before it can run",
        },
    )
    _add_file(parser)
    options.add_create_dlq(parser)
    _add_adopt(parser)
    options.add_aws(parser, toml="source.{}")
    option(parser, "--sql", "also check the SQL of constraints, which starts Spark")
    options.add_output(parser)


def check(args: argparse.Namespace) -> int:
    pipeline = _loaded(args)
    from semel.spark.pipeline import check

    result = check.check(pipeline, with_spark=args.sql, create_dlq=args.create_dlq, adopt=args.adopt)
    output.show(args, result.plain(), lambda: "\n".join(check.as_text(result)))
    return ExitCode.OK if result.passed else ExitCode.FOUND

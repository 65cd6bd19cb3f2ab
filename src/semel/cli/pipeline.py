"""`semel pipeline`: a queue into a table, from one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.cli import options
from semel.cli.errors import UsageError
from semel.extras import require

if TYPE_CHECKING:
    from semel.spark.pipeline.config import Pipeline
    from semel.spark.pipeline.runner import Report

_EXAMPLES = """\
examples:
  semel pipeline init orders.toml --sink delta     write a commented file
  semel pipeline check orders.toml                 check it, and what it needs
  semel pipeline run orders.toml                   run until SIGTERM or Ctrl-C
  semel pipeline run orders.toml --exit-when-empty   current backlog, then exit
  semel pipeline status orders.toml --json
  semel pipeline reset orders.toml                 if the checkpoint was damaged
"""
_RUN = """\
examples:
  semel pipeline run orders.toml
  semel pipeline run orders.toml --exit-when-empty --json
  semel pipeline run orders.toml --master spark://master:7077

If SQS, the table, the ledger or the store is away, the pipeline waits, says so,
and goes on. With --exit-when-empty it gives up after 15 minutes.

SIGTERM: the batch in progress is finished, for up to 60 seconds. Ctrl-C: for up
to 5 seconds. A second one of either ends the pipeline at once. Start it again
at any time: nothing is lost or doubled.

exit codes:
  0  done, or stopped between two batches
  1  could not start, or had to stop (the reason is on standard error, and in
     `semel pipeline status`)
  2  wrong usage
  3  stopped within a batch; the next start runs it again
  4  messages came, and every one was rejected: the schema may be wrong
  5  permission denied: credentials, a policy of a queue, or a role of the table

Java: pip install 'semel[spark]' brings one; JAVA_HOME and PATH come first.
"""
_STATUS = """\
example:
  semel pipeline status orders.toml

exit codes:
  0  it runs, or ended well
  1  it failed, or was killed
  2  wrong usage
  3  it never ran
"""
_CHECK = """\
It checks the file, the queues, the permissions of the credentials, the tables
and the checkpoint. Permissions are tested with requests that cannot succeed, so
that no message is received, sent, deleted or changed.

examples:
  semel pipeline check orders.toml
  semel pipeline check orders.toml --sql --json

exit codes:
  0  it can run
  1  problems must be fixed before it can run
  2  wrong usage
"""
_RESET = """\
For a checkpoint that does not belong to its segment log or its table any more:
Spark's folder query/ was removed, an older copy was restored, or a segment is
gone. What is sealed and not in the table is written by the next run; what is in
the table is not written again. Without --yes it shows its plan and asks.

examples:
  semel pipeline reset orders.toml
  semel pipeline reset orders.toml --yes
  semel pipeline reset orders.toml --json | jq .may_lose

exit codes:
  0  reset
  1  it cannot be, or messages may be lost and --accept-loss was not given
  2  wrong usage
  3  shown only: nothing was changed
"""
_ADOPT = "a table that another pipeline, or this one with another checkpoint, has written to"
_CREATE_DLQ = "a dead-letter queue for each queue that has none, with a maxReceiveCount of 5"
SINKS = ("parquet", "delta", "postgres", "sqs", "handler")


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "pipeline",
        help="queues into tables with Spark, exactly once, from one file",
        description="Read queues with Spark; write each message once to a table, queue or handler.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_init(steps)
    _add_check(steps)
    _add_run(steps)
    _add_status(steps)
    _add_reset(steps)


def _step(steps: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = steps.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return added


def _add_run(steps: Any) -> None:
    parser = _step(steps, "run", "Run a pipeline until it is stopped, or until the backlog is done.", _RUN)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--exit-when-empty", action="store_true", help="process the current backlog, then exit")
    parser.add_argument("--create-dlq", action="store_true", help=f"create {_CREATE_DLQ}")
    parser.add_argument("--adopt", action="store_true", help=f"add to {_ADOPT}")
    parser.add_argument("--cores", type=_cores, metavar="N", help="cores of this machine to use (default: all)")
    parser.add_argument("--master", metavar="URL", help="Spark's master, for a cluster (default: this machine)")
    options.add_aws(parser)
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    parser.set_defaults(run=run)


def _cores(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores: 1 is the least")
    return int(text)


def run(given: argparse.Namespace) -> int:
    pipeline = _loaded(given)
    from semel.spark.pipeline import requirements

    requirements.check(pipeline)
    from semel.spark.pipeline.runner import run as run_pipeline

    report = run_pipeline(
        pipeline,
        exit_when_empty=given.exit_when_empty,
        master=given.master,
        cores=given.cores,
        show="json" if given.json else "auto",
        create_dlq=given.create_dlq,
        adopt=given.adopt,
    )
    if report.error is not None:
        print(f"semel: {report.error}", file=sys.stderr)
    elif report.all_rejected:
        print(f"semel: {_all_rejected(report, pipeline)}", file=sys.stderr)
    return report.code


def _all_rejected(report: Report, pipeline: Pipeline) -> str:
    from semel.spark.pipeline.check import rejects_go

    rejects = report.snapshot.run.rejects
    most = max(rejects, key=lambda reason: rejects[reason])
    return (
        f"every message was rejected, {sum(rejects.values()):,} in all, {rejects[most]:,} of them because of: {most}. "
        f"They went {rejects_go(pipeline)}. Is [schema] of {pipeline.path} right?"
    )


def _loaded(given: argparse.Namespace) -> Pipeline:
    """The file's pipeline; where SQS is, as the command line says it, comes before what the file says. Called before
    anything of `semel.spark` is imported: what is missing is told in one line."""
    _check_is_there(given.file)
    require("a pipeline", "pyspark", "pyarrow", "pandas", "pydantic", "rich", extra="spark")
    from semel.spark.pipeline.config_file import load

    if not hasattr(given, "endpoint_url"):
        return load(given.file)
    return load(given.file, endpoint_url=given.endpoint_url, region=given.region, profile=given.profile)


def _check_is_there(file: Path) -> None:
    if not file.exists():
        raise UsageError(f"there is no file {file}; `semel pipeline init {file}` writes one to start from")


def _add_status(steps: Any) -> None:
    parser = _step(steps, "status", "Show how a pipeline is doing, or how it ended.", _STATUS)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=status)


def status(given: argparse.Namespace) -> int:
    pipeline = _loaded(given)
    from semel.spark.pipeline.progress import status as status_

    return status_.show(pipeline, as_json=given.json)


def _add_reset(steps: Any) -> None:
    parser = _step(steps, "reset", "Begin a pipeline's progress anew; what is sealed is written first.", _RESET)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--accept-loss", action="store_true", help="also where messages may be lost or come twice")
    options.add_aws(parser)
    parser.add_argument("--json", action="store_true", help="as JSON; only shows, unless --yes is given")
    parser.set_defaults(run=reset)


def reset(given: argparse.Namespace) -> int:
    import json
    from contextlib import ExitStack

    pipeline = _loaded(given)
    from semel.spark.pipeline import requirements
    from semel.spark.pipeline.reset import PipelineReset

    requirements.check(pipeline)
    with ExitStack() as stack:
        found = PipelineReset(pipeline, stack)
        refused = found.plan.loses and not given.accept_loss
        if not given.json:
            print("\n".join(found.as_text()), flush=True)
        done = not refused and (given.yes or (not given.json and _agreed(pipeline.name)))
        if done:
            found.carry_out()
        if given.json:
            print(json.dumps(found.plain(done), indent=2))
    if refused:
        text = "messages may be lost, so nothing was changed; see above, and add --accept-loss if there is no other way"
        print(f"semel: {text}", file=sys.stderr)
        return 1
    if not given.json:
        print(f"done; next: semel pipeline run {given.file}" if done else "nothing was changed")
    return 0 if done else 3


def _agreed(name: str) -> bool:
    """Ask, where there is somebody to be asked."""
    if not sys.stdin.isatty():
        print("there is no terminal to confirm at: add --yes to reset it", file=sys.stderr)
        return False
    return input(f"reset {name}? [y/N] ").strip().lower() in ("y", "yes")


def _add_init(steps: Any) -> None:
    parser = _step(
        steps, "init", "Write a commented pipeline file.", "example:\n  semel pipeline init orders.toml --sink postgres"
    )
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path("pipeline.toml"), metavar="FILE", help="default: pipeline.toml"
    )
    parser.add_argument("--sink", choices=SINKS, default="parquet", help="where the rows go (default: parquet)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=init)


def init(given: argparse.Namespace) -> int:
    from semel.spark.pipeline import template

    if given.file.exists() and not given.force:
        raise UsageError(f"{given.file} is there already; --force overwrites it")
    try:
        given.file.write_text(template.text(given.sink), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{given.file} cannot be written: {error.strerror}") from None
    print(f"wrote {given.file}; next: semel pipeline check {given.file}")
    return 0


def _add_check(steps: Any) -> None:
    parser = _step(steps, "check", "Check a pipeline's file and what it needs. Changes nothing.", _CHECK)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--create-dlq", action="store_true", help=f"as for a run that creates {_CREATE_DLQ}")
    parser.add_argument("--adopt", action="store_true", help=f"as for a run that adds to {_ADOPT}")
    options.add_aws(parser)
    parser.add_argument("--sql", action="store_true", help="also check the SQL of constraints, which starts Spark")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=check)


def check(given: argparse.Namespace) -> int:
    import json

    pipeline = _loaded(given)
    from semel.spark.pipeline import check

    result = check.check(pipeline, with_spark=given.sql, create_dlq=given.create_dlq, adopt=given.adopt)
    print(json.dumps(result.plain(), indent=2) if given.json else "\n".join(check.as_text(result)))
    return 0 if result.passed else 1

"""`semel pipeline`: a queue into a table, from one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.spark.pipeline.spec import Pipeline

_EXAMPLES = """\
examples:
  semel pipeline init orders.toml --sink delta     write a commented file
  semel pipeline check orders.toml                 check it, and what it needs
  semel pipeline run orders.toml                   run until SIGTERM
  semel pipeline run orders.toml --available-now   what is there now, then exit
  semel pipeline status orders.toml --json
"""
_RUN = """\
examples:
  semel pipeline run orders.toml
  semel pipeline run orders.toml --available-now --json
  semel pipeline run orders.toml --master spark://master:7077

exit codes:
  0  done, or stopped after the batch in hand
  1  could not start, or had to stop (the reason is on standard error, and in
     `semel pipeline status`)
  2  wrong usage
  3  stopped within a batch; the next start runs it again, and nothing is lost
     or doubled

Java: pip install 'semel[spark]' brings one; JAVA_HOME and PATH come first.
"""
_STATUS = """\
example:
  semel pipeline status orders.toml

exit codes:
  0  it runs, or ended well
  1  it failed, or was killed
  3  it never ran
"""
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


def _step(steps: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = steps.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return added


def _add_run(steps: Any) -> None:
    parser = _step(steps, "run", "Run a pipeline until it is stopped, or until the queue's backlog is done.", _RUN)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--available-now", action="store_true", help="what is waiting now, then exit")
    parser.add_argument("--cores", type=int, metavar="N", help="cores of this machine to use (all)")
    parser.add_argument("--master", metavar="URL", help="Spark's master, for a cluster; this machine if not given")
    parser.add_argument("--endpoint-url", metavar="URL", help="SQS's address, instead of the file's")
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.spark.pipeline.run import run as run_pipeline

    report = run_pipeline(
        _loaded(given),
        available_now=given.available_now,
        master=given.master,
        cores=given.cores,
        show="json" if given.json else "auto",
    )
    if report.error is not None:
        raise report.error
    return report.code


def _loaded(given: argparse.Namespace) -> Pipeline:
    """The file's pipeline, with SQS's address from the command line if it names one."""
    from semel.spark.pipeline.file import load

    return load(given.file, endpoint_url=given.endpoint_url)


def _add_status(steps: Any) -> None:
    parser = _step(steps, "status", "How a pipeline is doing, or how it ended.", _STATUS)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=status)


def status(given: argparse.Namespace) -> int:
    from semel.spark.pipeline import status as status_
    from semel.spark.pipeline.file import load

    return status_.show(load(given.file), as_json=given.json)


def _add_init(steps: Any) -> None:
    parser = _step(
        steps, "init", "Write a commented pipeline file.", "example:\n  semel pipeline init orders.toml --sink postgres"
    )
    parser.add_argument("file", type=Path, nargs="?", default=Path("pipeline.toml"), metavar="FILE")
    parser.add_argument("--sink", choices=SINKS, default="parquet", help="where the rows go (parquet)")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    parser.set_defaults(run=init)


def init(given: argparse.Namespace) -> int:
    from semel.errors import SemelError
    from semel.spark.pipeline import template

    if given.file.exists() and not given.force:
        raise SemelError(f"{given.file} is there already; --force overwrites it")
    try:
        given.file.write_text(template.text(given.sink), encoding="utf-8")
    except OSError as error:
        raise SemelError(f"{given.file} cannot be written: {error.strerror}") from None
    print(f"wrote {given.file}; next: semel pipeline check {given.file}")
    return 0


_CHECK = """\
examples:
  semel pipeline check orders.toml
  semel pipeline check orders.toml --sql --json

exit codes:
  0  it can run
  1  something is to be mended first
  2  wrong usage
"""


def _add_check(steps: Any) -> None:
    parser = _step(steps, "check", "Is a pipeline's file right, and what would happen? Changes nothing.", _CHECK)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file")
    parser.add_argument("--endpoint-url", metavar="URL", help="SQS's address, instead of the file's")
    parser.add_argument("--sql", action="store_true", help="look at the SQL of constraints too, which starts Spark")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=check)


def check(given: argparse.Namespace) -> int:
    import json

    from semel.spark.pipeline import checking

    found = checking.check(_loaded(given))
    print(json.dumps(found.plain(), indent=2) if given.json else "\n".join(checking.told(found)))
    return 0 if found.passed else 1

"""`semel demo`: exactly once on a faulty queue with killed workers: a handler in seconds, a pipeline in a minute."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, option
from semel.demo.display import Result, Screen

LEAST: Final = 100  # orders: with fewer, a kill could come after the work is done
_CODES: Final = {
    ExitCode.OK: "every order was handled exactly once, and the audit adds up",
    ExitCode.FAILED: "an order was lost or doubled, the audit does not add up, or a part of the demo did not start",
}


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "demo",
        handler,
        "show exactly once on a faulty queue with killed workers",
        description="Process a queue that misbehaves as SQS may, while processes are killed. Then compare what was "
        "sent with what was done.",
        usage="semel demo [-h] [COMMAND] ...",
        examples="""
            semel demo                         the same as: semel demo handler
            semel demo handler --output json
            semel demo pipeline --orders 5000
        """,
        codes=_CODES,
    )
    parser.set_defaults(orders=None, output="table")
    demos = parser.add_subparsers(title="commands", prog="semel demo", metavar="COMMAND")
    handler_parser = command(
        demos,
        "handler",
        handler,
        "compare the loop from the tutorials with a Semel handler; some seconds",
        description="Process the same faulty queue in two ways. The loop from the tutorials charges some orders twice. "
        "A Semel handler charges each order once, although its workers are killed.",
        examples="""
            semel demo handler                 needs only: pip install semel
            semel demo handler --orders 1000
            semel demo handler --output json   the figures, for scripts
        """,
        codes=_CODES,
    )
    _add_options(handler_parser, "300")
    pipeline_parser = command(
        demos,
        "pipeline",
        pipeline,
        "a Spark pipeline into a table, with its driver killed; about a minute",
        description="A faulty queue, and a producer that sends some orders twice and some malformed messages. A Spark "
        "pipeline writes each order once into a Parquet table. Its driver is killed with SIGKILL in the middle of the "
        "work, and started again.",
        examples="""
            semel demo pipeline                needs: pip install 'semel[spark]'
            semel demo pipeline --orders 5000
            semel demo pipeline --keep ./demo  keep the file, the table and the logs
            semel demo pipeline --output json  the audit, for scripts
        """,
        codes=_CODES,
    )
    _add_options(pipeline_parser, "20,000")
    option(pipeline_parser, "--keep FOLDER", "work in this folder, and keep it", type=Path)


def _add_options(parser: Any, orders: str) -> None:
    option(parser, "--orders N", f"number of orders (default: {orders})", type=options.at_least(LEAST))
    options.add_output(parser)


def handler(args: argparse.Namespace) -> int:
    from semel.demo import handler as demo

    return _report(args, lambda screen: demo.run(args.orders or demo.ORDERS, screen=screen))


def pipeline(args: argparse.Namespace) -> int:
    from semel.demo import pipeline as demo

    demo.check_installation()
    if args.keep is not None:
        try:
            args.keep.mkdir(parents=True, exist_ok=True)
            if any(args.keep.iterdir()):
                raise UsageError(f"--keep {args.keep}: the folder is not empty; give a new one")
        except OSError as error:
            raise UsageError(f"--keep {args.keep}: {error.strerror}") from None
    return _report(args, lambda screen: demo.run(args.orders or demo.ORDERS, folder=args.keep, screen=screen))


def _report(args: argparse.Namespace, run: Callable[[Screen], Result]) -> int:
    screen = Screen(quiet=args.output != "table")
    try:
        result = run(screen)
    except KeyboardInterrupt:
        screen.clear()
        print("semel: interrupted; the demo has ended all its processes", file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        screen.clear()
    if args.output != "table":
        output.print_json(result.plain(), args.output)
    for problem in result.problems:
        print(f"semel: {problem}", file=sys.stderr)
    return ExitCode.FAILED if result.problems else ExitCode.OK

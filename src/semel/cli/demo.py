"""`semel demo`: exactly once under fire, with an audit: a handler in seconds, a Spark pipeline in about a minute."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from semel.cli.errors import UsageError
from semel.demo.show import Result, Screen

LEAST: Final = 100  # orders: with fewer, a kill could come after the work is done
_EXAMPLES = """\
examples:
  semel demo                         the same as: semel demo handler
  semel demo handler --json
  semel demo pipeline --orders 5000
"""
_HANDLER = """\
examples:
  semel demo handler                 needs only: pip install semel
  semel demo handler --orders 1000
  semel demo handler --json          the figures, for scripts
"""
_PIPELINE = """\
examples:
  semel demo pipeline                needs: pip install 'semel[spark]'
  semel demo pipeline --orders 5000
  semel demo pipeline --keep ./demo  look at the file, the table and the logs
  semel demo pipeline --json         the audit, for scripts
"""
_CODES = """
exit codes:
  0    every order exactly once, and the audit adds up
  1    an order was lost or doubled, the audit does not add up, or a part of
       the demo did not start
  2    wrong usage
  130  interrupted
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="exactly once under fire: a faulty queue, killed workers, an audit",
        description="Work off a queue that misbehaves as SQS may, while processes are killed. Then\n"
        "compare what was sent with what was done.",
        usage="semel demo [-h] [COMMAND] ...",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=handler, orders=None, json=False)
    demos = parser.add_subparsers(title="commands", prog="semel demo", metavar="COMMAND")
    handler_parser = demos.add_parser(
        "handler",
        help="the loop from the tutorials beside a Semel handler; some seconds",
        description="The same faulty queue twice. The loop from the tutorials charges some orders\n"
        "twice. A Semel handler charges each order once, although its workers are killed.",
        epilog=_HANDLER + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(handler_parser, handler, "number of orders (default 300)")
    pipeline_parser = demos.add_parser(
        "pipeline",
        help="a Spark pipeline into a table, its driver killed; about a minute",
        description="A faulty queue, and a producer that sends some orders twice and some broken\n"
        "messages. A Spark pipeline writes each order once into a Parquet table. Its\n"
        "driver is killed with SIGKILL in the middle of the work, and started again.",
        epilog=_PIPELINE + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(pipeline_parser, pipeline, "number of orders (default 20,000)")
    pipeline_parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this folder, and keep it")


def _add_options(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], orders: str) -> None:
    parser.add_argument("--orders", type=int, metavar="N", help=orders)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    parser.set_defaults(run=run)


def handler(options: argparse.Namespace) -> int:
    from semel.demo import handler as demo

    orders = _orders(options, demo.ORDERS)
    return _report(options, lambda screen: demo.run(orders, screen=screen))


def pipeline(options: argparse.Namespace) -> int:
    from semel.demo import pipeline as demo

    orders = _orders(options, demo.ORDERS)
    demo.check_installation()
    if options.keep is not None:
        try:
            options.keep.mkdir(parents=True, exist_ok=True)
            if any(options.keep.iterdir()):
                raise UsageError(f"--keep {options.keep}: the folder is not empty; give a new one")
        except OSError as error:
            raise UsageError(f"--keep {options.keep}: {error.strerror}") from None
    return _report(options, lambda screen: demo.run(orders, folder=options.keep, screen=screen))


def _orders(options: argparse.Namespace, default: int) -> int:
    orders: int = default if options.orders is None else options.orders
    if orders < LEAST:
        raise UsageError(f"--orders must be at least {LEAST}, so that the kills hit unfinished work; it is {orders}")
    return orders


def _report(options: argparse.Namespace, run: Callable[[Screen], Result]) -> int:
    screen = Screen(quiet=options.json)
    try:
        result = run(screen)
    except KeyboardInterrupt:
        screen.clear()
        print("semel: interrupted; the demo has ended all its processes", file=sys.stderr)
        return 130
    finally:
        screen.clear()
    if options.json:
        print(json.dumps(result.plain()))
    for problem in result.problems:
        print(f"semel: {problem}", file=sys.stderr)
    return 1 if result.problems else 0

"""`semel demo`: the main job under fire, and its audit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  semel demo                        about a minute; needs the extra: pip install 'semel[spark]'
  semel demo --orders 5000
  semel demo --keep ./demo          leaves the pipeline's file, the table and the logs there
  semel demo --json                 the audit alone, for scripts

exit codes:
  0  lost 0, doubled 0
  1  something was lost or doubled, or a part could not start
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a faulty queue through Spark into a table, killed half-way; then the audit",
        description="A broker with faults, a careless producer, a pipeline into a Parquet table; its driver is killed "
        "with SIGKILL half-way and started again. Then what was sent is compared with what is in the table.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--orders", type=int, default=20_000, metavar="N", help="how many are sent (20,000)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here and leave everything")
    parser.add_argument("--json", action="store_true", help="print the audit as JSON and nothing else")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from semel.demo.run import run as run_demo

    if given.orders < 100:
        print("semel: --orders must be at least 100", file=sys.stderr)
        return 2
    return 0 if run_demo(given.orders, folder=given.keep, as_json=given.json).passed else 1

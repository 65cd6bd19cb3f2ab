"""The command `semel`: thin; each subcommand is one call into a package below.

Exit codes: 0 done, 1 the thing itself failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from semel.cli.errors import UsageError
from semel.errors import SemelError
from semel.version import __version__


class Parser(argparse.ArgumentParser):
    """No option goes by a part of its name: `--y` is not `--yes`. Subcommands are of this kind, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})


def build_parser() -> argparse.ArgumentParser:
    # Not before `main` is there to hear of a Ctrl-C.
    from semel.cli import alarms, audit, dashboard, demo, dlq, doctor, health, pipeline, run, top, workers
    from semel.cli import annotate as mark
    from semel.cli import broker as serve

    parser = Parser(
        prog="semel",
        description="Process every SQS message exactly once, in effect.",
        epilog="Example: semel serve --port 9324",
    )
    parser.add_argument("--version", action="version", version=f"semel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run.add_to(commands)
    serve.add_to(commands)
    health.add_to(commands)
    pipeline.add_to(commands)
    doctor.add_to(commands)
    alarms.add_to(commands)
    dlq.add_to(commands)
    audit.add_to(commands)
    mark.add_to(commands)
    dashboard.add_to(commands)
    top.add_to(commands)
    workers.add_to(commands)
    demo.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = build_parser().parse_args(arguments)
        code: int = options.run(options)
    except SemelError as error:
        print(f"semel: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        # `python -m` ends by the signal, whatever we return, if Ctrl-C came while a text was executed (as dataclasses
        # do when they are imported) and none was executed since.
        exec("")  # noqa: S102
        return 130
    return code

"""The command `semel`: thin; each subcommand is one call into a package below."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from semel.cli.command import ExitCode, Parser
from semel.errors import InvalidRequest, SemelError
from semel.version import __version__


def build_parser() -> Parser:
    # Not before `main` can handle a Ctrl-C.
    from semel.cli import (
        alarms,
        annotate,
        audit,
        broker,
        dashboard,
        demo,
        dlq,
        doctor,
        health,
        jobs,
        messages,
        pipeline,
        queues,
        run,
        top,
        workers,
    )

    parser = Parser(
        prog="semel",
        description="Process every SQS message exactly once, in effect.",
        epilog="Example: semel serve --port 9324",
    )
    parser.add_argument("--version", action="version", version=f"semel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for part in (
        run,
        broker,
        health,
        pipeline,
        doctor,
        alarms,
        queues,
        messages,
        dlq,
        jobs,
        audit,
        annotate,
        dashboard,
        top,
        workers,
        demo,
    ):
        part.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = build_parser().parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()
    except SemelError as error:
        print(f"semel: {error}", file=sys.stderr)
        return ExitCode.USAGE if isinstance(error, InvalidRequest) else ExitCode.FAILED
    except BrokenPipeError:
        # The reader of a pipe has closed it. Nothing may be written at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        # `python -m` ends by the signal, whatever we return, if Ctrl-C came while a text was executed (as dataclasses
        # do when they are imported) and none was executed since.
        exec("")  # noqa: S102
        return ExitCode.INTERRUPTED
    return code

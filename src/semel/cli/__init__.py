"""The command `semel`: a module for each command, each a thin layer over a package below."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from semel import signals
from semel.cli.command import ExitCode, RootParser
from semel.errors import InvalidRequest, SemelError
from semel.text import printable
from semel.version import __version__

# Modules with commands. `build_parser` imports them, so that `main` can handle a Ctrl-C meanwhile.
_SUBJECTS: Final = {
    "run": ("run", "pipeline", "workers", "broker"),
    "operate": ("queues", "messages", "dlq", "jobs", "dashboard", "top", "audit", "annotate"),
    "diagnose": ("doctor", "verify", "alarms"),
    "more": ("demo", "completion"),
}


def build_parser() -> RootParser:
    parser = RootParser(
        prog="semel",
        description="Process every SQS message exactly once, in effect.",
        epilog="examples:\n  semel broker --port 9324\n  semel run shop:app --endpoint-url http://127.0.0.1:9324\n\n"
        "`semel COMMAND --help` shows the options, examples and exit codes of a command.\n"
        "Most options have an environment variable, too: see docs/reference/options.md.",
    )
    parser.add_argument("--version", action="version", version=f"semel {__version__}", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for subject, modules in _SUBJECTS.items():
        with parser.subject(subject):
            for module in modules:
                import_module(f"semel.cli.{module}").add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    signals.received.clear()
    try:
        parser = build_parser()
        if "_ARGCOMPLETE" in os.environ:
            from semel.cli import completion

            completion.complete(parser)  # and exit
        options = parser.parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()
    except SemelError as error:
        print(f"semel: {printable(str(error))}", file=sys.stderr)  # it may contain text of a server
        return ExitCode.USAGE if isinstance(error, InvalidRequest) else ExitCode.FAILED
    except BrokenPipeError:
        # The reader has closed the pipe. Nothing may be written at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        # If Ctrl-C came during an `exec` (dataclasses call it when they are imported), `python -m` ends by the signal,
        # whatever we return, unless another `exec` has run since.
        exec("")  # noqa: S102
        return ExitCode.INTERRUPTED
    return ExitCode.INTERRUPTED if code == ExitCode.OK and signal.SIGINT in signals.received else code

"""`semel annotate`: record that something happened now, such as a deploy; charts show it."""

from __future__ import annotations

import argparse
from typing import Any

from semel.cli import options, output
from semel.cli.command import command
from semel.cli.service import open_records


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "annotate",
        _run,
        "add an annotation, such as a deploy, to all charts",
        description="Record that something happened now. Every chart of the dashboard shows it as a line.",
        examples="""
        semel annotate "deployed 1.4.2"
        semel annotate "bank is down" --dashboard http://127.0.0.1:9325
        """,
    )
    parser.add_argument("text", type=options.some_text, metavar="TEXT", help="what happened, in a few words")
    options.add_dashboard(parser)
    options.add_output(parser)


def _run(args: argparse.Namespace) -> int:
    annotation = open_records(args).annotate(args.text)
    where = f"  (at {args.dashboard})" if args.dashboard else ""
    output.show(
        args, annotation, lambda: f"{output.moment(annotation.at)} UTC  {output.one_line(annotation.text)}{where}"
    )
    return 0

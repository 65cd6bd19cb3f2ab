"""`semel mark`: write down that something happened now, such as a deploy; charts show it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from semel.cli import dlq_options as options
from semel.cli import dlq_text as text
from semel.cli.dlq_options import command


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "mark",
        _mark,
        options.places(aws=False),
        help="mark this moment, such as a deploy, on all charts",
        description="Write down that something happened now: a line on every chart of the dashboard.",
        examples='  semel mark "deployed 1.4.2"\n  semel mark "bank is down" --via http://127.0.0.1:9325',
    )
    parser.add_argument("text", metavar="TEXT", help="what happened, in a few words")


def _mark(given: argparse.Namespace) -> int:
    via = options.dashboard(given)
    if via:
        from semel.dlq.remote import RemoteDeadLetterService

        mark = RemoteDeadLetterService(via, given.token or "").annotate(given.text)
    else:
        from semel.dlq.audit import Audit, somebody
        from semel.state_folder import state_folder
        from semel.telemetry import annotation_log

        folder, who = state_folder(), somebody()
        mark = annotation_log.add(folder, given.text, who, time.time())
        Audit.at(folder).write(who, "mark", outcome="done", details={"text": mark.text})
    print(f"{text.moment(mark.at)} UTC  {text.plain(mark.text)}" + (f"  (at {via})" if via else ""))
    return 0

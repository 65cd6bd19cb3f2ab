"""`semel audit`: who did what to which queue, when, and what came of it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from semel.cli import dlq_options as options
from semel.cli import dlq_text as text
from semel.cli.dlq_options import command


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "audit",
        _audit,
        options.places(aws=False),
        help="who did what to which queue",
        description="The audit log of this user, or of a dashboard (--via), newest first.",
        examples="  semel audit\n  semel audit --where 'action = drop and age < 7d' --json\n"
        "  semel audit --where 'who ~ ann and queue = orders-dlq'",
        more="fields: who action queue where outcome job count at age\noperators: see semel dlq list --help\n",
    )
    parser.add_argument("--where", default="", metavar="FILTER", help="only those that match")
    parser.add_argument("--limit", type=options.at_least(1), default=50, metavar="N", help="show so many (50)")
    parser.add_argument("--json", action="store_true", help="as JSON lines")


def _audit(given: argparse.Namespace) -> int:
    via = options.dashboard(given)
    if via:
        from semel.dlq.remote import RemoteDeadLetterService

        found = RemoteDeadLetterService(via, given.token or "").audit_entries(given.where, given.limit)
    else:
        from semel.dlq.audit import Audit
        from semel.state_folder import state_folder

        found = list(Audit.at(state_folder()).entries(given.where, given.limit))
    if given.json:
        for entry in found:
            print(json.dumps(asdict(entry), ensure_ascii=False))
    else:
        print(text.audit(found))
    return 0

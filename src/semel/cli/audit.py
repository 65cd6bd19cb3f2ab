"""`semel audit`: who did what to which queue, when, and with which outcome."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.cli import options, output
from semel.cli.command import command, option
from semel.cli.service import open_records

if TYPE_CHECKING:
    from semel.dlq.audit import AuditEntry


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "audit",
        _run,
        "show who did what to which queue",
        description="""Show the audit log of this user, or of a dashboard (--dashboard), newest first. An action is
        in the log before it begins, and again when it has ended.""",
        examples="""
        semel audit
        semel audit --where 'action = delete and age < 7d' --output jsonl
        semel audit --where 'who ~ ann and queue = orders-dlq'
        """,
        notes="""
        fields:     who action queue where outcome job count at age
        operators:  see semel dlq list --help
        """,
    )
    option(parser, "--where FILTER", "only entries that match", env="never", default="", type=str)
    option(parser, "--limit N", "maximum number of entries", type=options.at_least(1), default=50)
    options.add_dashboard(parser)
    options.add_output(parser)


def _run(args: argparse.Namespace) -> int:
    entries = open_records(args).audit_entries(args.where, args.limit)
    output.show(args, entries, lambda: _table(entries))
    return 0


def _table(entries: Sequence[AuditEntry]) -> str:
    if not entries:
        return "the audit log has no such entries"
    rows = []
    for entry in entries:
        details = [f"{name}={value}" for name, value in entry.details.items()]
        where = [f"where {entry.where}"] if entry.where else []
        rows.append(
            (
                output.moment(entry.at),
                entry.who,
                entry.action,
                entry.queue,
                "" if entry.count is None else f"{entry.count:,}",
                "; ".join([entry.outcome, *where, *details]),
            )
        )
    return output.table(
        ("TIME (UTC)", "WHO", "ACTION", "QUEUE", "COUNT", "OUTCOME"), rows, right=("COUNT",), optional=("COUNT",)
    )

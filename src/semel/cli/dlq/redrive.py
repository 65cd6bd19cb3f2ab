"""`semel dlq redrive`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from semel.cli import options, output
from semel.cli.command import ExitCode, command, option
from semel.cli.dlq import selection
from semel.cli.job_display import finish
from semel.cli.service import add_places, open_service


def add_to(actions: Any) -> None:
    parser = command(
        actions,
        "redrive",
        _redrive,
        "send messages back to their source queue, once",
        description="""Send messages back to the queue that each came from, with the same key, so that finished work is
        not done again. A message is sent before it is deleted, so a crash loses nothing: run the command again. The
        first messages are canaries; the rest follows only if those succeed.""",
        examples="""
        semel dlq redrive orders-dlq --all --dry-run
        semel dlq redrive orders-dlq --where 'error ~ timeout' --canary 5 --rate 50
        semel dlq redrive orders-dlq --id 6d2f0c1a-… --to orders-slow
        semel dlq redrive orders-dlq --all --no-canary --limit 100 --stop-after 1
        """,
        notes=selection.FILTERS,
        codes={
            ExitCode.STOPPED: "stopped by the canary or by --stop-after, or cancelled elsewhere; the rest stays in "
            "the queue",
            ExitCode.INTERRUPTED: "cancelled with Ctrl-C; claimed messages are released",
        },
    )
    options.add_queue(parser)
    selection.add_selection(parser, limit=True)
    _add_ways(parser.add_argument_group("how"))
    options.add(parser, "--receive")
    add_places(parser)
    options.add(parser, "--quiet")
    options.add_output(parser)


def _add_ways(group: Any) -> None:
    # The defaults are those of RedrivePlan, which takes too long to import for `semel --help`.
    option(group, "--to QUEUE", "send all messages to this queue (default: each to its source queue)", env="never")
    option(group, "--dry-run", "count the matching messages and change nothing")
    option(group, "--rate N", "maximum number of messages a second", type=options.rate)
    canary = group.add_mutually_exclusive_group()
    option(
        canary,
        "--canary N",
        "send N messages first, and the rest only if those succeed",
        type=options.at_least(1),
        default=3,
    )
    option(
        canary, "--no-canary", "send all messages at once", env="never", dest="canary", action="store_const", const=0
    )
    option(
        group,
        "--canary-wait TIME",
        "how long to wait for the canary messages to finish (default: from the queue's visibility timeout)",
        type=options.duration,
    )
    option(
        group,
        "--stop-after N",
        "stop when N messages have returned to the dead-letter queue; 0: never (default: 10, or 5 %% of those "
        "sent if that is more)",
        type=options.at_least(0),
    )
    options.add_ledger(group)
    option(
        group,
        "--engine ENGINE",
        "stream: Semel moves the messages; sqs-move: SQS's own task, with --all, --no-canary and --rate only, which "
        "does not stop when messages return",
        choices=("stream", "sqs-move"),
        default="stream",
    )
    option(group, "--threads N", "number of threads that send", type=options.at_least(1), default=16)


def _redrive(args: argparse.Namespace) -> int:
    from semel.dlq.filter import parser as filters
    from semel.dlq.redrive.plan import Engine, RedrivePlan

    filters.parse(args.where or "")
    plan = RedrivePlan(
        queue=args.queue,
        where=args.where or "",
        ids=tuple(args.id or ()),
        all=args.all,
        any_queue=args.any_queue,
        limit=args.limit,
        to=args.to or "",
        rate=args.rate,
        dry_run=args.dry_run,
        canary=args.canary,
        canary_wait=args.canary_wait,
        stop_after_failures=args.stop_after,
        engine=Engine(args.engine),
        threads=args.threads,
    )
    with open_service(args) as service:
        info = selection.dead_letter_queue(service, args)
        if not args.quiet:
            to = f" to {args.to}" if args.to else ""
            print(f"redrive {output.one_line(selection.described(info, args) + to)}", file=sys.stderr)
            print(f"  at {service.address(info)}", file=sys.stderr)
        return finish(service, service.redrive(plan, receive=args.receive), args)

"""`semel dlq delete` and `restore`: messages are deleted only after they are in a snapshot, which can be restored."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import confirmation, options, output
from semel.cli.command import ExitCode, UsageError, command, option
from semel.cli.dlq import selection
from semel.cli.dlq.listings import group_table
from semel.cli.job_display import finish
from semel.cli.service import add_places, open_service

if TYPE_CHECKING:
    from semel.dlq.messages import DeadLetterQueue, Impact

_CODES: Final = {
    ExitCode.STOPPED: "cancelled elsewhere; the rest stays where it is",
    ExitCode.INTERRUPTED: "cancelled with Ctrl-C; claimed messages are released",
}
_GROUPS: Final = 5


def add_to(actions: Any) -> None:
    _add_delete(actions)
    _add_restore(actions)


def _add_delete(actions: Any) -> None:
    parser = command(
        actions,
        "delete",
        _delete,
        "delete messages, after a snapshot",
        description="""Delete messages. The command first shows the errors and the number of messages, and asks for the
        queue's name; only the messages that it counted are deleted. Every message is in a snapshot on disk before it
        is deleted: semel dlq restore sends it back.""",
        examples="""
        semel dlq delete orders-dlq --where 'age > 7d'
        semel dlq delete orders-dlq --where 'age > 7d' --yes --snapshot old.jsonl
        """,
        notes=selection.FILTERS,
        codes={ExitCode.FAILED: "failed, or not confirmed", **_CODES},
    )
    options.add_queue(parser)
    selection.add_selection(parser)
    option(
        parser,
        "--snapshot FILE",
        "the snapshot's file (default: a new one in the state folder)",
        type=_file,
    )
    options.add(parser, "--yes", "--receive")
    add_places(parser)
    options.add(parser, "--quiet")
    options.add_output(parser)


def _file(name: str) -> Path:
    return Path(options.some_text(name))


def _delete(args: argparse.Namespace) -> int:
    confirmation.check_terminal(args, "delete")
    selected = selection.selection(args) | {"receive": args.receive}
    with open_service(args) as service:
        info = selection.dead_letter_queue(service, args)
        address = service.address(info)
        impact: Impact | None = None
        if not args.yes or service.remote:
            impact = service.impact(args.queue, **selected)
            if not impact.count:
                print(f"none of the {impact.scanned:,} messages in {info.name} match; nothing was deleted")
                return ExitCode.OK
        if args.yes or impact is None:
            if not args.quiet:
                which = (
                    selection.described(info, args)
                    if impact is None
                    else f"{output.count(impact.count, 'message')} in {info.name}"
                )
                print(f"delete {output.one_line(which)}\n  at {address}", file=sys.stderr)
        else:
            _show_impact(impact, info, address)
            if not confirmation.typed(info.name, "delete them"):
                return ExitCode.FAILED
        shown = None if impact is None else impact.shown
        job = service.delete(args.queue, snapshot=args.snapshot, shown=shown, any_queue=args.any_queue, **selected)
        code = finish(service, job, args)
        if impact is not None and not impact.complete:
            output.notes("not all messages of the queue were read; those that were not are still there")
        return code


def _show_impact(impact: Impact, info: DeadLetterQueue, address: str) -> None:
    now = time.time()
    print(group_table(impact.groups[:_GROUPS], now))
    if len(impact.groups) > _GROUPS:
        print(f"and {len(impact.groups) - _GROUPS} more errors")
    oldest, newest = (output.duration(now - (at or now)) for at in (impact.oldest, impact.newest))
    print(f"\ndelete {output.count(impact.count, 'message')} in {info.name}, {newest} to {oldest} old")
    print(f"  at {address}")
    if not impact.complete:
        print("  not all messages of the queue could be read: those that were not stay")
    output.notes(*impact.notes, str(impact.cost))


def _add_restore(actions: Any) -> None:
    parser = command(
        actions,
        "restore",
        _restore,
        "send the messages of a snapshot or export back",
        description="""Send the messages of a snapshot or an export back into their dead-letter queue, with their keys
        and attributes. A second run sends only what the first did not.""",
        examples="semel dlq restore old.jsonl\nsemel dlq restore messages.jsonl --to orders-dlq",
        codes=_CODES,
    )
    parser.add_argument("file", type=options.some_text, metavar="FILE", help="a file that `delete` or `export` wrote")
    option(parser, "--to QUEUE", "send all messages to this queue (default: the queue that each was in)", env="never")
    add_places(parser)
    options.add(parser, "--quiet")
    options.add_output(parser)


def _restore(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with open_service(args) as service:
        if not args.quiet:
            for name, count in _queues_in(path, args.to or "").items():
                print(f"restore {output.count(count, 'message')} into {output.one_line(name)}", file=sys.stderr)
                print(f"  at {service.address(service.queue(name))}", file=sys.stderr)
        return finish(service, service.restore(path, args.to or ""), args)


def _queues_in(path: Path, to: str) -> Counter[str]:
    from semel.dlq import snapshots

    return Counter(to or message.queue for message in snapshots.messages_in(path))

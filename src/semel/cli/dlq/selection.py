"""Which messages a command is about, and the queue that they are in."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options
from semel.cli.command import UsageError, option
from semel.text import count

if TYPE_CHECKING:
    from semel.cli.service import Service
    from semel.dlq.messages import DeadLetterQueue

FILTERS: Final = """\
filters (--where):
  error ~ timeout               contains, in any case; also ~ /time(d )?out/i
  error ~ "timed out" and age > 2h and not (receives >= 5 or attr.tenant = acme)
  $.order.total > 100           a field of a JSON body
  sent >= 2026-11-01T10:00Z     also -2h; expires < +6h
  fields:     error reason fingerprint key id queue group body state age
              receives attempts redrives size sent first_received expires
              attr.NAME $.json.path
  operators:  = != < <= > >= ~ in (a, b) exists; and or not ( )
"""


def add_filter(parser: Any) -> None:
    """For commands that only read."""
    option(
        parser,
        "--where FILTER",
        'only messages that match, such as: error ~ "timeout" and age > 2h',
        env="never",
        default="",
        type=str,
    )
    options.add(parser, "--max-receive N")


def add_selection(parser: argparse.ArgumentParser, *, limit: bool = False) -> None:
    """For commands that act: exactly one of --where, --id, --all."""
    group = parser.add_argument_group("messages (one of --where, --id, --all)")
    choice = group.add_mutually_exclusive_group(required=True)
    option(choice, "--where FILTER", "messages that match the filter", env="never")
    option(choice, "--id ID", "the message with this id; may be repeated", env="never", type=_ids, action="extend")
    option(choice, "--all", "all messages of the queue", env="never")
    if limit:
        option(group, "--limit N", "of these, the first N only", env="never", type=options.at_least(1))
    else:
        options.add(group, "--max-receive N")
    options.add(group, "--any-queue")


def _ids(text: str) -> list[str]:
    """`A`, or `A,B`."""
    ids = text.split(",")
    if not all(id.strip() for id in ids):
        raise argparse.ArgumentTypeError(f"{text!r} names no message; is a variable unset?")
    return [id.strip() for id in ids]


def selection(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the service's methods."""
    return {"where": args.where, "ids": args.id, "all": args.all}


def described(info: DeadLetterQueue, args: argparse.Namespace) -> str:
    """Which messages, as far as that is known before they are read."""
    if args.id:
        text = f"{len(args.id):,} by id, of {count(info.depth, 'message')} in {info.name}"
    elif args.where:
        text = f"messages that match, of {info.depth:,} in {info.name}"
    else:
        text = f"all {count(info.depth, 'message')} in {info.name}"
    return f"{text}, {args.limit:,} at most" if getattr(args, "limit", None) else text


def dead_letter_queue(service: Service, args: argparse.Namespace) -> DeadLetterQueue:
    """The queue, if it is some queue's dead-letter queue or --any-queue is given."""
    from semel.dlq.queues import not_dead_letter_queue

    info = service.queue(args.queue)
    if not info.sources and not args.any_queue:
        raise UsageError(f"{not_dead_letter_queue(info.name)}; add --any-queue if that is what you want")
    return info

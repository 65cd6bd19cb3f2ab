"""What the commands for dead letters have in common: where the queues are, and which letters are meant."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options
from semel.cli.errors import UsageError
from semel.durations import seconds
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.messages import DeadLetterQueue, ReceiveCost
    from semel.dlq.remote import RemoteDeadLetterService
    from semel.dlq.service import DeadLetterService

    AnyService = DeadLetterService | RemoteDeadLetterService

FAILED: Final = 1
USAGE: Final = 2
ALARM: Final = 3
CANARY: Final = 4
INTERRUPTED: Final = 130
_AWS: Final = ("endpoint_url", "region", "profile")
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


_CODES = """\
exit codes:
  0  done
  1  failed, or stopped on the way (the reason is on standard error)
  2  wrong usage
"""


def places(*, aws: bool = True) -> argparse.ArgumentParser:
    """A parent for parsers: where the queues are, or, without `aws`, whose records are meant."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("where")
    if aws:
        options.add_aws(group)
    unless = ", unless one of the three above is given" if aws else ""
    group.add_argument(
        "--via",
        type=options.http_url,
        metavar="URL",
        help=f"through a running dashboard instead (default: $SEMEL_DASHBOARD{unless})",
    )
    group.add_argument("--token", default=os.environ.get("SEMEL_TOKEN"), help="the dashboard's token ($SEMEL_TOKEN)")
    return parent


def dashboard(given: argparse.Namespace) -> str | None:
    """The dashboard to go through: what was said counts, and the variable only where nothing was said."""
    said = [f"--{name.replace('_', '-')}" for name in _AWS if getattr(given, name, None)]
    if said and given.via:
        raise UsageError(f"{said[0]} and --via exclude each other: a dashboard has its own endpoint; leave one out")
    if given.via or said:
        return given.via or None
    url = os.environ.get("SEMEL_DASHBOARD")
    if not url:
        return None
    try:
        return options.http_url(url)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"SEMEL_DASHBOARD: {error}") from None


def looking() -> argparse.ArgumentParser:
    """A parent for parsers: which letters are shown, and how far to look where looking means receiving."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("which")
    group.add_argument("--where", default="", metavar="FILTER", help='for example: error ~ "timeout" and age > 2h')
    _add_most(group)
    return parent


def add_selection(parser: argparse.ArgumentParser, *, limit: bool = False) -> None:
    """Which letters an action is about: exactly one way of saying it."""
    group = parser.add_argument_group("which (one of --where, --id, --all)")
    one = group.add_mutually_exclusive_group(required=True)
    one.add_argument("--where", type=options.some_text, metavar="FILTER", help="messages that match the filter")
    one.add_argument("--id", type=_ids, action="extend", metavar="ID", help="this message id; may be repeated")
    one.add_argument("--all", action="store_true", help="all messages of the queue")
    if limit:
        group.add_argument("--limit", type=at_least(1), metavar="N", help="of these, at most so many")
    else:
        _add_most(group)
    add_any_queue(group)


def _add_most(group: Any) -> None:
    group.add_argument(
        "--most", type=at_least(1), default=1_000, metavar="N", help="on SQS: receive at most so many to look (1,000)"
    )


def add_any_queue(parser: Any) -> None:
    parser.add_argument(
        "--any-queue", action="store_true", help="also if QUEUE is not the dead-letter queue of any queue"
    )


def add_receive(parser: Any) -> None:
    parser.add_argument(
        "--receive", action="store_true", help="on SQS: look even where each receive may move messages on"
    )


def selection(given: argparse.Namespace) -> dict[str, Any]:
    """Which letters are meant, by the names that the desk has for it."""
    return {"where": given.where, "ids": given.id, "all": given.all}


def dead_letter_queue(service: AnyService, given: argparse.Namespace) -> DeadLetterQueue:
    """The queue that is named, if it is some queue's dead-letter queue, or meant all the same."""
    from semel.dlq.queues import not_dead_letter_queue

    info = service.queue(given.queue)
    if not info.sources and not given.any_queue:
        raise UsageError(f"{not_dead_letter_queue(info.name)}; add --any-queue if it is meant all the same")
    return info


def at_least(least: int) -> Any:
    def number(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least}")
        return value

    return number


def span(text: str) -> float:
    """A duration above zero; a bare number is seconds."""
    try:
        found = seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except SemelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError("it must be above 0")
    return found


def _ids(text: str) -> list[str]:
    """`A`, or `A,B`."""
    found = text.split(",")
    if not all(one.strip() for one in found):
        raise argparse.ArgumentTypeError(f"{text!r} names no message; is a variable unset?")
    return [one.strip() for one in found]


@contextlib.contextmanager
def service(given: argparse.Namespace) -> Iterator[AnyService]:
    """The desk for these options, until the end of the block."""
    via = dashboard(given)
    if via:
        from semel.dlq.remote import RemoteDeadLetterService

        if getattr(given, "ledger", None):
            raise UsageError("--ledger is not for --via: the dashboard has its own")
        yield RemoteDeadLetterService(via, given.token or "")
        return
    from semel.dlq.service import DeadLetterService

    with contextlib.ExitStack() as stack:
        ledger = None
        if getattr(given, "ledger", None):
            from semel.ledger.connect import connect

            ledger = stack.enter_context(contextlib.closing(connect(given.ledger)))
        client = stack.enter_context(options.client(given))
        yield DeadLetterService(client, ledger=ledger, max_receive=getattr(given, "most", 1_000))


def command(
    actions: Any, name: str, run: Callable[[argparse.Namespace], int], *parents: Any, **words: str
) -> argparse.ArgumentParser:
    """A subcommand whose mistakes have an exit code of their own."""
    description, examples = words["description"], words["examples"]
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=words["help"],
        description=textwrap.fill(description, 78),
        epilog="\n".join((f"examples:\n{examples}\n", words.get("codes", _CODES), words.get("more", ""))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=list(parents),
    )

    def checked(given: argparse.Namespace) -> int:
        from semel.dlq.access import PeekRisk
        from semel.dlq.filter.parser import FilterError
        from semel.dlq.redrive.plan import PlanError
        from semel.dlq.selection import SelectionError

        try:
            return run(given)
        except (UsageError, FilterError, PlanError, SelectionError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return USAGE
        except PeekRisk as error:
            print(f"{parser.prog}: {error}; --receive accepts that", file=sys.stderr)
            return FAILED
        except SemelError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return FAILED
        except BrokenPipeError:  # whoever read it has seen enough
            sys.stderr.close()
            return 0

    parser.set_defaults(run=checked)
    return parser


def printed(content: Any) -> None:
    # On a terminal nothing of a message may steer it; elsewhere it is read as it is.
    print(json.dumps(content, indent=2, ensure_ascii=sys.stdout.isatty()))


def tell_cost(cost: ReceiveCost, notes: tuple[str, ...]) -> None:
    for line in (*notes, str(cost)):
        if line:
            print(f"note: {line}", file=sys.stderr)

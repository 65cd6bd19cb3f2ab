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
from semel.consumer.backoff import seconds
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.answers import Cost
    from semel.dlq.desk import Desk
    from semel.dlq.remote import RemoteDesk

    AnyDesk = Desk | RemoteDesk

FAILED: Final = 1
USAGE: Final = 2
ALARM: Final = 3
CANARY: Final = 4
INTERRUPTED: Final = 130
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


def places() -> argparse.ArgumentParser:
    """A parent for parsers: where the queues are."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("where")
    options.add_aws(group)
    group.add_argument(
        "--via",
        type=options.http_url,
        metavar="URL",
        default=os.environ.get("SEMEL_DASHBOARD"),
        help="through a running dashboard instead ($SEMEL_DASHBOARD)",
    )
    group.add_argument("--token", default=os.environ.get("SEMEL_TOKEN"), help="the dashboard's token ($SEMEL_TOKEN)")
    return parent


def looking() -> argparse.ArgumentParser:
    """A parent for parsers: which letters, and how far to look where looking means receiving."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("which")
    group.add_argument("--where", default="", metavar="FILTER", help='for example: error ~ "timeout" and age > 2h')
    group.add_argument(
        "--most", type=at_least(1), default=1_000, metavar="N", help="on SQS: receive at most so many to look (1,000)"
    )
    return parent


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


def many(given: argparse.Namespace) -> tuple[str, ...]:
    """`--id A --id B,C`."""
    return tuple(one for text in getattr(given, "id", None) or () for one in text.split(",") if one)


@contextlib.contextmanager
def desk(given: argparse.Namespace, *, accept_risk: bool = False) -> Iterator[AnyDesk]:
    """The desk for these options, until the end of the block."""
    if given.via:
        from semel.dlq.remote import RemoteDesk

        if getattr(given, "ledger", None):
            raise UsageError("--ledger is not for --via: the dashboard has its own")
        yield RemoteDesk(given.via, given.token or "")
        return
    from semel.dlq.desk import Desk

    with contextlib.ExitStack() as stack:
        ledger = None
        if getattr(given, "ledger", None):
            from semel.ledger.connecting import connect

            ledger = stack.enter_context(contextlib.closing(connect(given.ledger)))
        client = stack.enter_context(options.client(given))
        risk = accept_risk or bool(getattr(given, "yes", False))
        yield Desk(client, ledger=ledger, accept_risk=risk, most=getattr(given, "most", 1_000))


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
        from semel.dlq.filters import FilterError
        from semel.dlq.plan import PlanError

        try:
            return run(given)
        except (UsageError, FilterError, PlanError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return USAGE
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


def tell_cost(cost: Cost, notes: tuple[str, ...]) -> None:
    for line in (*notes, str(cost)):
        if line:
            print(f"note: {line}", file=sys.stderr)

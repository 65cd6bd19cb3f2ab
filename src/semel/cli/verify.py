"""`semel verify`: what a history of sends, deliveries, effects and deletes shows, of any system."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, option, wrong_usage
from semel.cli.progress import Progress

if TYPE_CHECKING:
    from semel.verify.history import EventKind
    from semel.verify.report import HistoryReport

_EFFECTS = ("exactly-once", "at-least-once")
_DELETE_AFTER = ("effect", "record")


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "verify",
        run,
        "check a history: what was lost, doubled, reordered",
        description="""Check a history of sends, deliveries, effects and deletes, of Semel or of any other system:
        which messages were lost, doubled, reordered, deleted too early, or done by two workers; with the evidence.
        A history is JSON lines (also .gz), Parquet, or Semel's attempt log; files or folders, merged by time.""",
        examples="""
            semel verify history.jsonl
            semel verify sends.jsonl.gz effects.parquet --grace 5m
            semel verify app.log --map id=.MessageId,key=.order.id,time=.ts,event=.what \\
                                 --events send=published,effect=charged
            semel verify send=orders.jsonl effect=charges.parquet --map key=.order_id
            semel verify attempts --effects at-least-once --output json
        """,
        notes="""
            events:  send deliver claim effect record delete dead_letter refuse present
            fields:  id key event time queue group sequence worker fence detail
            Without --map, a line has the event in `kind`, the id in `message`, and the
            rest in fields of these names.
        """,
        codes={
            ExitCode.OK: "nothing was found, and every line could be read",
            ExitCode.FAILED: "could not check: no such file, or no event in it; the reason is on standard error",
            ExitCode.FOUND: "something was found, or a line could not be read",
        },
    )
    parser.add_argument(
        "history",
        nargs="+",
        type=options.some_text,
        metavar="HISTORY",
        help="file or folder, or - for standard input; KIND=PATH says that all lines there are events of that kind",
    )
    option(parser, "--map FIELDS", "fields of your own JSON lines, such as id=.msg.id,time=.ts", type=str)
    option(parser, "--events WORDS", "your words for events, such as send=published,effect=charged|shipped", type=str)
    option(
        parser,
        "--effects",
        "how often the effect of a key may happen",
        choices=_EFFECTS,
        default=_EFFECTS[0],
    )
    option(
        parser,
        "--delete-after",
        "what must come before a delete: an effect or a record, or always a record",
        choices=_DELETE_AFTER,
        default=_DELETE_AFTER[0],
    )
    option(
        parser,
        "--logged KINDS",
        "kinds of events that are always logged, so that a missing one did not happen, such as send,effect,delete, "
        "or all (default: those that the history has)",
        type=_kinds,
    )
    option(
        parser,
        "--grace TIME",
        "messages sent less than this before the end of the history may still be on their way, and are not lost",
        type=options.duration,
    )
    option(parser, "--limit N", "maximum number of findings of each kind", type=options.at_least(1), default=20)
    options.add_output(parser)
    options.add(parser, "--quiet")


def run(args: argparse.Namespace) -> int:
    from semel.verify import mapping
    from semel.verify.report import HistoryRequest, verify

    if args.history.count("-") > 1:
        raise UsageError("standard input (-) can be read once")
    with wrong_usage():
        mapping.parse(args.map, args.events)
    request = HistoryRequest(
        tuple(args.history),
        fields=args.map,
        words=args.events,
        effects=args.effects,
        delete_after=args.delete_after,
        logged=args.logged,
        grace=args.grace or 0.0,
        limit=args.limit,
    )
    with Progress("semel verify", quiet=args.quiet or not sys.stderr.isatty()) as progress:
        report = verify(request, lambda lines, percent: progress.update(_read_so_far(lines, percent)))
    _show(args, report)
    return ExitCode.OK if report.ok else ExitCode.FOUND


def _read_so_far(lines: int, percent: int | None) -> str:
    return f"{lines:,} lines read" if percent is None else f"{lines:,} lines read, {percent} %"


def _show(args: argparse.Namespace, report: HistoryReport) -> None:
    if args.output == "table":
        from semel.verify.text_report import report_text

        print(report_text(report, limit=args.limit, width=output.width()))
        return
    content = report.to_json()
    if args.output == "jsonl":  # a line for each finding, then one for the rest
        findings = content.pop("findings")
        output.print_json([*findings, content], "jsonl")
    else:
        output.print_json(content, "json")


def _kinds(text: str) -> tuple[EventKind, ...]:
    from semel.verify.history import EventKind

    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return tuple(EventKind)
    unknown = [word for word in words if word not in tuple(EventKind)]
    if unknown or not words:
        what = f"{unknown[0]!r} is no event" if unknown else "no event is named"
        raise argparse.ArgumentTypeError(f"{what}; there are {', '.join(EventKind)}, or all")
    return tuple(EventKind(word) for word in words)

"""`semel dlq queues`, `list`, `groups`, `show` and `export`: the commands that change nothing."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.cli import options, output
from semel.cli.command import UsageError, command, option
from semel.cli.dlq import selection
from semel.cli.service import add_places, open_service
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.cli.service import Service
    from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue, ErrorGroup


def add_to(actions: Any) -> None:
    _add_queues(actions)
    _add_list(actions)
    _add_groups(actions)
    _add_show(actions)
    _add_export(actions)


def _add_queues(actions: Any) -> None:
    parser = command(
        actions,
        "queues",
        _queues,
        "list dead-letter queues: depth, age, first expiry, sources",
        description="""List all dead-letter queues. OLDEST and EXPIRES IN are known on Semel's broker (~: from the
        first 1,000 messages). On SQS messages must be received for that (--sample).""",
        examples="semel dlq queues\nsemel dlq queues --output json\nsemel dlq queues --sample",
    )
    option(parser, "--sample", "on SQS: receive up to ten messages of each queue to know their age")
    options.add(parser, "--receive")
    add_places(parser)
    options.add_output(parser)


def _queues(args: argparse.Namespace) -> int:
    now = time.time()
    with open_service(args) as service:
        queues = service.queues()
        if args.sample:
            queues = [sampled(service, info, now, args.receive) for info in queues]
    output.show(args, queues, lambda: _queue_table(queues, now))
    return 0


def sampled(service: Service, info: DeadLetterQueue, now: float, receive: bool) -> DeadLetterQueue:
    """Adds the ages if they are not known yet. Up to ten messages are received for that."""
    from semel.dlq.access import PeekRisk
    from semel.dlq.queues import estimated

    if not info.depth or info.oldest_age is not None:
        return info
    try:
        page = service.messages(info.name, limit=10, receive=receive)
    except PeekRisk as error:
        output.notes(f"{error}; --receive accepts that")
        return info
    output.notes(f"{info.name}: {page.cost}" if str(page.cost) else "")
    return estimated(info, page.messages, now)


def _queue_table(queues: Sequence[DeadLetterQueue], now: float) -> str:
    if not queues:
        return (
            "there are no dead-letter queues here\n"
            "create a queue with one: semel queues create NAME --dlq\n"
            "add one to a queue: run its app once with --create-dlq"
        )
    rows = []
    for info in queues:
        about = "~" if info.estimated else ""
        expires = None if info.first_expires is None else info.first_expires - now
        unknown = "?" if info.depth else "-"
        rows.append(
            (
                info.name,
                f"{info.depth:,}",
                f"{info.in_flight:,}",
                unknown if info.oldest_age is None else f"{about}{output.duration(info.oldest_age)}",
                unknown if expires is None else f"{about}{output.duration(expires)}",
                info.error or ", ".join(info.sources) or "(none)",
            )
        )
    heads = ("QUEUE", "MESSAGES", "IN FLIGHT", "OLDEST", "EXPIRES IN", "SOURCES")
    return output.table(heads, rows, right=heads[1:5], optional=("IN FLIGHT", "OLDEST"))


def _add_list(actions: Any) -> None:
    parser = command(
        actions,
        "list",
        _list,
        "list messages",
        description="""List the messages of a dead-letter queue, oldest first where the endpoint has an order. On
        SQS reading a message means receiving it; messages are released at once, and the cost is printed.""",
        examples="""
        semel dlq list orders-dlq
        semel dlq list orders-dlq --where 'error ~ timeout and age > 2h'
        semel dlq list orders-dlq --where 'fingerprint = 5c1fd0a9e2' --limit 20
        """,
        notes=selection.FILTERS,
    )
    options.add_queue(parser)
    selection.add_filter(parser)
    add_page(parser)
    add_places(parser)
    options.add_output(parser)


def add_page(parser: Any) -> None:
    option(parser, "--limit N", "maximum number of messages", type=options.at_least(1), default=50)
    option(parser, "--after PLACE", "continue where an earlier list ended (its `next`)", env="never", type=str)
    option(parser, "--bodies", "with json and jsonl: whole bodies")
    options.add(parser, "--receive")


def _list(args: argparse.Namespace) -> int:
    return show_messages(args, dead_letters=True)


def show_messages(args: argparse.Namespace, *, dead_letters: bool) -> int:
    """A page of messages of any queue."""
    now = time.time()
    with open_service(args) as service:
        page = service.messages(
            args.queue, args.where, args.limit, args.after, bodies=args.bodies, receive=args.receive
        )
    if args.output != "table":
        output.print_json(page if args.output == "json" else page.messages, args.output)
    elif page.messages:
        print(_message_table(page.messages, now) if dead_letters else body_table(page.messages, now))
        if page.next:
            print(f"\nmore: --after {page.next}, or a larger --limit")
    else:
        print(_none(args.queue, page.scanned))
    output.notes(*page.notes, str(page.cost))
    return 0


def _none(queue: str, scanned: int) -> str:
    if scanned:
        return f"none of the {output.count(scanned, 'message')} in {queue} match"
    return f"the queue {queue} has no messages to show"


def _message_table(messages: Sequence[DeadLetterMessage], now: float) -> str:
    rows = [
        (
            message.id,
            output.duration(now - message.sent) if message.sent else "?",
            str(message.receives),
            message.key or "-",
            message.source or "?",
            message.why[:300],
        )
        for message in messages
    ]
    heads = ("ID", "AGE", "RECEIVES", "KEY", "SOURCE", "ERROR")
    return output.table(heads, rows, right=("AGE", "RECEIVES"), optional=("SOURCE", "RECEIVES", "KEY"))


def body_table(messages: Sequence[DeadLetterMessage], now: float) -> str:
    rows = [
        (
            message.id,
            output.duration(now - message.sent) if message.sent else "?",
            str(message.receives),
            message.state.replace("_", " ") or "received",
            output.size(message.body_bytes),
            message.body[:300],
        )
        for message in messages
    ]
    heads = ("ID", "AGE", "RECEIVES", "STATE", "SIZE", "BODY")
    return output.table(heads, rows, right=("AGE", "RECEIVES", "SIZE"), optional=("SIZE", "RECEIVES", "STATE"))


def _add_groups(actions: Any) -> None:
    parser = command(
        actions,
        "groups",
        _groups,
        "group messages by error",
        description="""Count the messages of a dead-letter queue by error. Errors that differ only in numbers, ids and
        quoted text are one group.""",
        examples="semel dlq groups orders-dlq\nsemel dlq groups orders-dlq --where 'age < 1d' --output json",
        notes=selection.FILTERS,
    )
    options.add_queue(parser)
    selection.add_filter(parser)
    options.add(parser, "--receive")
    add_places(parser)
    options.add_output(parser)


def _groups(args: argparse.Namespace) -> int:
    now = time.time()
    with open_service(args) as service:
        grouped = service.groups(args.queue, args.where, receive=args.receive)
    if args.output != "table":
        output.print_json(grouped if args.output == "json" else grouped.groups, args.output)
    elif grouped.groups:
        print(group_table(grouped.groups, now))
        print(
            f"\n{grouped.matched:,} of {output.count(grouped.scanned, 'message')}, "
            f"{output.count(len(grouped.groups), 'error')}"
        )
        print(f"one group:  semel dlq list {args.queue} --where '{grouped.groups[0].where}'")
    else:
        print(_none(args.queue, grouped.scanned))
    output.notes(*grouped.notes, str(grouped.cost))
    return 0


def group_table(groups: Sequence[ErrorGroup], now: float) -> str:
    rows = [
        (
            f"{group.count:,}",
            f"{output.duration(now - group.first)} ago",
            f"{output.duration(now - group.last)} ago",
            group.fingerprint,
            group.shape,
        )
        for group in groups
    ]
    heads = ("COUNT", "FIRST SENT", "LAST SENT", "FINGERPRINT", "ERROR")
    return output.table(heads, rows, right=heads[:3], optional=("FIRST SENT",))


def _add_show(actions: Any) -> None:
    parser = command(
        actions,
        "show",
        _show,
        "show one message in full",
        description="Show one message: its error, key, attributes and body.",
        examples="""
        semel dlq show orders-dlq 6d2f0c1a-…
        semel dlq show orders-dlq 6d2f0c1a-… --body > body.json
        """,
    )
    options.add_queue(parser)
    parser.add_argument(
        "id", type=options.some_text, metavar="ID", help="its message id here, or the one it had in its source queue"
    )
    option(
        parser,
        "--body",
        "only the body, byte for byte; on a terminal control characters are shown escaped",
        env="never",
    )
    options.add(parser, "--max-receive N", "--receive")
    add_places(parser)
    options.add_output(parser)


def _show(args: argparse.Namespace) -> int:
    now = time.time()
    with open_service(args) as service:
        page = service.find(args.queue, args.id, receive=args.receive)
    (message,) = page.messages
    if not args.body:
        output.show(args, message, lambda: _details(message, now))
    elif sys.stdout.isatty():
        print("\n".join(output.one_line(line) for line in message.body.split("\n")))
    else:
        sys.stdout.write(message.body)
    output.notes(*page.notes, str(page.cost))
    return 0


def _details(message: DeadLetterMessage, now: float) -> str:
    from semel.dlq import fingerprints

    first = f", first {output.moment(message.first_received)}" if message.first_received else ""
    rows: list[tuple[str, str]] = [
        ("message", message.id),
        ("queue", message.queue),
        ("source", message.source or "unknown"),
        ("error", message.why),
        ("key", message.key or "none: SQS moved the message, and its handler's key is not known here"),
        (
            "sent",
            f"{output.moment(message.sent)} UTC, {output.duration(now - message.sent)} ago" if message.sent else "?",
        ),
        ("received", f"{output.count(message.receives, 'time')}{first}"),
    ]
    if message.attempts:
        rows.append(("attempts", str(message.attempts)))
    if message.redrives:
        rows.append(("redriven", f"{output.count(message.redrives, 'time')} before"))
    if message.original_id != message.id:
        rows.append(("id in source", message.original_id))
    if message.group:
        rows.append(("group", message.group))
    if message.state:
        until = f" until {output.moment(message.visible_at)}" if message.visible_at else ""
        rows.append(("state", message.state.replace("_", " ") + until))
    if message.expires:
        rows.append(("expires", f"{output.moment(message.expires)} UTC, in {output.duration(message.expires - now)}"))
    rows.append(("fingerprint", fingerprints.of(message)))
    for name, value in sorted(message.attributes.items()):
        text = f"{len(value.value)} bytes" if isinstance(value.value, bytes) else value.value
        rows.append((f"  {name}", f"{text}  ({value.type})"))
    head = output.pairs([(output.one_line(name), value) for name, value in rows])
    size = output.size(message.body_bytes)
    return f"{head}\n\n{output.body(message.body)}  ({size})" if message.body else f"{head}\n\n(no body)"


def _add_export(actions: Any) -> None:
    parser = command(
        actions,
        "export",
        _export,
        "write messages to a file as JSON lines",
        description="""Write whole messages to a file as JSON lines; semel dlq restore can send them again. The
        messages stay in the queue.""",
        examples="""
        semel dlq export orders-dlq messages.jsonl --all
        semel dlq export orders-dlq - --where 'age > 1d' | jq .body
        """,
        notes=selection.FILTERS,
    )
    options.add_queue(parser)
    parser.add_argument("file", type=options.some_text, metavar="FILE", help="the file; - is standard output")
    selection.add_selection(parser)
    options.add(parser, "--force", "--receive")
    add_places(parser)


def _export(args: argparse.Namespace) -> int:
    path = None if args.file == "-" else Path(args.file)
    if path is not None and path.exists() and not args.force:
        raise UsageError(f"{path} exists; add --force to replace it")
    with open_service(args) as service:
        selection.dead_letter_queue(service, args)
        try:
            done = service.export(
                args.queue,
                to=path or sys.stdout.buffer,
                any_queue=args.any_queue,
                receive=args.receive,
                **selection.selection(args),
            )
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SemelError(f"{args.file} cannot be written: {error.strerror or error}") from None
    sys.stdout.flush()
    where = f"to {path}" if path else "to standard output"
    print(f"wrote {output.count(done.count, 'message')} {where}", file=sys.stderr)
    output.notes(*done.notes, str(done.cost))
    return 0

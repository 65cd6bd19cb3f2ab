"""`semel messages`: send messages, peek at a queue, and follow it. `semel send` is short for `semel messages send`."""

from __future__ import annotations

import argparse
import binascii
import itertools
import shlex
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, command_group, option
from semel.cli.dlq.listings import add_page, show_messages
from semel.cli.dlq.selection import FILTERS, add_filter
from semel.cli.progress import Progress
from semel.cli.service import add_places

if TYPE_CHECKING:
    from semel.dlq.messages import DeadLetterMessage
    from semel.sqs.client import Queue
    from semel.sqs.client.admin import Admin
    from semel.sqs.client.messages import Attribute, Entry

_BATCH: Final = 10
_KNOWN: Final = 100_000  # ids that `tail` remembers on SQS
_SHOWN_FAILURES: Final = 20


def add_to(commands: Any) -> None:
    actions = command_group(
        commands,
        "messages",
        "send messages, peek at a queue, and follow it",
        description="Send messages to a queue, peek at the messages of any queue, and follow new ones.",
        examples="""
        semel messages send orders '{"id": 1}' --key order-1
        semel messages peek orders --limit 5
        semel messages tail orders
        """,
    )
    _add_send(actions, "semel messages send")
    _add_peek(actions)
    _add_tail(actions)
    _add_send(commands, "semel send")


def _add_send(commands: Any, name: str) -> None:
    short = "" if name == "semel messages send" else " Short for: semel messages send."
    parser = command(
        commands,
        "send",
        _send,
        "send messages" if not short else "send messages (short for: messages send)",
        description=f"""Send one message, or one for each line of a file, in batches of ten, and print the ids
        of the messages that were sent.{short}""",
        examples=f"""
        {name} orders '{{"id": 1}}' --key order-1
        echo hello | {name} orders -
        {name} orders --lines orders.jsonl --rate 100
        {name} orders.fifo --file order.json --group customer-7
        """,
        codes={ExitCode.FAILED: "failed, or some messages were not sent: each is named on standard error"},
    )
    options.add_queue(parser)
    parser.add_argument(
        "body", nargs="?", metavar="BODY", help="the body; - reads standard input, without its final newline"
    )
    option(parser, "--file FILE", "read the body from this file", env="never")
    option(parser, "--lines FILE", "send each line of this file as a message; - is standard input", env="never")
    option(parser, "--key KEY", "the idempotency key, sent as the attribute idempotency-key", env="never")
    option(
        parser,
        "--attribute NAME=VALUE",
        "a message attribute; NAME:Number=5, NAME:Binary=BASE64; may be repeated",
        env="never",
        type=_attribute,
        repeat=True,
    )
    option(parser, "--group GROUP", "the message group id", env="never")
    option(parser, "--dedup-id ID", "the deduplication id (FIFO)", env="never")
    option(
        parser,
        "--delay TIME",
        "delay before the message is visible",
        type=options.whole_seconds("MAX_DELAY"),
    )
    option(parser, "--rate N", "maximum number of messages a second", type=options.rate)
    options.add_aws(parser)
    options.add(parser, "--quiet")
    options.add_output(parser)


def _attribute(text: str) -> tuple[str, Attribute]:
    from semel.sqs import limits
    from semel.sqs.client.messages import Attribute

    named, equals, value = text.partition("=")
    name, _, kind = named.partition(":")
    kind = kind or "String"
    if not equals or not limits.ATTRIBUTE_NAME.match(name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, NAME:Number=VALUE or NAME:Binary=BASE64")
    if not limits.ATTRIBUTE_TYPE.match(kind):
        raise argparse.ArgumentTypeError(f"{text!r}: the type is String, Number or Binary, not {kind}")
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r}: an attribute needs a value; is a variable unset?")
    if kind.startswith("Number") and not limits.is_number(value):
        raise argparse.ArgumentTypeError(f"{text!r}: {value!r} is not a number")
    if not kind.startswith("Binary"):
        return name, Attribute(kind, value)
    try:
        return name, Attribute(kind, b64decode(value, validate=True))
    except binascii.Error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: it is not base64: {error}") from None


def _send(args: argparse.Namespace) -> int:
    from semel.messages.keys import PRODUCER_KEY
    from semel.sqs.client.messages import Entry

    if sum(getattr(args, name) is not None for name in ("body", "file", "lines")) != 1:
        raise UsageError("give the message in one way: BODY, - for standard input, --file FILE or --lines FILE")
    if args.lines is not None and (args.key or args.dedup_id):
        name = "--key" if args.key else "--dedup-id"
        raise UsageError(f"{name} is for one message: with --lines all messages would have the same")
    attributes = dict(args.attribute)
    if args.key:
        attributes[PRODUCER_KEY] = _attribute(f"{PRODUCER_KEY}={args.key}")[1]

    def entry(body: str) -> Entry:
        return Entry(body, attributes or None, args.delay, args.group, args.dedup_id)

    with options.client(args) as client:
        queue = client.queue(args.queue)
        if queue.fifo and not args.group:
            raise UsageError(f"{queue.name} is a FIFO queue: name the message group with --group GROUP")
        if queue.fifo and args.delay is not None:
            raise UsageError(f"{queue.name} is a FIFO queue: SQS takes no --delay for single messages there")
        return _send_one(args, queue, entry(_body(args))) if args.lines is None else _send_lines(args, queue, entry)


def _send_one(args: argparse.Namespace, queue: Queue, entry: Entry) -> int:
    if problem := entry.unsendable():
        raise UsageError(f"the message cannot be sent: {problem.message}")
    sent = queue.send(entry.body, attributes=entry.attributes, delay=entry.delay, group=entry.group, dedup=entry.dedup)
    output.show(args, [SentMessage(sent.message_id, sent.sequence)], lambda: sent.message_id)
    return ExitCode.OK


def _body(args: argparse.Namespace) -> str:
    try:
        if args.file is not None:
            content = Path(args.file).read_bytes()
        elif args.body == "-":
            content = sys.stdin.buffer.read().removesuffix(b"\n")
        else:
            return str(args.body)
        return content.decode()
    except OSError as error:
        raise UsageError(f"--file {args.file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        name = "standard input" if args.file is None else f"--file {args.file}"
        raise UsageError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


# send --lines


class SentMessage(NamedTuple):
    """`line`: the line of the file, with --lines."""

    message_id: str
    sequence: str | None = None
    line: int | None = None


class LineSender:
    """Sends the lines of a file. On a FIFO queue it sends one at a time and stops at the first failure, as going on
    would break the order of the group."""

    def __init__(
        self,
        queue: Queue,
        entry: Callable[[str], Entry],
        rate: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._queue, self._entry, self._rate = queue, entry, rate
        self._clock, self._sleep = clock, sleep
        self.sent = self.empty = 0
        self.failures: list[tuple[int, str]] = []  # line, and why
        self.stopped: tuple[int, str] | None = None  # the line at which it stopped, and why

    def run(self, lines: Iterable[bytes]) -> Iterator[SentMessage]:
        from semel.sqs.client.messages import Failure
        from semel.sqs.errors import SqsError

        batch = 1 if self._queue.fifo else _BATCH if self._rate is None else min(_BATCH, max(1, int(self._rate)))
        next_at = self._clock()
        for numbered in _batches(self._texts(lines), batch):
            if self._stops():  # at an earlier line, which is not UTF-8
                return
            if self._rate is not None:
                self._sleep(max(0.0, next_at - self._clock()))
                next_at = max(next_at, self._clock()) + len(numbered) / self._rate
            try:
                outcomes = self._queue.send_many([self._entry(text) for _, text in numbered])
            except SqsError as error:
                self.stopped = (numbered[0][0], str(error))
                return
            for (line, _), outcome in zip(numbered, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    self.failures.append((line, f"{outcome.code}: {outcome.message}"))
                else:
                    self.sent += 1
                    yield SentMessage(outcome.message_id, outcome.sequence, line)
            if self._stops():
                return

    def _stops(self) -> bool:
        if self._queue.fifo and self.failures:
            self.stopped = self.failures.pop(0)
            return True
        return False

    def _texts(self, lines: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                self.failures.append((number, f"it is not UTF-8: {error.reason} at byte {error.start}"))
                continue
            if text:
                yield number, text
            else:
                self.empty += 1


def _batches(lines: Iterator[tuple[int, str]], size: int) -> Iterator[list[tuple[int, str]]]:
    while batch := list(itertools.islice(lines, size)):
        yield batch


def _send_lines(args: argparse.Namespace, queue: Queue, entry: Callable[[str], Entry]) -> int:
    sender = LineSender(queue, entry, args.rate)
    sent: list[SentMessage] = []
    with ExitStack() as stack:
        file = sys.stdin.buffer if args.lines == "-" else stack.enter_context(_opened(args.lines))
        progress = stack.enter_context(Progress("semel send", quiet=args.quiet or not sys.stderr.isatty()))
        for message in sender.run(file):
            progress.update(f"{output.count(sender.sent, 'message')} sent")
            if args.output == "json":
                sent.append(message)
            elif args.output == "jsonl":
                output.print_json(message, "jsonl")
            else:
                print(message.message_id)
    if args.output == "json":
        output.print_json(sent, "json")
    sys.stdout.flush()
    return _report(args, queue, sender)


def _opened(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UsageError(f"--lines {name}: {error.strerror or error}") from None


def _report(args: argparse.Namespace, queue: Queue, sender: LineSender) -> int:
    """Reports on standard error what was not sent, and how to send it."""

    def warn(text: str) -> None:
        print(f"semel: {output.one_line(text)}", file=sys.stderr)

    empty = f"; {output.count(sender.empty, 'empty line')} skipped" if sender.empty else ""
    if not sender.failures and sender.stopped is None:
        if not args.quiet:
            print(f"sent {output.count(sender.sent, 'message')} to {queue.name}{empty}", file=sys.stderr)
        return ExitCode.OK
    for line, why in sender.failures[:_SHOWN_FAILURES]:
        warn(f"line {line}: {why}")
    if len(sender.failures) > _SHOWN_FAILURES:
        warn(f"and {len(sender.failures) - _SHOWN_FAILURES:,} more lines")
    if sender.stopped is not None:
        warn(f"stopped at line {sender.stopped[0]}: {sender.stopped[1]}")
    rest = "" if sender.stopped is None else f"; from line {sender.stopped[0]} on nothing was sent"
    warn(f"{output.count(sender.sent, 'message')} sent to {queue.name}, {len(sender.failures):,} failed{rest}{empty}")
    parts = [f"{first}p" if first == last else f"{first},{last}p" for first, last in _ranges(sender.failures)]
    if sender.stopped is not None:
        parts.append(f"{sender.stopped[0]},$p")
    source = "" if args.lines == "-" else f" {shlex.quote(args.lines)}"
    warn(
        f"to send these with the same options: sed -n {shlex.quote(';'.join(parts))}{source} | semel messages send "
        f"{queue.name} --lines -"
    )
    return ExitCode.FAILED


def _ranges(failures: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for line in sorted(line for line, _ in failures):
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return ranges


def _add_peek(actions: Any) -> None:
    parser = command(
        actions,
        "peek",
        _peek,
        "show messages of any queue without processing them",
        description="""Show messages of a queue. Semel's broker shows them without receiving them. SQS does not: there
        messages are received and released at once, which counts as a receive of each; the cost is printed. A queue
        with a RedrivePolicy is read only with --receive, because receives may move its messages.""",
        examples="""
        semel messages peek orders
        semel messages peek orders --where '$.total > 100' --limit 5
        semel messages peek orders --output jsonl --bodies
        """,
        notes=FILTERS,
    )
    options.add_queue(parser)
    add_filter(parser)
    add_page(parser)
    add_places(parser)
    options.add_output(parser)


def _peek(args: argparse.Namespace) -> int:
    return show_messages(args, dead_letters=False)


def _add_tail(actions: Any) -> None:
    parser = command(
        actions,
        "tail",
        _tail,
        "show new messages as they arrive",
        description="""Show messages that arrive from now on, until Ctrl-C. Semel's broker shows them without receiving
        them; one that is deleted between two polls is not shown. SQS does not: with --receive every poll receives all
        visible messages of the queue and releases them, which counts as a receive of each and hides them from workers
        meanwhile.""",
        examples="""
        semel messages tail orders
        semel messages tail orders --where '$.total > 100' --output jsonl
        semel messages tail orders --receive --interval 30s --limit 10
        """,
        notes=FILTERS,
        codes={ExitCode.OK: "--limit messages were shown", ExitCode.INTERRUPTED: "interrupted with Ctrl-C"},
    )
    options.add_queue(parser)
    add_filter(parser)
    option(
        parser,
        "--limit N",
        "exit after this number of messages (default: never)",
        type=options.at_least(1),
    )
    option(parser, "--interval TIME", "time between two polls (default: 1s, and 10s on SQS)", type=options.duration)
    options.add(parser, "--receive")
    options.add_aws(parser)
    options.add_output(parser, "table", "jsonl")


def _tail(args: argparse.Namespace) -> int:
    from semel.dlq.filter import parser as filters
    from semel.sqs.client.admin import Admin

    where = filters.parse(args.where)
    with options.client(args) as client:
        queue = client.queue(args.queue)
        admin = Admin.of(client)
        if admin is None and not args.receive:
            raise UsageError(
                f"{queue.name} is not on Semel's broker: SQS shows messages only by receiving them, which counts as a "
                "receive of each and may move those that are close to maxReceiveCount; --receive accepts that"
            )
        arrivals = _from_broker(queue, admin) if admin is not None else _by_receiving(queue, args.max_receive)
        interval = args.interval or (1.0 if admin is not None else 10.0)
        left = args.limit
        next(arrivals)  # skips what is in the queue already
        print(f"new messages of {queue.name}, every {output.duration(interval)}; Ctrl-C ends it", file=sys.stderr)
        while True:
            time.sleep(interval)
            for message in next(arrivals):
                if not where.matches(message, time.time()):
                    continue
                _show(args, message)
                left = None if left is None else left - 1
                if left == 0:
                    return ExitCode.OK


def _show(args: argparse.Namespace, message: DeadLetterMessage) -> None:
    if args.output == "jsonl":
        output.print_json(message, "jsonl")
        return
    text = f"{output.moment(message.sent)}  {message.id}  {output.one_line(message.body)}"
    room = output.width()
    print(text if len(text) <= room else f"{text[: room - 1]}…", flush=True)


def _from_broker(queue: Queue, admin: Admin) -> Iterator[list[DeadLetterMessage]]:
    """Yields what arrived since the previous poll. It goes by places in the queue, so that nothing is received."""
    from semel.dlq.messages import DeadLetterMessage
    from semel.dlq.queues import no_such_queue
    from semel.sqs.client.admin import AdminError

    try:
        place = admin.peek(queue.name, limit=1, bodies=False).end
    except AdminError as error:
        if error.status == 404:
            raise no_such_queue(queue) from None
        raise
    yield []
    while True:
        after: int | None = place
        arrived: list[DeadLetterMessage] = []
        while after is not None:
            page = admin.peek(queue.name, after=after)
            arrived += [DeadLetterMessage.peeked(message, queue.name) for message in page.messages]
            after, place = page.next, page.end if page.next is None else page.next
        yield arrived


def _by_receiving(queue: Queue, max_receive: int | None) -> Iterator[list[DeadLetterMessage]]:
    """Yields what arrived since the previous poll. A poll receives every message once and releases it."""
    from semel.dlq.access import MAX_RECEIVE, ScanPage, open_access
    from semel.dlq.messages import DeadLetterMessage

    access = open_access(queue.client, queue, max_receive=max_receive or MAX_RECEIVE, accept_risk=True)
    known: dict[str, None] = {}  # in order
    while True:
        page, arrived = ScanPage([]), list[DeadLetterMessage]()
        for page in access.scan():
            arrived += [message for message in page.messages if message.id not in known]
            known |= dict.fromkeys(message.id for message in page.messages)
        output.notes(*page.notes, str(page.cost))
        for id in list(itertools.islice(known, max(0, len(known) - _KNOWN))):
            del known[id]
        yield arrived

"""`semel dlq watch`: alerts when messages arrive in dead-letter queues, and before they expire."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, option
from semel.cli.dlq.listings import sampled
from semel.cli.service import add_places, open_service
from semel.errors import SemelError
from semel.signals import OnSignals

if TYPE_CHECKING:
    from semel.cli.service import Service
    from semel.dlq.messages import DeadLetterQueue
    from semel.dlq.watch import Alarm, AlarmChannel

_NOTES: Final = """\
A command (--exec) has SEMEL_ALARM_KIND (arrival, expiry), SEMEL_ALARM_QUEUE,
SEMEL_ALARM_TEXT, SEMEL_ALARM_DEPTH, SEMEL_ALARM_NEW, SEMEL_ALARM_FIRST_EXPIRES
and SEMEL_ALARM_AT in its environment. A webhook gets the same as a JSON object.
"""


def add_to(actions: Any) -> None:
    parser = command(
        actions,
        "watch",
        _watch,
        "alert when messages arrive, and before they expire",
        description="""Poll the counts of dead-letter queues. Nothing is received unless --sample is given. An alarm
        that this run or an earlier one has delivered is not raised again.""",
        examples="""
        semel dlq watch
        semel dlq watch orders-dlq --webhook https://hooks.example/x
        semel dlq watch --once --exec 'mail -s "$SEMEL_ALARM_TEXT" ops </dev/null'
                                            from cron
        semel dlq watch orders-dlq --exit   wait for the first message
        """,
        notes=_NOTES,
        codes={
            ExitCode.OK: "no alarm (--once), or ended with SIGTERM",
            ExitCode.FOUND: "an alarm was raised (--once, --exit)",
            ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
        },
    )
    parser.add_argument("queue", nargs="*", metavar="QUEUE", help="queues to watch (default: all dead-letter queues)")
    option(parser, "--interval TIME", "time between two polls", type=options.duration, default="30s")
    option(
        parser, "--expires-within TIME", "alert this long before a message expires", type=options.duration, default="6h"
    )
    option(parser, "--once", "poll once, for cron")
    option(parser, "--exit", "exit at the first alarm")
    option(parser, "--ignore-existing", "ignore messages that are already in the queues")
    option(parser, "--webhook URL", "POST each alarm to this URL as JSON")
    option(parser, "--exec CMD", "run this command for each alarm", dest="command")
    option(parser, "--sample", "on SQS: receive up to ten messages of each queue to know when they expire")
    options.add(parser, "--receive")
    add_places(parser)
    options.add_output(parser)


def _watch(args: argparse.Namespace) -> int:
    from semel.dlq import watch as watching
    from semel.state_folder import state_folder

    if args.webhook:
        try:
            watching.check_webhook(args.webhook)
        except SemelError as error:
            raise UsageError(str(error)) from None
    with _stopped_by_signals() as stopped, open_service(args) as service:
        queues = _queues(service, args)  # a queue that does not exist is an error only at the start
        channels = _channels(args, state_folder(), service.endpoint)
        if args.ignore_existing:
            for channel in channels:
                channel.watch.ignore_existing(queues)
        _begin(args, queues)
        while True:
            for channel in channels:
                channel.check(queues, time.time())
            alarms = any(channel.pending for channel in channels)
            for channel in channels:
                if problem := channel.deliver():
                    again = "the next run delivers it" if args.once else "it is retried at the next poll"
                    print(f"semel: {output.one_line(problem)}; {again}", file=sys.stderr, flush=True)
            if args.once or (args.exit and alarms):
                return ExitCode.FOUND if alarms else ExitCode.OK
            if stopped.wait(args.interval):
                return ExitCode.OK
            queues = _again(service, args)


def _channels(args: argparse.Namespace, folder: Path, endpoint: str) -> list[AlarmChannel]:
    from semel.dlq import watch as watching

    def show(alarm: Alarm) -> str:
        _show(alarm, args)
        return ""

    places: list[tuple[str, Callable[[Alarm], str]]] = [("output", show)]
    if args.webhook:
        places.append((f"webhook {args.webhook}", lambda alarm: watching.post(alarm, args.webhook)))
    if args.command:
        places.append((f"exec {args.command}", lambda alarm: watching.execute(alarm, args.command)))
    return [
        watching.AlarmChannel(folder, endpoint, name, deliver, before=args.expires_within) for name, deliver in places
    ]


def _queues(service: Service, args: argparse.Namespace) -> list[DeadLetterQueue]:
    queues = [service.queue(name) for name in args.queue] if args.queue else service.queues()
    now = time.time()
    return [sampled(service, info, now, args.receive) for info in queues] if args.sample else queues


def _again(service: Service, args: argparse.Namespace) -> list[DeadLetterQueue]:
    """The queues, or none: the watch goes on if the endpoint does not answer for a while."""
    try:
        return _queues(service, args)
    except SemelError as error:
        print(f"semel: {output.one_line(str(error))}", file=sys.stderr, flush=True)
        return []


def _begin(args: argparse.Namespace, queues: Sequence[DeadLetterQueue]) -> None:
    if args.once or args.output != "table":
        return
    depth = output.count(sum(info.depth for info in queues), "message")
    every = output.duration(args.interval)
    print(f"watching {output.count(len(queues), 'queue')} with {depth}, every {every}", file=sys.stderr)
    unknown = [info.name for info in queues if info.depth and info.first_expires is None]
    if unknown:
        output.notes(
            f"SQS does not tell when messages of {', '.join(unknown)} expire: only arrivals raise alarms (see --sample)"
        )


def _show(alarm: Alarm, args: argparse.Namespace) -> None:
    if args.output != "table":
        output.print_json(alarm, "jsonl")  # as they come: an array would never end
    else:
        bell = "\a" if sys.stdout.isatty() else ""
        text = output.one_line(alarm.text)
        print(f"{bell}{output.moment(alarm.at)}  {alarm.kind.upper():<8} {text}", flush=True)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM end the watch between two polls."""
    stopped = threading.Event()
    in_main_thread = threading.current_thread() is threading.main_thread()
    with OnSignals(stopped.set) if in_main_thread else contextlib.nullcontext():
        yield stopped

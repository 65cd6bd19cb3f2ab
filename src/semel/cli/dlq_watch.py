"""`semel dlq watch`: tells when dead letters come, and before they are lost."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from semel.cli import dlq_options as options
from semel.cli import dlq_text as text
from semel.cli.dlq_options import command
from semel.cli.errors import UsageError
from semel.errors import SemelError
from semel.signals import OnSignals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.cli.dlq_options import AnyService
    from semel.dlq.messages import DeadLetterQueue
    from semel.dlq.watch import Alarm

_CODES: Final = """\
exit codes:
  0  ended, and there was nothing to tell (or not with --once or --exit)
  1  could not look
  2  wrong usage
  3  an alarm was raised (--once, --exit)
"""
_HELP: Final = """\
a command (--exec) has SEMEL_KIND (arrival, expiry), SEMEL_QUEUE, SEMEL_TEXT,
SEMEL_DEPTH, SEMEL_NEW, SEMEL_FIRST_EXPIRES and SEMEL_AT in its environment; a
webhook gets the same as a JSON object.
"""


def add_to(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "watch",
        _watch,
        where,
        help="tell when letters come, and before they are lost",
        description="Look at the counts of dead-letter queues again and again; nothing is received unless --look "
        "asks for it. What was told once, by this run or an earlier one, is not told again.",
        examples="  semel dlq watch\n  semel dlq watch orders-dlq --before 1d --webhook https://hooks.example/abc\n"
        "  semel dlq watch --once --exec 'mail -s \"$SEMEL_TEXT\" ops < /dev/null'\n"
        "                                      from cron\n"
        "  semel dlq watch orders-dlq --exit   wait for the first message",
        codes=_CODES,
        more=_HELP,
    )
    parser.add_argument("queue", nargs="*", metavar="QUEUE", help="these (all dead-letter queues)")
    parser.add_argument("--every", type=options.span, default=30.0, metavar="TIME", help="how often to look (30s)")
    parser.add_argument(
        "--before",
        type=options.span,
        default=6 * 3_600.0,
        metavar="TIME",
        help="tell so long before a letter is lost (6h)",
    )
    parser.add_argument("--once", action="store_true", help="look once, for cron")
    parser.add_argument("--exit", action="store_true", help="end at the first alarm")
    parser.add_argument(
        "--look", action="store_true", help="on SQS: receive up to ten of each to know when they expire"
    )
    options.add_receive(parser)
    parser.add_argument("--from-now", action="store_true", help="take the letters that are there as known")
    parser.add_argument("--webhook", metavar="URL", help="POST each alarm here as JSON")
    parser.add_argument("--exec", metavar="CMD", dest="command", help="run this for each alarm")
    parser.add_argument("--json", action="store_true", help="alarms as JSON lines")


def _watch(given: argparse.Namespace) -> int:
    from semel.dlq import watch as watching
    from semel.state_folder import state_folder

    if given.webhook:
        try:
            watching.check_webhook(given.webhook)
        except SemelError as error:
            raise UsageError(str(error)) from None
    folder = state_folder()
    with _signals() as stop, options.service(given) as service:
        endpoint = service.endpoint
        watch = watching.Watch(given.before, watching.load(folder, endpoint))
        queues = _queues(service, given)  # that there is none of a name is an error now, and only now
        if given.from_now:
            watch.know(queues)
        _begin(given, queues)
        waiting: list[_Delivery] = []
        while True:
            alarms = watch.look(queues, time.time())
            for alarm in alarms:
                _show(alarm, given)
            waiting += [_Delivery(alarm, given) for alarm in alarms]
            failed: set[str] = set()
            # Remembered as told only once it is: a kill, or a webhook that is down, must not cost an alarm.
            for delivery in list(waiting):
                if delivery.made(failed):
                    waiting.remove(delivery)
                    watching.save(folder, endpoint, watch.delivered({one.alarm.queue for one in waiting}))
            watching.save(folder, endpoint, watch.delivered({one.alarm.queue for one in waiting}))
            if given.once or (given.exit and alarms):
                return options.ALARM if alarms else 0
            if stop.wait(given.every):
                return 0
            queues = _again(service, given)


def _queues(service: AnyService, given: argparse.Namespace) -> list[DeadLetterQueue]:
    from semel.dlq import queues as listing

    found = [service.queue(name) for name in given.queue] if given.queue else service.queues()
    if not given.look:
        return found
    return [
        listing.estimated(
            one,
            service.messages(one.name, limit=10, receive=bool(getattr(given, "receive", False))).messages,
            time.time(),
        )
        if one.depth and one.first_expires is None
        else one
        for one in found
    ]


def _again(service: AnyService, given: argparse.Namespace) -> list[DeadLetterQueue]:
    """An endpoint that does not answer for a while is no reason to end."""
    try:
        return _queues(service, given)
    except SemelError as error:
        print(f"semel dlq watch: {text.plain(str(error))}", file=sys.stderr, flush=True)
        return []


def _begin(given: argparse.Namespace, queues: Sequence[DeadLetterQueue]) -> None:
    if given.once or given.json:
        return
    messages = sum(info.depth for info in queues)
    print(f"watching {len(queues)} queues with {messages:,} letters, every {text.span(given.every)}", file=sys.stderr)
    dark = [info.name for info in queues if info.depth and info.first_expires is None]
    if dark:
        print(
            f"note: SQS does not say when letters of {', '.join(dark)} expire: only arrivals are told (--look)",
            file=sys.stderr,
        )


def _show(alarm: Alarm, given: argparse.Namespace) -> None:
    if given.json:
        print(json.dumps(asdict(alarm)), flush=True)
    else:
        bell = "\a" if sys.stdout.isatty() else ""
        print(f"{bell}{text.moment(alarm.at)}  {alarm.kind.upper():<8} {text.plain(alarm.text)}", flush=True)


class _Delivery:
    """An alarm on its way to the webhook and the command; each gets it once, as soon as it takes it."""

    def __init__(self, alarm: Alarm, given: argparse.Namespace) -> None:
        self.alarm, self._given = alarm, given
        self._left = [name for name in ("webhook", "command") if getattr(given, name)]

    def made(self, failed: set[str]) -> bool:
        """Whether nothing is left to do. What fails is added to `failed`, and not tried again in the same round."""
        from semel.dlq import watch as watching

        for name in [name for name in self._left if name not in failed]:
            deliver = watching.post if name == "webhook" else watching.execute
            if problem := deliver(self.alarm, getattr(self._given, name)):
                failed.add(name)
                again = "" if self._given.once else "; it is tried again at the next look"
                print(f"semel dlq watch: {text.plain(problem)}{again}", file=sys.stderr, flush=True)
            else:
                self._left.remove(name)
        return not self._left


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set by SIGINT and SIGTERM: they end the watch in order."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(OnSignals(stop.set))
        yield stop
